"""Row shares: the rows of each batch for one replica, either its part, or all rows to compute a part of them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from anyaccel.errors import PhaseError
from anyaccel.phases.loading.epoch_plan import (
    EpochPlan,
    EpochSteps,
    RowOrders,
    RowSpan,
    SampledBatches,
    SharedSteps,
    StepRange,
)
from anyaccel.phases.loading.host_columns import Batch

_SEEN_BYTES = 1024
"""Of each of a few rows of a column; a fingerprint of whole images would cost more than their step."""


def share(n_rows: int, rank: int, size: int) -> RowSpan:
    """Return the rows of a batch of `n_rows` that a replica takes: adjacent ones. Shares differ by at most one row."""
    return rank * n_rows // size, (rank + 1) * n_rows // size


class BatchShare:
    """The rows of each batch of a source that one replica takes.

    Args:
        label: Label of the phase.
        source: Label of the source.
        rank, size: Rank of this replica and number of replicas.
        on_batch: Function that receives a fingerprint of each whole batch, which is equal in all replicas with equal
            batches, and its number of rows.
        on_begin: Function called when batches begin to be read, even if they are read again.
        whole: Whether each takes all rows, and computes a part of them.
        parts: Whether each takes its part only of batches in equal parts, and all rows of others.
    """

    def __init__(
        self,
        label: str,
        source: str,
        rank: int,
        size: int,
        on_batch: Callable[[int, int], None],
        on_begin: Callable[[], None],
        *,
        whole: bool = False,
        parts: bool = False,
    ) -> None:
        self._whole, self._parts, self._on_begin = whole, parts, on_begin
        self._label, self._source, self._rank, self._size, self._on_batch = label, source, rank, size, on_batch

    def __call__(self, batches: Iterable[tuple[int, Batch]]) -> Iterator[tuple[int, Batch]]:
        """Yield the parts of numbered batches that this replica takes.

        Raises:
            PhaseError: a batch has fewer rows than there are replicas.
        """
        self._on_begin()
        for position, batch in batches:
            yield position, self.of(batch)

    def of(self, batch: Batch) -> Batch:
        """Return the part of a batch that this replica takes: adjacent rows.

        Raises:
            PhaseError: it has fewer rows than there are replicas.
        """
        n_rows = len(next(iter(batch.values())))
        if n_rows < self._size:
            raise PhaseError(
                f"phase {self._label!r}: the source {self._source!r} returned a batch of {n_rows} rows for "
                f"{self._size} replicas",
                cause="each replica takes part of every batch, including the last one of an epoch",
                hint="use larger batches, or drop the last one: DataLoader(..., drop_last=True)",
            )
        self._on_batch(fingerprint(batch), n_rows)
        if self._whole or (self._parts and n_rows % self._size):
            return batch
        low, high = share(n_rows, self._rank, self._size)
        return {name: column[low:high] for name, column in batch.items()}


def fingerprint(batch: Batch) -> int:
    """Return 20 bits of the names and shapes of a batch, and of its first, middle and last row."""
    digest = 0
    for name in sorted(batch):
        column = np.asarray(batch[name])
        digest = zlib.crc32(f"{name} {column.shape}".encode(), digest)
        for row in (0, len(column) // 2, len(column) - 1):
            digest = zlib.crc32(np.ascontiguousarray(column[row]).tobytes()[:_SEEN_BYTES], digest)
    return digest & 0xFFFFF


class ReplicaEpochs(EpochPlan):
    """The epochs of all replicas. This replica takes its part of every step, in the order of the epoch.


    Args:
        label: Label of the phase.
        epochs: Epochs of all.
        rank, size: Rank of this replica and number of replicas.
        on_orders: Function that receives the row orders of all, for each epoch that is drawn.
        whole: Whether each takes all rows of every step, and computes a part of them.

    Raises:
        PhaseError: a batch has fewer rows than there are replicas, or its feature sets cannot be split equally.
    """

    splittable = False

    def __init__(
        self,
        label: str,
        epochs: EpochPlan,
        rank: int,
        size: int,
        on_orders: Callable[[RowOrders], None] = lambda _: None,
        *,
        whole: bool = False,
    ) -> None:
        self._whole, self._on_orders = whole, on_orders
        self._epochs, self._rank, self._size = epochs, rank, size
        self.n_steps = epochs.n_steps
        self._known: tuple[RowOrders, EpochSteps] | None = None
        self._label = label
        first = epochs.epoch(0)
        on_orders(first.orders)
        steps = first.steps
        for step in steps:
            if self._whole and step.microbatch_size is not None:  # each batch of a step is cut by itself
                last = step.batch_size % step.microbatch_size or step.microbatch_size
                _check_sizes(self._label, {last}, self._size)
            _check_sizes(self._label, {stop - start for start, stop in step.rows.values()}, self._size)
            if not step.uniform:
                _check_equal(self._label, {stop - start for start, stop in step.rows.values()}, self._size)
        taken = steps if whole else [self._part(step) for step in steps]
        self.batch_size = max(step.batch_size for step in taken)

    def epoch(self, number: int) -> EpochSteps:
        whole = self._epochs.epoch(number)
        if self._known is None or self._known[0] is not whole.orders:
            self._on_orders(whole.orders)
            self._known = whole.orders, whole if self._whole else self._share_of(whole)
        return self._known[1]

    def prefetch(self, number: int | None) -> None:
        self._epochs.prefetch(number)

    def _part(self, steps: StepRange) -> StepRange:
        """Return the same steps, with this replica's number of rows; from row 0 on."""
        spans = {name: share(stop - start, self._rank, self._size) for name, (start, stop) in steps.rows.items()}
        rows = {name: (0, high - low) for name, (low, high) in spans.items()}
        microbatch_size = steps.microbatch_size
        if microbatch_size is not None:  # all have equally many: parts of a step may be computed together
            microbatch_size = -(-microbatch_size // self._size)
            least, most = steps.batch_size // self._size, -(-steps.batch_size // self._size)
            while -(-least // microbatch_size) != -(-most // microbatch_size):
                microbatch_size += 1
        return replace(steps, rows=rows, microbatch_size=microbatch_size)

    def _share_of(self, whole: EpochSteps) -> EpochSteps:
        taken: dict[str, list[np.ndarray]] = {name: [] for steps in whole.steps for name in steps.rows}
        ends = dict.fromkeys(taken, 0)
        parts = []
        for steps in whole.steps:
            part = self._part(steps)
            rows = {name: (ends[name], ends[name] + stop) for name, (_, stop) in part.rows.items()}
            for name, (start, stop) in steps.rows.items():
                low, high = share(stop - start, self._rank, self._size)
                begins = start + (stop - start) * np.arange(steps.n_steps)[:, None]
                taken[name].append((begins + np.arange(low, high)).ravel())
                ends[name] += steps.n_steps * (high - low)
            parts.append(replace(part, rows=rows))
        positions = {name: np.concatenate(parts) for name, parts in taken.items()}
        orders = {key: order[positions[key[0]]] for key, order in whole.orders.items() if key[0] in positions}
        return EpochSteps(tuple(parts), orders, SharedSteps(whole, self._first))

    def _first(self, n_rows: int) -> int:
        return share(n_rows, self._rank, self._size)[0]


def check_shares(label: str, batches: SampledBatches, n_replicas: int) -> None:
    """Check that each of `n_replicas` replicas can take a part of every batch.

    Raises:
        PhaseError: a batch has fewer rows than there are replicas, or its feature sets cannot be split equally.
    """
    if batches.equal_batches is not None:
        _, size, last = batches.equal_batches
        _check_sizes(label, {size, last} - {0}, n_replicas)
        return
    for step in batches.steps:
        sizes = {stop - start for start, stop in step.values()}
        _check_sizes(label, sizes, n_replicas)
        if len(sizes) > 1:
            _check_equal(label, sizes, n_replicas)


def _check_sizes(label: str, sizes: set[int], n_replicas: int) -> None:
    if min(sizes) < n_replicas:
        raise PhaseError(
            f"phase {label!r} has a batch of {min(sizes)} rows for {n_replicas} replicas",
            cause="each replica takes part of every batch, including the last one of an epoch",
            hint="draw larger batches, or drop the last one: SimpleSampler(..., drop_last=True)",
        )


def _check_equal(label: str, sizes: set[int], n_replicas: int) -> None:
    if any(n % n_replicas for n in sizes):
        raise PhaseError(
            f"phase {label!r} takes batches of {_listed(sizes)} rows in one step, for {n_replicas} replicas",
            cause="batches of several sizes in one step can be split only if each is a multiple of the number of "
            "replicas",
            hint=f"use batch sizes that are multiples of {n_replicas}, with drop_last=True",
        )


class ReplicaEvaluation(EpochPlan):
    """An evaluation that is split by batches: this replica computes some whole, adjacent ones, as one process does.


    Args:
        epochs: Epochs of all.
        rank, size: Rank of this replica and number of replicas; there are at least as many batches.
    """

    splittable = True

    def __init__(self, epochs: EpochPlan, rank: int, size: int) -> None:
        self._epochs, self._rank, self._size = epochs, rank, size
        steps_here = self.epoch(0).steps
        self.n_steps = len(steps_here)
        self.batch_size = max(steps.batch_size for steps in steps_here)

    def epoch(self, number: int) -> EpochSteps:
        whole = self._epochs.epoch(number)
        low, high = share(len(whole.steps), self._rank, self._size)
        return replace(whole, steps=whole.steps[low:high])


def _listed(sizes: set[int]) -> str:
    return " and ".join(str(n) for n in sorted(sizes))


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalBatches:
    """Whether all replicas compute each step by one program.

    Attributes:
        given: Whether they do.
        parts: Whether each reads its part of a batch, which the program puts together; otherwise all rows.
        allowed: Whether backend and phase allow it, with whole parameters.
        needed: Whether some layer mixes the rows of a batch.
    """

    given: bool = False
    parts: bool = False
    allowed: bool = False
    needed: bool = False

    def chosen(self, label: str, size: int, *, in_memory: bool, batches: bool) -> GlobalBatches:
        """Return the choice once it is known where the rows are.

        Items drawn by samplers are excluded, because each replica reads only its part: to assign the rows of a block to
            steps, each would have to read all. Steps that accumulate batches of a source are excluded, too.

        Args:
            label: Label of the phase.
            size: Number of replicas.
            in_memory: Whether each process has all rows in memory.
            batches: Whether a source yields the batches, each a step.

        Raises:
            PhaseError: it is required, and not possible.
        """
        if self.given or not self.allowed:
            return self
        may_share = in_memory or batches
        if self.needed and not may_share:
            raise PhaseError(
                f"phase {label!r} normalizes over the rows of all replicas, which needs all rows "
                "of a batch in each replica",
                available=f"rows in memory, in batches of a multiple of {size} rows",
                hint=f"draw batches of a multiple of {size} rows from a FeatureSet, or set replicas=1 to train "
                "the whole model separately in each process",
            )
        return replace(self, given=may_share, parts=batches)
