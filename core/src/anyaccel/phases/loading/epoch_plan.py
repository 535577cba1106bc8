"""Epoch plan: what each step of an epoch takes of the row orders, as ranges of equal steps, and in blocks of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from anyaccel.errors import PhaseError
from anyaccel.phases.loading.epoch_batches import RowOrders, RowSpan, SampledBatches, StepRows, StreamKey
from anyaccel.phases.loading.evaluation_rows import EvaluationRows
from anyaccel.phases.loading.prefetch import BackgroundCall

THREAD_ROWS = 8192
"""An order of fewer rows is drawn faster than a thread starts."""


@dataclass(frozen=True, slots=True)
class StepRange:
    """A run of equal steps, one after the other.

    Attributes:
        rows: what the first step takes of the row orders, by feature set; each further step takes as many rows, right
            behind those of the step before.
        n_steps: how many steps.
        uniform: whether each step takes the same rows of the orders of all feature sets, as one call of
            `MultiStepProgram.train_steps` does.
        microbatch_size: rows that are computed at once where a step accumulates several batches; else None.
    """

    rows: StepRows
    n_steps: int = 1
    uniform: bool = False
    microbatch_size: int | None = None

    @property
    def start(self) -> int:
        """The first row of a uniform range in every order."""
        return next(iter(self.rows.values()))[0]

    @property
    def batch_size(self) -> int:
        """The most rows that a step takes of one feature set."""
        return max(stop - start for start, stop in self.rows.values())

    @property
    def covered(self) -> StepRows:
        """The rows that all its steps take."""
        return {name: (start, start + self.n_steps * (stop - start)) for name, (start, stop) in self.rows.items()}

    def first(self, n: int) -> StepRange:
        """Its first `n` steps."""
        return replace(self, n_steps=n)

    def skip(self, n: int) -> StepRange:
        """Its steps but the first `n`."""
        rows = {
            name: (start + n * (stop - start), stop + n * (stop - start)) for name, (start, stop) in self.rows.items()
        }
        return replace(self, rows=rows, n_steps=self.n_steps - n)

    def shifted(self, origins: StepRows) -> StepRange:
        """The same rows, counted from the start of each of these spans."""
        rows = {name: (start - origins[name][0], stop - origins[name][0]) for name, (start, stop) in self.rows.items()}
        return replace(self, rows=rows)

    def split(self, max_rows: int) -> Iterator[StepRange]:
        """A single step as several, each of at most so many rows of each feature set that has some left."""
        for low in range(0, self.batch_size, max_rows):
            rows = {
                name: (start + low, min(start + low + max_rows, stop))
                for name, (start, stop) in self.rows.items()
                if start + low < stop
            }
            yield replace(self, rows=rows)


def uniform_range(
    feature_sets: Iterable[str], start: int, n_steps: int, batch_size: int, microbatch_size: int | None = None
) -> StepRange:
    """`n_steps` of `batch_size` rows each, from row `start` of every order on."""
    rows = dict.fromkeys(feature_sets, (start, start + batch_size))
    return StepRange(rows, n_steps, uniform=True, microbatch_size=microbatch_size)


@dataclass(frozen=True, slots=True)
class StepBlock:
    """Consecutive steps that are loaded together; their rows count from the first row of the block.

    `spans` says which rows of the epoch's orders these are, `orders` has that part of the orders. Where they are a
    process's share of a step, `whole` has that part of the orders of all processes, and which of its rows is the first.
    """

    steps: tuple[StepRange, ...]
    spans: Mapping[str, RowSpan]
    orders: RowOrders
    whole: Mapping[StreamKey, tuple[np.ndarray, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SharedSteps:
    """The steps of all processes, of which some steps are one's share.

    Attributes:
        steps: of all.
        first: of a number of rows of all, the first that this process takes.
    """

    steps: EpochSteps
    first: Callable[[int], int]

    def rows_of(self, block: StepBlock) -> dict[StreamKey, tuple[np.ndarray, int]]:
        """The order of a block of all by stream, and where the share begins."""
        return {stream: (order, self.first(len(order))) for stream, order in block.orders.items()}


@dataclass(frozen=True, slots=True)
class EpochSteps:
    """The steps of one epoch, or of one evaluation, and the row orders that they take rows of.

    `shared` is of what they are a process's share: what is padded to the longest row of a batch is to that of all.
    """

    steps: tuple[StepRange, ...]
    orders: RowOrders
    shared: SharedSteps | None = None

    def skip(self, n: int) -> EpochSteps:
        """All steps but the first `n`."""
        if not n:
            return self
        shared = None if self.shared is None else replace(self.shared, steps=self.shared.steps.skip(n))
        return replace(self, steps=tuple(_skip(self.steps, n)), shared=shared)

    def split(self, max_rows: int) -> EpochSteps:
        """The same rows in more steps, of at most so many rows of each feature set. For evaluations."""
        return replace(self, steps=tuple(part for step in self.steps for part in step.split(max_rows)))

    def blocks(self, max_steps: int) -> Iterator[StepBlock]:
        """Blocks of at most `max_steps` steps; a last, smaller batch goes with those before it."""
        block: list[StepRange] = []
        for steps in _limited(self.steps, max_steps):
            if block and _count(block) + steps.n_steps > max_steps and not _is_last_batch(steps, block):
                yield self._block(block)
                block = []
            block.append(steps)
        if block:
            yield self._block(block)

    def single_steps(self) -> Iterator[StepBlock]:
        """A block for each step, also for a last, smaller batch."""
        own = (self._block([step]) for step in _limited(self.steps, 1))
        if self.shared is None:
            return own
        pairs = zip(own, self.shared.steps.single_steps(), strict=True)
        return (replace(block, whole=self.shared.rows_of(every)) for block, every in pairs)

    def _block(self, block: Sequence[StepRange]) -> StepBlock:
        spans: dict[str, RowSpan] = {}
        for steps in block:
            for name, (start, stop) in steps.covered.items():
                low, high = spans.get(name, (start, stop))
                spans[name] = (min(low, start), max(high, stop))
        orders = {key: order[slice(*spans[key[0]])] for key, order in self.orders.items() if key[0] in spans}
        return StepBlock(tuple(steps.shifted(spans) for steps in block), spans, orders)


def _count(steps: Iterable[StepRange]) -> int:
    return sum(part.n_steps for part in steps)


def _skip(ranges: Iterable[StepRange], n: int) -> Iterator[StepRange]:
    for steps in ranges:
        here = min(n, steps.n_steps)
        n -= here
        if here < steps.n_steps:
            yield steps.skip(here) if here else steps


def _limited(ranges: Iterable[StepRange], max_steps: int) -> Iterator[StepRange]:
    for steps in ranges:
        for done in range(0, steps.n_steps, max_steps):
            yield steps.skip(done).first(min(max_steps, steps.n_steps - done))


def _is_last_batch(steps: StepRange, block: Sequence[StepRange]) -> bool:
    """Whether this is the last, smaller batch of an epoch: a block of its own would have a shape of its own."""
    equal = steps.uniform and steps.n_steps == 1
    return equal and all(other.batch_size > steps.batch_size for other in block)


class EpochPlan(ABC):
    """How a phase goes over its rows.

    Attributes:
        n_steps: steps of an epoch; updates, where several batches make one.
        batch_size: the most rows of one feature set in a step.
        splittable: whether a step may be computed as several, as those of evaluations.
    """

    n_steps: int
    batch_size: int
    splittable: bool

    @abstractmethod
    def epoch(self, number: int) -> EpochSteps:
        """The steps and row orders of an epoch. If all epochs are equal, the orders are the same object."""

    def prefetch(self, number: int | None) -> None:
        """Begin to draw the orders of an epoch in a thread; None waits for what was begun and drops it."""


class TrainingEpochs(EpochPlan):
    """The epochs of a TrainPhase: an update after `accumulate` batches, and one after those that are left.

    `steps` are those of every epoch, which differ only in the row orders.

    Args:
        label: of the phase.
        batches: what its samplers draw.
        accumulate: batches for one update.

    Raises:
        PhaseError: batches are to be accumulated whose feature sets differ in size.
    """

    splittable = False

    def __init__(self, label: str, batches: SampledBatches, accumulate: int) -> None:
        self.batches = batches
        self.steps = _training_steps(label, batches, accumulate)
        self._pending: tuple[int, BackgroundCall[RowOrders]] | None = None
        self.n_steps = _count(self.steps)
        self.batch_size = max(steps.batch_size for steps in self.steps)

    def epoch(self, number: int) -> EpochSteps:
        """See `EpochPlan`."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending[1].join()
            if pending[0] == number:
                return EpochSteps(self.steps, pending[1].result())
        return EpochSteps(self.steps, self.batches.orders(number))

    def prefetch(self, number: int | None) -> None:
        """See `EpochPlan`; nothing is begun if that is not worth a thread."""
        if self._pending is not None:
            self._pending[1].join()
            self._pending = None
        if number is not None and self.batches.n_drawn >= THREAD_ROWS:
            self._pending = number, BackgroundCall(self.batches.orders, number)


def _training_steps(label: str, batches: SampledBatches, accumulate: int) -> tuple[StepRange, ...]:
    if batches.equal_batches is None:
        if accumulate > 1:
            raise PhaseError(
                f"phase {label!r} has accumulate={accumulate}, and its samplers give batches of different sizes",
                hint="draw larger batches instead, or give all samplers one batch size and schedule='zip_strict'",
            )
        return tuple(StepRange(rows) for rows in batches.steps)
    full, size, last = batches.equal_batches
    n_steps, batch = full // accumulate, size * accumulate
    rest = (full % accumulate) * size + last
    microbatch = size if accumulate > 1 else None
    sets = batches.feature_sets
    ranges = [
        uniform_range(sets, 0, n_steps, batch, microbatch),
        uniform_range(sets, n_steps * batch, 1, rest, microbatch),
    ]
    return tuple(steps for steps in ranges if steps.n_steps and steps.batch_size)


class EvaluationEpochs(EpochPlan):
    """An evaluation of all rows in batches; every epoch is the same."""

    splittable = True

    def __init__(self, rows: EvaluationRows, batch_size: int) -> None:
        self._epoch = EpochSteps(tuple(StepRange(step) for step in rows.steps(batch_size)), rows.orders)
        self.n_steps = len(self._epoch.steps)
        self.batch_size = max(steps.batch_size for steps in self._epoch.steps)

    def epoch(self, number: int) -> EpochSteps:
        """See `EpochPlan`."""
        return self._epoch
