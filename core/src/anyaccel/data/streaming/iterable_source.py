"""IterableSource: batches from loaders, data sets of other libraries, generators and other iterables."""

from __future__ import annotations

import inspect
import itertools
import operator
import traceback
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from anyaccel import interrupts
from anyaccel.arguments import is_integer, shown
from anyaccel.call_hints import constructor_hints
from anyaccel.data.arrow_columns import Pad
from anyaccel.data.roles import Names
from anyaccel.data.samplers import integer
from anyaccel.data.streaming.base import BatchSource, Columns
from anyaccel.data.streaming.batch_schema import BatchSchema, source_pads
from anyaccel.data.streaming.dataloader_workers import (
    ENDED_HINT,
    check_fork,
    check_no_share,
    dropped_rows,
    set_epoch,
    worker_ended,
    worker_notes,
    workers_of,
)
from anyaccel.data.streaming.off_main_thread import call_off_main_thread
from anyaccel.data.streaming.random_states import RandomStates, States, kept_frameworks, watched_rng
from anyaccel.data.streaming.source_errors import BatchPosition, data_hint, failed
from anyaccel.errors import SourceError

_END = object()


@constructor_hints
class IterableSource(BatchSource):
    """Stream batches from a loader, generator or other iterable, in its order.

    Values may be NumPy arrays, lists of numbers, Arrow or pandas columns, and tensors of any framework whose plugin is
    installed, on any device; they keep their dtype.

    Args:
        label: Label of the feature set that the graph is connected to, or of the source's own `example`.
        source: A torch `DataLoader`, a `tf.data.Dataset` with `batch()`, a Hugging Face `IterableDataset` with
            `batch()`, a list of batches, or anything else that can be iterated repeatedly; a function that returns an
            iterable of batches (a generator function), called for each epoch, with its number if it has a parameter
            `epoch`; or an iterator, which is read once. If the source has a `set_epoch` method, it is called with the
            number of the epoch.
        features, target, tags: Names of columns by role. A batch has its columns by name (a mapping, data class, named
            tuple or Arrow table; other entries are left out), by position (a tuple or list: features, then targets,
            then tags; nested tuples and mappings are flattened), or is the only column itself.
        steps: Number of batches in an epoch, after which the source is closed. Required if the source has no end, which
            cannot be detected in general: without `steps`, an epoch of such a source lasts until it is interrupted. An
            iterator continues in the next epoch where it stopped.
        pad: For each column whose batches differ in length, [rows, length, *shape] or lists of rows: the padding value,
            as a number or a Pad. The padding in a batch is kept, except with `Pad(multiple_of=)` and `Pad(length=)`.
        read_ahead: None reads batches in a thread before they are needed. 0 requests a batch only when the previous
            step is done, for batches that the trained model produces (reinforcement learning): the models then have
            their current values, in every framework. The first batch is read when the graph is built.

    Raises:
        DataError: a label that is not text or has a dot.
        ColumnError: invalid roles.
        SourceError: `source` is not a source of batches, is a loader that reads only a part of its rows, never ends
            without `steps`, `steps` is not a number of 1 or more, or `read_ahead` is neither None nor 0.

    Example:
        >>> import anyaccel as aa, numpy as np
        >>> def batches(epoch):
        ...     generator = np.random.default_rng(epoch)
        ...     for _ in range(10):
        ...         x = generator.normal(size=(32, 3)).astype("float32")
        ...         yield x, x.sum(axis=1, keepdims=True)
        >>> source = aa.IterableSource("stream", batches, features=["x"], target=["y"], steps=10)
        >>> graph = aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP([1]), source.reference())], "adam", seed=0)
        >>> phase = aa.TrainPhase("train", data=source, losses=aa.AppliedLoss("mse"), epochs=2)
        >>> graph.run(phase, progress="none").loss.shape
        (2,)
    """

    def __init__(
        self,
        label: str,
        source: Any,
        *,
        features: Names,
        target: Names = (),
        tags: Names = (),
        steps: int | None = None,
        read_ahead: int | None = None,
        pad: Mapping[str, float | Pad] | None = None,
    ) -> None:
        super().__init__(label, features, target, tags)
        self.pads = source_pads(label, pad, self._roles)
        self._source = source
        self._factory = iterator_factory(label, source)
        if steps is not None and (not is_integer(steps) or steps < 1):
            raise SourceError(
                f"source {label!r}: steps={shown(steps)} is not a number of batches", hint="write steps=1000"
            )
        self._limit = None if steps is None else int(steps)
        if read_ahead is not None and not (is_integer(read_ahead) and read_ahead == 0):
            raise SourceError(
                f"source {label!r}: read_ahead={shown(read_ahead)} is neither None nor 0",
                hint="write read_ahead=0 to read a batch only after the previous step, or leave it out",
            )
        self.read_ahead = None if read_ahead is None else 0
        if self._limit is None and never_ends(source):
            raise SourceError(
                f"source {label!r}, a {type(source).__name__}, never ends",
                hint="set the number of batches of an epoch: IterableSource('data', source, features='x', target='y', "
                "steps=1000)",
            )
        check_fork(label, source)
        check_no_share(label, source)
        self._schema = BatchSchema(self._roles, self.pads)
        self._held: tuple[int, Columns, Generator[Columns]] | None = None
        self._held_states: States = {}
        self._was_read = False
        self._random_states = RandomStates(source)
        self.once = self._factory.once

    @property
    def steps(self) -> int | None:
        """Number of batches in an epoch: as given, or as the source reports; None if unknown."""
        return self._limit if self._limit is not None else length_of(self._source)

    @property
    def dropped_rows(self) -> int:
        """Number of rows that a loader leaves out of each epoch because its last batch would be smaller
        (`drop_last=True`).
        """
        return dropped_rows(self._source)

    def notes(self) -> tuple[str, ...]:
        """Return notes about the workers of a loader and the rows that it leaves out."""
        left_out = f"source {self._label!r} drops {self.dropped_rows} rows of each epoch: its loader has drop_last=True"
        return (*worker_notes(self._label, self._source), *((left_out,) if self.dropped_rows else ()))

    def close(self) -> None:
        """Close the iterator that was opened for the example, if no epoch has continued it. An iterator keeps that
        batch.
        """
        if self._factory.once:
            return
        held, self._held = self._held, None
        if held is not None and workers_of(self._source):
            call_off_main_thread(held[2].close)
        elif held is not None:
            held[2].close()

    def batches(self, epoch: int) -> Generator[Columns]:
        """Yield the batches of an epoch; see `BatchSource.batches`. The first epoch continues the read of the example.

        Raises:
            SourceError: also from the call, for an iterator that was read before and has no `steps`.
        """
        epoch, held = integer("epoch", epoch), self._held
        if held is not None and (self._factory.once or held[0] == epoch):
            self._held = None
            return _continued(held[1], held[2])
        self.close()
        if self._factory.once and self._was_read and self._limit is None:
            raise SourceError(
                f"source {self._label!r} is an iterator ({type(self._source).__name__}) and was read before",
                cause="an iterator can be read only once",
                hint="pass a function that creates it, such as the generator function itself, without calling it",
            )
        return self._run(epoch)

    def held_states(self, epoch: int) -> States | None:
        return self._held_states if self._held is not None and self._held[0] == epoch else None

    def hold_again(self, states: States | None) -> None:
        if self.once:
            return
        self.close()
        if states is not None:
            with kept_frameworks():
                self.load_random_states(states)
                self._first()

    def _first(self) -> Columns:
        self._held_states = self._random_states.states(frameworks=True)
        if not workers_of(self._source):
            first, run = self._started()
            self._held = (0, first, run)
            return first
        with interrupts.deferred():
            first, run = call_off_main_thread(self._started, undo=lambda started: started[1].close())
            self._held = (0, first, run)
        return first

    def _started(self) -> tuple[Columns, Generator[Columns]]:
        run = self._run(0)
        return next(run), run

    def _run(self, epoch: int) -> Generator[Columns]:
        promised, first, self._was_read = self.steps, not self._was_read, True
        before: Columns | None = None
        watch = ExitStack()  # left with the first batch
        passed = watch.enter_context(watched_rng()) if self.passes_thread_rng is None else None
        with watch:
            iterator = self._factory.iterator(epoch)
            try:
                for number in itertools.count() if self._limit is None else range(self._limit):
                    position = BatchPosition(self._label, epoch, number)
                    batch = self._next(position, iterator)
                    if number == 0 and passed is not None:
                        watch.close()
                        self.passes_thread_rng = passed()
                    if batch is _END:
                        self._check_count(epoch, number, promised)
                        return
                    if promised is not None and number >= promised:
                        raise self._wrong_count(epoch, f"more than the {promised} batches")
                    columns = self._schema.convert(position, batch, self.left_out)
                    del batch
                    self._keep_example(columns)
                    if first and workers_of(self._source) > 1 and number < 2:
                        if before is not None:
                            self._check_workers(before, columns)
                        before = columns if number == 0 else None
                    yield columns
            finally:
                if not self._factory.once:
                    close = getattr(iterator, "close", None)
                    if callable(close):
                        close()
                del iterator  # as in _next

    def _next(self, position: BatchPosition, iterator: Iterator[Any]) -> Any:
        try:
            return next(iterator, _END)
        except Exception as error:
            del iterator  # a traceback that is kept must not keep the workers of a loader
            if workers_of(self._source):
                # These frames are the loader's own, and hold its workers; those of the user were in the worker.
                traceback.clear_frames(error.__traceback__)
                if worker_ended(error):
                    raise failed(f"{position} did not arrive", error, ENDED_HINT) from error
            raise failed(f"{position} could not be read", error) from error

    def _check_workers(self, one: Columns, other: Columns) -> None:
        """Warn where the first batches of two workers are equal: each reads all rows of an iterable data set."""
        if not hasattr(getattr(self._source, "dataset", None), "__iter__"):
            return
        if all(np.array_equal(values, other[name]) for name, values in one.items()):
            count = workers_of(self._source)
            warnings.warn(
                f"source {self._label!r}: the first batches of its workers are equal. If each of the {count} workers "
                f"reads the whole data set, every row comes {count} times in an epoch. Hint: let each worker read its "
                "part in __iter__, or write num_workers=0.",
                UserWarning,
                stacklevel=2,
            )

    def _check_count(self, epoch: int, number: int, promised: int | None) -> None:
        if number == 0 and self._example is None:
            problem, dropped = f"source {self._label!r} has no rows", self.dropped_rows
            if dropped:
                what = "its only row" if dropped == 1 else f"all its {dropped} rows"
                problem += f": its loader drops {what}, which do not fill a batch, as it has drop_last=True"
                raise SourceError(problem, hint=f"write drop_last=False, or batch_size={dropped} or less")
            raise SourceError(problem, hint="pass data with at least one row")
        if number == 0:
            raise SourceError(
                f"source {self._label!r} returned no batch in epoch {epoch}, although it did in earlier epochs",
                cause="it is exhausted: every epoch reads the same iterator, which can be read only once",
                hint="pass a function that creates a new iterator at each call",
            )
        if promised is not None and number < promised:
            raise self._wrong_count(epoch, f"{number} of the {promised} batches")

    def _wrong_count(self, epoch: int, gave: str) -> SourceError:
        limited = self._limit is not None
        return SourceError(
            f"source {self._label!r} returned {gave} promised by {'steps' if limited else 'its len()'}, "
            f"in epoch {epoch}",
            hint="set the correct number of batches: steps=..."
            if limited
            else "correct its __len__, or pass a function, which has no length: lambda: loader",
        )


def _continued(first: Columns, run: Generator[Columns]) -> Generator[Columns]:
    """Yield an epoch whose first batch was read before."""
    try:
        yield first
        del first
        yield from run
    finally:
        run.close()


# -- iterators of batches: how a user's source is opened anew for every epoch ------------------------------------------


_INFINITE = -1  # what cardinality() gives for a data set without an end


@dataclass(frozen=True, slots=True)
class IteratorFactory:
    """Open a source for an epoch.

    Attributes:
        label: Label of the source.
        open: Function of the number of an epoch that returns an iterable of batches.
        once: Whether the source is an iterator, which is read once and which its owner closes.
    """

    label: str
    open: Callable[[int], Any]
    once: bool = False

    def iterator(self, epoch: int) -> Iterator[Any]:
        """Return an iterator of the batches of an epoch."""
        try:
            iterable, iterator = self.open(epoch), None
            if self.once:
                iterator = cast("Iterator[Any]", iterable)
            elif not data_hint(iterable):
                check_fork(self.label, iterable)
                set_epoch(iterable, epoch)
                iterator = iter(iterable) if hasattr(iterable, "__iter__") else None
        except SourceError:
            raise
        except Exception as error:
            raise failed(f"source {self.label!r} cannot be opened for epoch {epoch}", error) from error
        if iterator is None:
            raise SourceError(
                f"the function of source {self.label!r} returned a {type(iterable).__name__}, not an iterable of "
                "batches",
                cause="it is called once for every epoch",
                hint="yield batches, or return a list of them",
            )
        return iterator


def iterator_factory(label: str, source: Any) -> IteratorFactory:
    """Return how to open a source."""
    hint = data_hint(source)
    if hint:
        kind = type(source).__name__
        raise SourceError(f"the {kind} given as source {label!r} is data, not a source of batches", hint=hint)
    if isinstance(source, type):
        return IteratorFactory(label, _function(label, source))
    if hasattr(source, "__next__"):
        return IteratorFactory(label, lambda epoch: source, once=True)
    if hasattr(source, "__iter__"):
        return IteratorFactory(label, lambda epoch: source)
    if callable(source):
        return IteratorFactory(label, _function(label, source))
    if hasattr(source, "__getitem__"):
        raise SourceError(
            f"the {type(source).__name__} of source {label!r} returns rows by number, not batches",
            hint="write MapSource(label, dataset, features=[...]) instead of IterableSource; the phase's sampler "
            "then orders and batches its rows",
        )
    raise SourceError(
        f"a {type(source).__name__} is not a source of batches for {label!r}",
        available="loaders, data sets, lists of batches, functions without arguments that return an iterable",
        hint="write a function that yields batches",
    )


def length_of(source: Any) -> int | None:
    """Return the number of batches that a source reports, None if it does not know."""
    if not hasattr(source, "__len__"):
        return None
    try:
        return len(source)
    except TypeError:
        return None


def never_ends(source: Any) -> bool:
    """Return whether a source is known to have no end: `itertools.count`, `cycle` and `repeat`, and those that report
    it.
    """
    if isinstance(source, (itertools.count, itertools.cycle)):
        return True
    if isinstance(source, itertools.repeat):
        return operator.length_hint(source, _INFINITE) == _INFINITE
    cardinality = getattr(source, "cardinality", None)
    if not callable(cardinality) or isinstance(source, type):
        return False
    try:
        return int(cardinality()) == _INFINITE
    except (TypeError, ValueError):
        return False


def _function(label: str, source: Callable[..., Any]) -> Callable[[int], Any]:
    """Return a function called for each epoch, with its number if it has a parameter `epoch`."""
    try:
        parameters = inspect.signature(source).parameters.values()
    except (TypeError, ValueError):  # built-in functions may have no signature
        return lambda epoch: source()
    empty, variadic = inspect.Parameter.empty, (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [
        parameter.name for parameter in parameters if parameter.default is empty and parameter.kind not in variadic
    ]
    if any(
        parameter.name == "epoch" and parameter.kind is not inspect.Parameter.POSITIONAL_ONLY
        for parameter in parameters
    ):
        required = [name for name in required if name != "epoch"]
        call: Callable[[int], Any] = lambda epoch: source(epoch=epoch)  # noqa: E731
    else:
        call = lambda epoch: source()  # noqa: E731
    if required:
        raise SourceError(
            f"the function of source {label!r} needs {', '.join(required)}",
            cause="it is called without arguments, or with the number of the epoch as `epoch`",
            hint="write lambda: make_batches(...) with the arguments inside",
        )
    return call
