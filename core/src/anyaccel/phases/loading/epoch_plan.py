"""Epoch plan: the rows that each step of an epoch takes from the row orders, as ranges of equal steps and in blocks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from anyaccel.data import EpochOrders, Rows, Sampler, SimpleSampler
from anyaccel.errors import PhaseError, SamplerError
from anyaccel.phases.loading.prefetch import BackgroundCall
from anyaccel.program import MultiStepProgram

THREAD_ROWS = 8192
"""An order of fewer rows is drawn faster than a thread starts."""


class StepSize(NamedTuple):
    """The rows of a step, and how many of them are computed at once: all, or those of a micro-batch.

    Attributes:
        rows: Rows of the step, of the feature set with the most.
        microbatch_size: Most rows that are computed at once; None for all.
    """

    rows: int
    microbatch_size: int | None = None

    def __str__(self) -> str:
        if self.at_once == self.rows:
            return f"{self.rows} rows"
        return f"{self.rows} rows in micro-batches of {self.at_once}"

    @property
    def at_once(self) -> int:
        """The most rows that are computed at once."""
        return min(self.microbatch_size or self.rows, self.rows)

    @property
    def cuts(self) -> list[RowSpan]:
        """The rows that are computed together, counted from the first row of the step."""
        return [(low, min(low + self.at_once, self.rows)) for low in range(0, self.rows, self.at_once)]

    def at_most(self, max_rows: int | None) -> StepSize:
        """Return the same step, with at most `max_rows` rows at once; None sets no limit."""
        return self if max_rows is None else StepSize(self.rows, min(self.at_once, max_rows))

    def arguments(self, program: MultiStepProgram | None) -> tuple[int, ...] | None:
        """Return the arguments of a program for steps of this size; None if it cannot run them, or without one."""
        if program is None:
            return None
        if self.microbatch_size is None or self.microbatch_size >= self.rows:
            return (self.rows,)
        divides = program.supports_microbatching and self.rows % self.microbatch_size == 0
        return (self.rows, self.rows // self.microbatch_size) if divides else None


@dataclass(frozen=True, slots=True)
class StepRange:
    """A run of equal steps, in sequence.

    Attributes:
        rows: Rows of the first step in the row orders, by feature set; each following step takes as many rows, directly
            after those of the previous step.
        n_steps: Number of steps.
        uniform: Whether each step takes the same rows of the orders of all feature sets, as one call of
            `MultiStepProgram.train_steps` does.
        microbatch_size: Rows that are computed at once if a step accumulates several batches; otherwise None.
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
    def size(self) -> StepSize:
        """The rows of each step, and how many of them are computed at once."""
        return StepSize(self.batch_size, self.microbatch_size)

    @property
    def covered(self) -> StepRows:
        """The rows that all its steps take."""
        return {name: (start, start + self.n_steps * (stop - start)) for name, (start, stop) in self.rows.items()}

    def first(self, n: int) -> StepRange:
        """Return its first `n` steps."""
        return replace(self, n_steps=n)

    def skip(self, n: int) -> StepRange:
        """Return its steps but the first `n`."""
        rows = {
            name: (start + n * (stop - start), stop + n * (stop - start)) for name, (start, stop) in self.rows.items()
        }
        return replace(self, rows=rows, n_steps=self.n_steps - n)

    def shifted(self, origins: StepRows) -> StepRange:
        """The same rows, counted from the start of each of these spans."""
        rows = {name: (start - origins[name][0], stop - origins[name][0]) for name, (start, stop) in self.rows.items()}
        return replace(self, rows=rows)

    def split(self, max_rows: int) -> Iterator[StepRange]:
        """Split a single step into several, each with at most `max_rows` rows of each feature set that has some
        left.
        """
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
    """Return `n_steps` steps of `batch_size` rows each, from row `start` of every order on."""
    rows = dict.fromkeys(feature_sets, (start, start + batch_size))
    return StepRange(rows, n_steps, uniform=True, microbatch_size=microbatch_size)


def accumulating_step(feature_sets: Iterable[str], start: int, batch_sizes: Sequence[int]) -> StepRange:
    """Return one step over batches of these sizes, from row `start` of every order on."""
    at_once = max(batch_sizes) if len(batch_sizes) > 1 else None
    return uniform_range(feature_sets, start, 1, sum(batch_sizes), at_once)


@dataclass(frozen=True, slots=True)
class StepBlock:
    """Consecutive steps that are loaded together; their rows count from the first row of the block.

    `spans` gives the rows of the epoch's orders, `orders` has that part of the orders. If they are a process's part of
    a step, `whole` has that part of the orders of all processes, and the index of its first row.
    """

    steps: tuple[StepRange, ...]
    spans: Mapping[str, RowSpan]
    orders: RowOrders
    whole: Mapping[StreamKey, tuple[np.ndarray, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SharedSteps:
    """The steps of all processes, for steps that are one process's part.

    Attributes:
        steps: Steps of all processes.
        first: Function of a number of rows of all that returns the first row of this process.
    """

    steps: EpochSteps
    first: Callable[[int], int]

    def rows_of(self, block: StepBlock) -> dict[StreamKey, tuple[np.ndarray, int]]:
        """Return the order of a block of all processes by stream, and where this process's part begins."""
        return {stream: (order, self.first(len(order))) for stream, order in block.orders.items()}


@dataclass(frozen=True, slots=True)
class EpochSteps:
    """The steps of one epoch, or of one evaluation, and the row orders that they use.

    `shared` has the steps of all processes if these are one process's part: padding follows the longest row of the
    whole batch.
    """

    steps: tuple[StepRange, ...]
    orders: RowOrders
    shared: SharedSteps | None = None

    def skip(self, n: int) -> EpochSteps:
        """Return all steps but the first `n`."""
        if not n:
            return self
        shared = None if self.shared is None else replace(self.shared, steps=self.shared.steps.skip(n))
        left: list[StepRange] = []
        for steps in self.steps:
            here = min(n, steps.n_steps)
            n -= here
            if here < steps.n_steps:
                left.append(steps.skip(here) if here else steps)
        return replace(self, steps=tuple(left), shared=shared)

    def split(self, max_rows: int) -> EpochSteps:
        """Return the same rows in more steps, with at most `max_rows` rows of each feature set. For evaluations."""
        return replace(self, steps=tuple(part for step in self.steps for part in step.split(max_rows)))

    def blocks(self, max_steps: int) -> Iterator[StepBlock]:
        """Yield blocks of at most `max_steps` steps; a last, smaller batch joins those before it."""
        block: list[StepRange] = []
        for steps in _limited(self.steps, max_steps):
            is_full = sum(held.n_steps for held in block) + steps.n_steps > max_steps
            # The last, smaller batch of an epoch: a block of its own would have another shape.
            is_last = steps.uniform and steps.n_steps == 1 and all(it.batch_size > steps.batch_size for it in block)
            if block and is_full and not is_last:
                yield self._block(block)
                block = []
            block.append(steps)
        if block:
            yield self._block(block)

    def single_steps(self) -> Iterator[StepBlock]:
        """Return a block for each step, including a last, smaller batch."""
        steps = (self._block([step]) for step in _limited(self.steps, 1))
        if self.shared is None:
            return steps
        pairs = zip(steps, self.shared.steps.single_steps(), strict=True)
        return (replace(block, whole=self.shared.rows_of(every)) for block, every in pairs)

    def _block(self, block: Sequence[StepRange]) -> StepBlock:
        spans: dict[str, RowSpan] = {}
        for steps in block:
            for name, (start, stop) in steps.covered.items():
                low, high = spans.get(name, (start, stop))
                spans[name] = (min(low, start), max(high, stop))
        orders = {key: order[slice(*spans[key[0]])] for key, order in self.orders.items() if key[0] in spans}
        return StepBlock(tuple(steps.shifted(spans) for steps in block), spans, orders)


def _limited(ranges: Iterable[StepRange], max_steps: int) -> Iterator[StepRange]:
    for steps in ranges:
        for done in range(0, steps.n_steps, max_steps):
            yield steps.skip(done).first(min(max_steps, steps.n_steps - done))


class EpochPlan(ABC):
    """The order in which a phase reads its rows.

    Attributes:
        n_steps: Steps of an epoch; updates, where several batches make one.
        batch_size: The most rows of one feature set in a step.
        splittable: Whether a step may be computed as several, as those of evaluations.
    """

    n_steps: int
    batch_size: int
    splittable: bool

    @abstractmethod
    def epoch(self, number: int) -> EpochSteps:
        """Return the steps and row orders of an epoch. If all epochs are equal, the orders are the same object."""

    def prefetch(self, number: int | None) -> None:
        """Begin to draw the orders of an epoch in a thread; None waits for the current one and drops it."""


class TrainingEpochs(EpochPlan):
    """The epochs of a TrainPhase: an update after `accumulate` batches, and one after the remaining ones.

    `steps` are the steps of every epoch; epochs differ only in the row orders.

    Args:
        label: Label of the phase.
        batches: Batches of its samplers.
        accumulate: Number of batches for one update.

    Raises:
        PhaseError: batches are to be accumulated whose feature sets differ in size.
    """

    splittable = False

    def __init__(self, label: str, batches: SampledBatches, accumulate: int) -> None:
        self.batches = batches
        if batches.equal_batches is None:
            if accumulate > 1:
                raise PhaseError(
                    f"phase {label!r} has accumulate={accumulate}, but its samplers draw batches of different sizes",
                    hint="draw larger batches instead, or use one batch size for all samplers and "
                    "schedule='zip_strict'",
                )
            self.steps = tuple(StepRange(rows) for rows in batches.steps)
        else:
            full, size, last = batches.equal_batches
            n_steps, batch = full // accumulate, size * accumulate
            rest = (full % accumulate) * size + last
            microbatch = size if accumulate > 1 else None
            sets = batches.feature_sets
            ranges = [
                uniform_range(sets, 0, n_steps, batch, microbatch),
                uniform_range(sets, n_steps * batch, 1, rest, microbatch),
            ]
            self.steps = tuple(steps for steps in ranges if steps.n_steps and steps.batch_size)
        self._pending: tuple[int, BackgroundCall[RowOrders]] | None = None
        self.n_steps = sum(steps.n_steps for steps in self.steps)
        self.batch_size = max(steps.batch_size for steps in self.steps)

    def epoch(self, number: int) -> EpochSteps:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending[1].join()
            if pending[0] == number:
                return EpochSteps(self.steps, pending[1].result())
        return EpochSteps(self.steps, self.batches.orders(number))

    def prefetch(self, number: int | None) -> None:
        """Begin to draw the orders of an epoch, if that is worth a thread."""
        if self._pending is not None:
            self._pending[1].join()
            self._pending = None
        if number is not None and self.batches.n_drawn >= THREAD_ROWS:
            self._pending = number, BackgroundCall(self.batches.orders, number)


class EvaluationEpochs(EpochPlan):
    """An evaluation of all rows in batches; every epoch is the same."""

    splittable = True

    def __init__(self, rows: EvaluationRows, batch_size: int) -> None:
        self._epoch = EpochSteps(tuple(StepRange(step) for step in rows.steps(batch_size)), rows.orders)
        self.n_steps = len(self._epoch.steps)
        self.batch_size = max(steps.batch_size for steps in self._epoch.steps)

    def epoch(self, number: int) -> EpochSteps:
        return self._epoch


# -- -------------------------------------------------------------------------------------------------------------------
# Epoch batches: which rows of which feature set each training step takes, in which order, as samplers draw them.


ZIP_STRICT, ZIP_CYCLE = "zip_strict", "zip_cycle"
ALTERNATE_STRICT, ALTERNATE_CYCLE = "alternate_strict", "alternate_cycle"
SCHEDULES = (ZIP_STRICT, ZIP_CYCLE, ALTERNATE_STRICT, ALTERNATE_CYCLE)

StreamKey = tuple[str, str]
"""A feature set and a stream of its sampler, `""` for the first."""
RowSpan = tuple[int, int]
"""Start and stop within a row order."""
StepRows = Mapping[str, RowSpan]
"""What one step takes, by feature set; those that are not in it give no rows."""
RowOrders = Mapping[StreamKey, np.ndarray]
"""Row numbers [n] in the order in which steps take them, for each stream; rows of other streams go as they lie."""


@dataclass(frozen=True, slots=True)
class SamplerEpochs:
    """The epochs of one sampler over feature sets of `n_rows` rows.

    `cycles` is how many times the sampler starts over within one epoch of the phase.
    """

    sampler: Sampler
    draws: EpochOrders
    n_rows: int
    cycles: int = 1

    @classmethod
    def over(cls, sampler: Sampler, rows: Mapping[str, Rows]) -> SamplerEpochs:
        """The epochs of a sampler over some feature sets.

        Raises:
            SamplerError: nothing can be drawn from them, or no batch is full.
        """
        draws = sampler.epoch_orders(rows)
        sampler.batches(draws.n)
        return cls(sampler, draws, len(next(iter(rows.values()))))

    def batch_spans(self) -> list[RowSpan]:
        """Return the batches of one cycle."""
        (full, last), size = self.sampler.batches(self.draws.n), self.sampler.batch_size
        stop = full * size + last
        return [(start, min(start + size, stop)) for start in range(0, stop, size)]

    def orders(self, epoch: int) -> tuple[np.ndarray, ...]:
        """Return the row order of each stream; of several cycles those rows that are in batches, one cycle after the
        other.
        """
        cycles = []
        for cycle in range(epoch * self.cycles, (epoch + 1) * self.cycles):
            drawn = self.sampler.shuffled(self.draws, cycle)
            cycles.append(_checked(self.sampler, self.draws.n, self.n_rows, drawn))
        if self.cycles == 1:
            return cycles[0]
        used = self.batch_spans()[-1][1]
        return tuple(np.concatenate([order[:used] for order in orders]) for orders in zip(*cycles, strict=True))


class SampledBatches:
    """The batches that the samplers of a TrainPhase draw from its rows.

    Args:
        label: Label of the phase.
        samplers: One for all feature sets, or one for each by its label; steps alternate in this order.
        schedule: How several samplers are combined in steps.
        rows: Data, by feature set.

    Attributes:
        feature_sets: Labels of the feature sets.
        equal_batches: Number of full batches in an epoch, their size, and the size of a last partial one (0 for none),
            if each step takes the same rows of every order; otherwise None.
        steps: Rows of each step, if `equal_batches` is None.
        n_drawn: Rows that are drawn again for every epoch; 0 if all epochs take the same.

    Raises:
        SamplerError: nothing can be drawn.
        PhaseError: samplers have different numbers of batches, and the schedule requires equal ones.
    """

    def __init__(
        self, label: str, samplers: Sampler | Mapping[str, Sampler], schedule: str, rows: Mapping[str, Rows]
    ) -> None:
        self.feature_sets = tuple(rows)
        self.steps: tuple[StepRows, ...] = ()
        self.equal_batches: tuple[int, int, int] | None
        self._first_orders: RowOrders | None = None
        if isinstance(samplers, Sampler):
            self._samplers = dict.fromkeys(rows, SamplerEpochs.over(samplers, rows))
            full, last = samplers.batches(next(iter(self._samplers.values())).draws.n)
            self.equal_batches = full, samplers.batch_size, last
        else:
            self._samplers = {name: SamplerEpochs.over(one, {name: rows[name]}) for name, one in samplers.items()}
            # Equally many batches of every sampler: those that have fewer start over, or are refused.
            spans = {name: one.batch_spans() for name, one in self._samplers.items()}
            counts = {name: len(batches) for name, batches in spans.items()}
            most = max(counts.values())
            if schedule.endswith("strict") and min(counts.values()) < most:
                raise PhaseError(
                    f"phase {label!r} has schedule={schedule!r}, but its samplers draw different numbers of batches",
                    cause=", ".join(f"{name}: {count}" for name, count in counts.items()),
                    hint=f"change batch sizes, or write schedule={schedule.replace('strict', 'cycle')!r}",
                )
            self._samplers = {
                name: replace(one, cycles=-(-most // counts[name])) for name, one in self._samplers.items()
            }
            # The batches of one cycle after the other, whose orders are concatenated.
            rounds: list[dict[str, RowSpan]] = [{} for _ in range(most)]
            for name, batches in spans.items():
                for number, together in enumerate(rounds):
                    cycle, place = divmod(number, len(batches))
                    (start, stop), shift = batches[place], cycle * batches[-1][1]
                    together[name] = (start + shift, stop + shift)
            if schedule.startswith("alternate"):
                self.steps = tuple({name: span} for together in rounds for name, span in together.items())
            else:
                self.steps = tuple(rounds)
            first = [next(iter(step.values())) for step in self.steps]
            size, stop = first[0][1], first[-1][1]
            equal = [(start, min(start + size, stop)) for start in range(0, stop, size)]
            is_uniform = all(len(step) == len(rows) and len(set(step.values())) == 1 for step in self.steps)
            self.equal_batches = (stop // size, size, stop % size) if is_uniform and first == equal else None
        is_fixed = all(epochs.draws.fixed and not epochs.sampler.shuffle for epochs in self._samplers.values())
        self.n_drawn = 0 if is_fixed else sum(epochs.draws.n * epochs.cycles for epochs in self._samplers.values())

    def orders(self, epoch: int) -> RowOrders:
        """Return the row orders of an epoch (0 is the first); the first stream is also stored under `""`.

        If every epoch has the orders of the first, the same object is returned.
        """
        if self._first_orders is not None:
            return self._first_orders
        orders: dict[StreamKey, np.ndarray] = {}
        drawn: dict[int, tuple[np.ndarray, ...]] = {}  # several feature sets may share a sampler
        for name, one in self._samplers.items():
            if id(one) not in drawn:
                drawn[id(one)] = one.orders(epoch if self.n_drawn else 0)
            orders[name, ""] = drawn[id(one)][0]
            for stream, order in zip(one.sampler.streams, drawn[id(one)], strict=True):
                orders[name, stream] = order
        if not self.n_drawn:
            self._first_orders = orders
        return orders


def evaluation_orders(samplers: Sampler | Mapping[str, Sampler], rows: Mapping[str, Rows]) -> RowOrders:
    """Return the orders that samplers draw for an evaluation: epoch 0, not shuffled.

    Raises:
        SamplerError: nothing can be drawn.
    """
    orders: dict[StreamKey, np.ndarray] = {}
    groups = [(samplers, rows)] if isinstance(samplers, Sampler) else [(samplers[k], {k: rows[k]}) for k in samplers]
    for sampler, sampled in groups:
        draws = sampler.epoch_orders(sampled)
        streams = _checked(sampler, draws.n, len(next(iter(sampled.values()))), draws.orders(0))
        for name in sampled:
            orders[name, ""] = streams[0]
            for stream, order in zip(sampler.streams, streams, strict=True):
                orders[name, stream] = order
    return orders


def _checked(sampler: Sampler, n: int, n_rows: int, orders: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Return the orders of a sampler, which may be third-party code.

    Raises:
        SamplerError: they are not as promised, or contain rows that do not exist.
    """
    arrays = tuple(map(np.asarray, orders))
    if [(len(order), order.ndim, order.dtype.kind) for order in arrays] != [(n, 1, "i")] * len(sampler.streams):
        raise SamplerError(
            f"{type(sampler).__name__} drew {', '.join(f'{o.dtype}{list(o.shape)}' for o in arrays) or 'nothing'}",
            cause=f"streams {', '.join(sampler.streams)}, {n} rows of each",
            hint="let it draw an int64 array [n] of row numbers for each stream",
        )
    for stream, order in zip(sampler.streams, arrays, strict=True):
        if order.min() < 0 or order.max() >= n_rows:  # some frameworks would silently clip it
            wrong = order.min() if order.min() < 0 else order.max()
            raise SamplerError(f"{type(sampler).__name__} drew row {wrong} for {stream!r}", cause=f"{n_rows} rows")
    return arrays


# -- Evaluation rows: what an EvalPhase or FitPhase computes: rows as they are, or what a sampler draws of them --------


@dataclass(frozen=True, slots=True)
class EvaluationRows:
    """The rows of an evaluation.

    Attributes:
        rows: Rows by feature set, in the order of evaluation; those of a sampler's other streams as
            `FEATURE_SET@STREAM`.
        orders: Row order of each stream that a sampler draws; other feature sets are used unchanged.
    """

    rows: Mapping[str, Rows]
    orders: RowOrders = field(default_factory=dict)

    @classmethod
    def drawn(cls, samplers: Sampler | Mapping[str, Sampler], rows: Mapping[str, Rows]) -> EvaluationRows:
        """Return the rows that samplers draw in epoch 0, not shuffled. A SimpleSampler leaves rows unchanged.

        Raises:
            SamplerError: nothing can be drawn.
        """
        if isinstance(samplers, SimpleSampler):
            return cls(rows)
        orders = evaluation_orders(samplers, rows)
        taken = dict(rows)
        for (name, stream), order in orders.items():
            if not stream:
                taken[name] = rows[name].take(order)
            elif order is not orders[name, ""]:
                taken[f"{name}@{stream}"] = rows[name].take(order)
        return cls(taken, orders)

    def of(self, feature_set: str, stream: str) -> Rows:
        """The rows of a feature set in a stream, `""` for the first."""
        return self.rows.get(f"{feature_set}@{stream}", self.rows[feature_set])

    def steps(self, batch_size: int) -> Iterator[StepRows]:
        """Yield the rows of each step: up to `batch_size` rows of every feature set that has some left."""
        counts = {name: len(rows) for name, rows in self.rows.items() if name.rpartition("@")[0] not in self.rows}
        for start in range(0, max(counts.values()), batch_size):
            yield {name: (start, min(start + batch_size, n)) for name, n in counts.items() if start < n}
