"""LoopLoader: the batches of a loader for one of several processes, on its device, read ahead, with its position."""

from __future__ import annotations

import hashlib
import itertools
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np

from anyaccel.accelerator import Accelerator
from anyaccel.containers import leaves, map_leaves
from anyaccel.data.streaming.random_states import RandomStates, from_arrays, to_arrays
from anyaccel.errors import DataError, StateError
from anyaccel.phases.loading.device_loader import DeviceLoader
from anyaccel.phases.loading.source_loader import SourceRandomness
from anyaccel.registry import registry
from anyaccel_distributed.own_loop.processes import LoopProcesses, Order


class Window:
    """The batches of one update, which `Loop(accumulate=...)` collects.

    Attributes:
        n_batches: Number of batches that have begun.
        is_closing: Whether the last batch of the update has begun.
    """

    def __init__(self) -> None:
        self.n_batches, self.is_closing = 0, False
        self._share: Share | None = None

    def is_current(self, share: Share | None, *, within: bool) -> bool:
        """Return whether a batch is the one that began last.

        Args:
            share: `Share` of the batch; None if it comes from no prepared loader.
            within: Whether the call is made within `accumulate`.
        """
        return self.n_batches > 0 and (share is self._share if share is not None else within)

    def will_close(self, share: Share | None, steps: int) -> bool:
        """Return whether a batch that has not begun is the last of an update of `steps` batches."""
        number = 1 if self.is_closing else self.n_batches + 1
        return number >= steps or (share is not None and share.is_last)

    def begin(self, share: Share | None, steps: int) -> None:
        """Begin a batch."""
        closes = self.will_close(share, steps)
        self.n_batches = 1 if self.is_closing else self.n_batches + 1
        self.is_closing, self._share = closes, share


# -- loaders -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)  # not frozen: one is made for each batch, which takes several times as long then
class Share:
    """The rows of a batch that one process has.

    Attributes:
        rows: Number of rows of this process. It is 0 if the batch has fewer rows than there are processes; the process
            then receives a row of another process, which is not counted.
        total: Number of rows of all processes; None if unknown.
        is_last: Whether this is the last batch of the epoch, or comes with the last batch of another loader.
        number: Number of the batch within its epoch, from 0.
        is_uneven: Whether the loop also reads another loader, of whose batch this process has another fraction.
    """

    rows: int | None
    total: int | None
    is_last: bool
    number: int
    is_uneven: bool = False


def bounds(n_rows: int, rank: int, size: int) -> tuple[int, int]:
    """Return the first row of a process and the row after its last: contiguous parts that differ by at most one row."""
    return n_rows * rank // size, n_rows * (rank + 1) // size


class Iterations:
    """The loaders of a loop that are being iterated over, and the last batch that the loop received.

    Args:
        steps_done: Called when the outermost loader is asked for its next batch: the loop has finished the last one.
        step_begins: Called before each batch of the outermost loader.
        marks: Returns numbers that must be equal in all processes, by what they belong to.

    Attributes:
        share: `Share` of the last batch; of the outer loader after the loop over an inner one.
        needs_last: Whether the loop must know which batch of an epoch is the last.
    """

    needs_last = False

    def __init__(
        self,
        steps_done: Callable[[], object],
        step_begins: Callable[[], object],
        marks: Callable[[], Mapping[str, Sequence[float]]],
    ) -> None:
        self._steps_done, self._step_begins, self.marks = steps_done, step_begins, marks
        self._active: list[LoopLoader] = []
        self._n_received = 0  # while several are active
        self._ended: LoopLoader | None = None
        self._weighed: Share | None = None
        self.share: Share | None = None

    def begin(self, loader: LoopLoader) -> None:
        """Note that a loop over a loader begins."""
        if not self._active:
            self._step_begins()
        loader.received_as = 0
        self._active.append(loader)

    def next(self, loader: LoopLoader) -> None:
        """Note that a loader is asked for its next batch."""
        if loader is self._active[0]:
            self._steps_done()
            self._step_begins()

    def receive(self, loader: LoopLoader, share: Share) -> None:
        """Note that the loop has received a batch of a loader.

        Loaders that are read together, as by `zip`, end together: the last batch of one is the last of all. Unlike the
        loader of an outer loop, they return a batch between any two of this one.
        """
        if len(self._active) > 1:
            for other in self._active:
                is_beside = 0 < loader.received_as < other.received_as and other.given == loader.given
                if is_beside and other.share is not None:
                    share.is_last = share.is_last or other.share.is_last
                    products = (
                        (share.rows or 0) * (other.share.total or 0),
                        (other.share.rows or 0) * (share.total or 0),
                    )
                    share.is_uneven = share.is_uneven or products[0] != products[1]
            self._n_received += 1
            loader.received_as = self._n_received
        self.share = share

    def end(self, loader: LoopLoader) -> None:
        """Note that the loop over a loader has ended."""
        self._active = [other for other in self._active if other is not loader]
        self._ended = loader
        if self._active:
            self.share = self._active[-1].share

    @property
    def outermost(self) -> LoopLoader | None:
        """The outermost loader that is being iterated over, or None."""
        return self._active[0] if self._active else None

    def weigh(self) -> None:
        """Note that the loop has weighted its result for the last batch."""
        self._weighed = self.share

    def is_weighed(self, share: Share) -> bool:
        """Return whether the loop has weighted its result for a batch."""
        return self._weighed is share

    @property
    def n_rows_of_loop(self) -> int | None:
        """Number of rows of this process in the last finished loop over a loader; None within a loop, or before any."""
        return None if self._active or self._ended is None else self._ended.n_rows

    @property
    def training_share(self) -> Share | None:
        """`Share` of the current batch; None outside of a loop over a loader."""
        return self.share if self._active else None


def _nothing(_: bool) -> object: ...


class LoopLoader(DeviceLoader):
    """A loader that returns each process its rows of each batch, on its device, read and copied ahead.

    Other attributes, such as `dataset`, `sampler` and `batch_size`, are read from the loader. `Loop.prepare` creates
    it.

    Args:
        loader: Any iterable that can be iterated over again for each epoch.
        accelerator: Device of the batches.
        framework: Framework whose tensors NumPy arrays in batches become.
        processes: Processes that share the batches.
        iterations: Object to notify of each batch.
        batch: `"global"` splits each batch of the loader among the processes. `"per_replica"` first joins as many
            consecutive batches as there are processes.

    Attributes:
        epoch: Number of the current or next epoch, from 0.
        given: Number of batches of this epoch that the loop has received.
        n_given: Number of batches that the loop has received in all epochs.
        share: `Share` of the last batch.
        n_rows: Number of rows that this process has received since the iteration began.
        received_as: Number of its last batch among those of all loaders of the loop, while there are several.
    """

    ways: ClassVar[tuple[str, ...]] = ("global", "per_replica")
    """Valid values of `batch`."""

    def __init__(
        self,
        loader: Any,
        accelerator: Accelerator,
        framework: str,
        processes: LoopProcesses,
        iterations: Iterations,
        batch: str = "global",
    ) -> None:
        super().__init__(loader, accelerator, framework)
        self.processes, self._iterations, self.batch = processes, iterations, batch
        self.epoch = self.given = self.n_given = self.n_rows = self.received_as = 0
        self._totals = 0  # identifies the numbers of rows of all batches of the epoch
        self.share: Share | None = None
        self._order_of: int | None = None
        self._order = Order()
        self._states: dict[str, Any] | None = None  # of the generators as the epoch began
        self._resumed: tuple[dict[str, Any], int, Callable[[bool], object]] | None = None
        if batch not in self.ways:
            available = ", ".join(map(repr, self.ways))
            raise DataError(f"unknown batch={batch!r}", available=available, hint="write batch='global'")

        if accelerator.device.kind == "cpu":
            self._in_turn = True  # there is no copy to overlap with the computation

    def __repr__(self) -> str:
        return f"LoopLoader({self.loader!r}, {self.accelerator})"

    def __len__(self) -> int:
        n_batches = len(self.loader)
        return n_batches if self.batch == "global" else -(-n_batches // self.processes.size)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch number that determines the order of the next epoch.

        By default, each epoch has a different order.
        """
        self.epoch = self._order_of = epoch

    # -- the epoch -------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        skipped, go_on = 0, cast("Callable[[bool], object]", _nothing)
        generators = RandomStates(self.loader).once()
        if self._resumed is None:
            self._states = generators.states(frameworks=True)
            self.given = 0
        else:
            self._states, skipped, go_on = self._resumed
            self._resumed = None
            generators.load(self._states)
        self.n_rows = self._totals = 0
        length, ends = _length(self.loader), True
        is_shared = self.processes.size > 1
        is_stream = is_shared and length is None
        marks = self._iterations.marks() if is_shared else {}
        self._order = self.processes.order(generators, self._states, self._order_of, length, marks)
        self._iterations.begin(self)
        batches = cast("Generator[tuple[Any, Share]]", super().__iter__())
        try:
            read_again = self._skip(skipped)
            for _ in range(read_again):
                next(batches)
            has_gone_on = bool(self._in_turn and read_again)  # it draws from the generators that the loop draws from
            if has_gone_on:
                go_on(True)
            for number, (batch, share) in enumerate(batches, start=skipped):
                if not has_gone_on:
                    go_on(bool(self._reads_elsewhere or self._in_turn))
                    has_gone_on = True
                if is_stream:
                    self._check_together(number, share)
                self.given, self.share = number + 1, share
                self.n_given += 1
                self.n_rows += share.rows or 0
                ends = share.is_last
                self._iterations.receive(self, share)
                yield batch
                del batch  # it must not outlive the next
                if is_shared:
                    # Note the rows of a batch that the loop has computed
                    self._totals = (self._totals * 1_000_003 + (share.total or 0)) % 2**61
                    lacks_rows = share.rows == 0 or (share.total or self.processes.size) < self.processes.size
                    if lacks_rows and share.total and self._stand_in_rows and not self._iterations.is_weighed(share):
                        raise DataError(
                            f"a process has none of the {share.total} rows of batch {number} of {self.loader!r}, but "
                            "received one of another process, and its results have not been removed",
                            cause="your own counts and sums would include it twice",
                            hint="gather the results, each row once: loop.gather(model(x) for x, y in loader)",
                        )
                self._iterations.next(self)
            if not has_gone_on:  # the checkpoint was written after the last batch
                go_on(True)
            if is_stream:
                self._check_together(self.given, None)
            if is_shared and not self._knows_rows:
                # Check at the end of an epoch that all processes had batches of the same numbers of rows
                every = self.processes.gather_plain(self._marks_of_epoch(), "at the end of a loop over a loader")
                rank = next((rank for rank, other in enumerate(every) if other != every[0]), None)
                if rank is not None:
                    raise DataError(
                        f"the batches of {self.loader!r} in process {rank} had other rows or shapes in this epoch "
                        "than in process 0",
                        cause="the rows of this epoch were not trained once each",
                        hint="return the same batches in every process; each process takes its rows",
                    )
            if not ends and _length(self.loader) is not None:
                raise DataError(
                    f"{self.loader!r} returned {self.given} batches, but its length is {len(self)}",
                    hint="return the number of batches from __len__, or leave it out",
                )
            self.epoch, self.given, self._states, self._order_of = self.epoch + 1, 0, None, None
        finally:
            batches.close()
            self._iterations.end(self)

    def _open(self) -> tuple[Iterator[Any], Any]:
        with self._order.drawing():
            batches = self._shared()
            return batches, next(batches, self.END)

    @property
    def _draws_alike(self) -> bool:
        """Whether, after the first batch of an epoch, nothing is drawn that must be equal in all processes."""
        return self.processes.size == 1

    _draws_nothing = False
    """Whether batches come from a list or a similar object that draws no random numbers."""
    _stand_in_rows = 1
    """Number of rows of another process for a process without rows; they do not count."""
    _knows_rows = False
    """Whether the rows of all batches of an epoch were compared when it began."""
    _reads_elsewhere = False
    """Whether other processes read the batches."""

    def _skip(self, n_batches: int) -> int:
        """Return how many of the first batches to read again for their random numbers; others are skipped unread."""
        return n_batches

    def _stream_in_turn(self) -> SourceRandomness | None:
        if self._draws_nothing or self._draws_alike or self._order.key is None:
            return None
        return SourceRandomness(self._order.key, in_turn=True)

    def _stream_key(self) -> int | None:
        return self._order.key

    def _batches(self) -> Iterator[Any]:
        """Yield the batches of an epoch as the loader returns them."""
        return iter(self.loader)

    def _checked(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Return the same batches, of which the first must be the same in all processes.

        Raises:
            DataError: It differs.
        """
        if self.processes.size == 1:
            return batches
        first = next(batches, self.END)
        self._check_alike(None if first is self.END else digest(first))
        return batches if first is self.END else itertools.chain([first], batches)

    def _check_alike(self, checksum: str | None, what: str = "the first batch") -> None:
        """Check that all processes have the same digest.

        Raises:
            DataError: It differs.
        """
        every = self.processes.gather_plain(checksum, "at the first batch of a loader")
        rank = next((rank for rank, other in enumerate(every) if other != every[0]), None)
        if rank is not None:
            raise DataError(
                f"{what} of {self.loader!r} in process {rank} differs from that in process 0",
                cause="the rows are shuffled in each process by a generator of its own, or were split by hand",
                hint="return the same batches in every process; each process takes its rows",
            )

    def _marks_of_epoch(self) -> list[int]:
        """Return numbers that identify the batches of the epoch, the same in all processes."""
        return [self.given, self._totals]

    def _shared(self) -> Iterator[tuple[Any, Share]]:
        """Yield the rows of this process of each batch, with their `Share`."""
        processes = self.processes
        if self.batch == "per_replica" and processes.size > 1:
            yield from self._own_batches()
            return
        batches = self._batches()
        self._draws_nothing = type(batches) in _OF_CONTAINERS
        batches = self._checked(batches)
        count = _length(self.loader)
        if count is not None or not self._iterations.needs_last:
            for number, batch in enumerate(batches):
                yield self._cut(batch, is_last=number + 1 == count, number=number)
            return
        batch = next(batches, self.END)
        for number in itertools.count():
            if batch is self.END:
                return
            ahead = next(batches, self.END)
            yield self._cut(batch, is_last=ahead is self.END, number=number)
            batch = ahead

    def _own_batches(self) -> Iterator[tuple[Any, Share]]:
        """Yield this process's batch of each group of as many batches as there are processes."""
        batches, size = self._checked(self._batches()), self.processes.size
        group = list(itertools.islice(batches, size))
        for number in itertools.count():
            if not group:
                return
            following = list(itertools.islice(batches, size))
            rows = [rows_of(batch) for batch in group]
            total = None if None in rows else sum(map(int, rows))  # type: ignore[arg-type]
            rank = self.processes.rank
            is_there = rank < len(group)
            part = group[rank if is_there else 0]
            yield part, Share(rows[rank] if is_there else 0, total, not following, number)
            group = following

    def _cut(self, batch: Any, *, is_last: bool, number: int) -> tuple[Any, Share]:
        n_rows = rows_of(batch)
        if self.processes.size == 1:
            return batch, Share(n_rows, n_rows, is_last, number)
        if n_rows is None:
            raise self._without_rows()
        first, after = bounds(n_rows, self.processes.rank, self.processes.size)
        rows = slice(first, after) if after > first else slice(0, self._stand_in_rows)
        return self._take_rows(batch, rows, n_rows), Share(after - first, n_rows, is_last, number)

    def _without_rows(self) -> DataError:
        return DataError(
            f"the rows of a batch of {self.loader!r} cannot be split over processes: nothing in it has rows",
            hint="leave the loader out of prepare(), and read separate batches in each process",
        )

    def _take_rows(self, batch: Any, rows: slice, n_rows: int) -> Any:
        """Return some of the `n_rows` rows of a batch."""
        return take_rows(batch, rows, n_rows)

    def _moved(self, batch: Any) -> Any:
        contents, share = batch
        return super()._moved(contents), share

    def _check_together(self, number: int, share: Share | None) -> None:
        """Check that all processes have a batch with this number and size, or all are at the end of the stream."""
        size = None if share is None else [share.total, share.is_last]
        every = self.processes.gather_plain(size, "at a batch of a stream")
        if all(other == every[0] for other in every):
            return
        ends = {rank: number + (other is not None) for rank, other in enumerate(every) if other is None or other[1]}
        others = [rank for rank in range(len(every)) if rank not in ends]
        if ends and (others or len(set(ends.values())) > 1):
            told = [f"process {rank} after {n} batches" for rank, n in ends.items()]
            goes_on = f"; it continues in process {', '.join(map(str, others))}" if others else ""
            raise DataError(
                f"{self.loader!r}, a stream, has ended in {', in '.join(told)}{goes_on}",
                hint="return the same batches in every process; each process takes its rows",
            )
        rows = ", ".join(str(other[0]) for other in every if other is not None)
        raise DataError(
            f"batch {number} of {self.loader!r}, a stream, has different numbers of rows in the processes: {rows}",
            hint="return the same batches in every process; each process takes its rows",
        )

    # -- the position ----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the position as arrays: epoch, number of batches received, and random states at the epoch's start.

        Between epochs, these are the states of the generators that the loader holds: the loop keeps the global ones.
        """
        is_within = self._states is not None and self.given
        states = to_arrays((self._states or {}) if is_within else RandomStates(self.loader).held())
        return {"epoch": self.epoch, "given": self.given, "states": states, "order_of": self._order_of}

    def load_state_dict(self, state: Mapping[str, Any], go_on: Callable[[bool], object] = _nothing) -> None:
        """Resume from this position in the next iteration.

        Args:
            state: Result of `state_dict`, from a run with any number of processes.
            go_on: Called when the loop receives its first batch, to restore the random state of the run: that of
                frameworks and, if its argument is true, that of Python and NumPy, which batches may have used when they
                were read ahead.

        Raises:
            StateError: The loader has fewer batches.
        """
        self.epoch, n_given, self._order_of = int(state["epoch"]), int(state["given"]), state["order_of"]
        states = from_arrays(state["states"])
        if _length(self.loader) is not None and n_given > len(self):
            raise StateError(
                f"the checkpoint is after batch {n_given} of an epoch, but the loader has only {len(self)}",
                hint="create the loader in the same way as for the run that wrote the checkpoint",
            )
        self._resumed = (states, n_given, go_on) if n_given else None
        self.given = n_given
        if not n_given:
            RandomStates(self.loader).load(states)


_DIGESTED = 4096
"""Number of elements of each tensor that identify a batch."""
_PLAIN = (str, bytes, int, float, type(None))
_OF_CONTAINERS = {type(iter([0])), type(iter((0,))), type(iter(deque([0]))), type(iter({0: 0}.values()))}


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None


def rows_of(batch: Any) -> int | None:
    """Return the number of rows of a batch: those of its first tensor or array, or the length of its first list."""
    first = batch[0] if type(batch) in (list, tuple) and batch else batch
    shape = getattr(first, "shape", None)
    if shape is not None and len(shape):  # found without a walk through the batch, in every step
        return int(shape[0])
    for leaf in leaves(batch, registry().owners):
        shape = getattr(leaf, "shape", None)
        if shape is not None and len(shape):
            return int(shape[0])
    for part in batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, tuple) else (batch,):
        if isinstance(part, list):
            return len(part)
    return None


def digest(batch: Any) -> str:
    """Return a digest of some elements of each tensor of a batch, and of its texts and numbers."""
    result = hashlib.blake2b(digest_size=8)
    for leaf in leaves(batch, registry().owners):
        array = leaf if isinstance(leaf, np.ndarray) else None
        if array is None and hasattr(leaf, "__array__"):
            with suppress(TypeError, ValueError, RuntimeError):  # not in the memory of the host
                array = np.asarray(leaf)
        if array is not None and array.dtype != object:
            result.update(f"{array.dtype} {array.shape}".encode())
            result.update(np.ascontiguousarray(array.reshape(-1)[:: max(1, array.size // _DIGESTED)]).tobytes())
        else:
            described = leaf if isinstance(leaf, _PLAIN) else getattr(leaf, "shape", None)
            result.update(f"{type(leaf).__name__} {described!r}".encode())
    return result.hexdigest()


def take_rows(batch: Any, rows: slice, n_rows: int) -> Any:
    """Return some rows of a batch: of its tensors and arrays, and of its lists with one item per row.

    Raises:
        DataError: A tensor has a different number of rows.
    """
    if (
        isinstance(batch, list)
        and len(batch) == n_rows
        and not any(len(getattr(item, "shape", ())) and item.shape[0] == n_rows for item in batch)
    ):
        return batch[rows]
    if isinstance(batch, Mapping) or type(batch) in (list, tuple) or hasattr(batch, "_fields"):
        taken = [take_rows(part, rows, n_rows) for part in (batch.values() if isinstance(batch, Mapping) else batch)]
        if isinstance(batch, Mapping):
            return type(batch)(zip(batch, taken, strict=True))  # type: ignore[call-arg]
        return batch._make(taken) if hasattr(batch, "_make") else type(batch)(taken)

    def cut(leaf: Any) -> Any:
        shape = getattr(leaf, "shape", None)
        if shape is None or len(shape) == 0:
            return leaf
        if shape[0] != n_rows:
            raise DataError(
                f"a batch has tensors of {n_rows} and of {shape[0]} rows, which cannot be split over processes",
                hint="use the same number of rows for everything in a batch, or read separate batches in each process",
            )
        return leaf[rows]

    return map_leaves(batch, cut, registry().owners)
