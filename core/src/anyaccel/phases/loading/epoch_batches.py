"""Epoch batches: which rows of which feature set each training step takes, in which order, as samplers draw them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from anyaccel.data import EpochOrders, Rows, Sampler
from anyaccel.errors import PhaseError, SamplerError

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
        """The batches of one cycle."""
        (full, last), size = self.sampler.batches(self.draws.n), self.sampler.batch_size
        stop = full * size + last
        return [(start, min(start + size, stop)) for start in range(0, stop, size)]

    def orders(self, epoch: int) -> tuple[np.ndarray, ...]:
        """The row order of each stream; of several cycles those rows that are in batches, one cycle after the other."""
        if self.cycles == 1:
            return self._cycle(epoch)
        used = self.batch_spans()[-1][1]
        cycles = [self._cycle(epoch * self.cycles + i) for i in range(self.cycles)]
        return tuple(np.concatenate([order[:used] for order in orders]) for orders in zip(*cycles, strict=True))

    def _cycle(self, cycle: int) -> tuple[np.ndarray, ...]:
        return _checked(self.sampler, self.draws.n, self.n_rows, self.sampler.shuffled(self.draws, cycle))


class SampledBatches:
    """The batches that the samplers of a TrainPhase draw from its rows.

    Args:
        label: of the phase.
        samplers: one for all feature sets, or one for each by its label; steps alternate in this order.
        schedule: how several samplers take part in steps.
        rows: the data, by feature set.

    Attributes:
        feature_sets: their labels.
        equal_batches: number of full batches in an epoch, their size, and the size of a last partial one (0 for none),
            where each step takes the same rows of every order; else None.
        steps: what each step takes, where `equal_batches` is None.

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
            spans = self._cycled(label, schedule)
            self.steps = tuple(_alternating(spans) if schedule.startswith("alternate") else _zipped(spans))
            self.equal_batches = _equal_batches(self.steps, len(rows))
        self._fixed = all(epochs.draws.fixed and not epochs.sampler.shuffle for epochs in self._samplers.values())

    @property
    def n_drawn(self) -> int:
        """Rows that are drawn anew for every epoch; 0 if all epochs take the same."""
        return 0 if self._fixed else sum(epochs.draws.n * epochs.cycles for epochs in self._samplers.values())

    def _cycled(self, label: str, schedule: str) -> dict[str, list[RowSpan]]:
        """Equally many batches of every sampler: those that have fewer start over, or are refused."""
        spans = {name: one.batch_spans() for name, one in self._samplers.items()}
        counts = {name: len(batches) for name, batches in spans.items()}
        most = max(counts.values())
        if schedule.endswith("strict") and min(counts.values()) < most:
            raise PhaseError(
                f"phase {label!r} has schedule={schedule!r}, and its samplers give different numbers of batches",
                cause=", ".join(f"{name}: {count}" for name, count in counts.items()),
                hint=f"change batch sizes, or write schedule={schedule.replace('strict', 'cycle')!r}",
            )
        self._samplers = {name: replace(one, cycles=-(-most // counts[name])) for name, one in self._samplers.items()}
        return {name: list(itertools.islice(_repeated(batches), most)) for name, batches in spans.items()}

    def orders(self, epoch: int) -> RowOrders:
        """The row orders of an epoch (0 is the first); the first stream is there under `""` too.

        If every epoch has the orders of the first, the same object is returned.
        """
        if not self._fixed:
            return self._drawn(epoch)
        if self._first_orders is None:
            self._first_orders = self._drawn(0)
        return self._first_orders

    def _drawn(self, epoch: int) -> RowOrders:
        orders: dict[StreamKey, np.ndarray] = {}
        drawn: dict[int, tuple[np.ndarray, ...]] = {}  # several feature sets may share a sampler
        for name, one in self._samplers.items():
            if id(one) not in drawn:
                drawn[id(one)] = one.orders(epoch)
            orders.update(_by_stream(name, one.sampler, drawn[id(one)]))
        return orders


def evaluation_orders(samplers: Sampler | Mapping[str, Sampler], rows: Mapping[str, Rows]) -> RowOrders:
    """What samplers draw for an evaluation: epoch 0, not shuffled.

    Raises:
        SamplerError: nothing can be drawn.
    """
    orders: dict[StreamKey, np.ndarray] = {}
    groups = [(samplers, rows)] if isinstance(samplers, Sampler) else [(samplers[k], {k: rows[k]}) for k in samplers]
    for sampler, sampled in groups:
        draws = sampler.epoch_orders(sampled)
        streams = _checked(sampler, draws.n, len(next(iter(sampled.values()))), draws.orders(0))
        for name in sampled:
            orders.update(_by_stream(name, sampler, streams))
    return orders


def _by_stream(name: str, sampler: Sampler, orders: Sequence[np.ndarray]) -> dict[StreamKey, np.ndarray]:
    return {(name, ""): orders[0], **{(name, stream): own for stream, own in zip(sampler.streams, orders, strict=True)}}


def _equal_batches(steps: Sequence[StepRows], n_sets: int) -> tuple[int, int, int] | None:
    """See `SampledBatches.equal_batches`."""
    spans = [next(iter(step.values())) for step in steps]
    size, stop = spans[0][1], spans[-1][1]
    expected = [(start, min(start + size, stop)) for start in range(0, stop, size)]
    if spans != expected or any(len(step) < n_sets or len(set(step.values())) > 1 for step in steps):
        return None
    return stop // size, size, stop % size


def _zipped(spans: Mapping[str, Sequence[RowSpan]]) -> Iterator[StepRows]:
    for together in zip(*spans.values(), strict=True):
        yield dict(zip(spans, together, strict=True))


def _alternating(spans: Mapping[str, Sequence[RowSpan]]) -> Iterator[StepRows]:
    for together in zip(*spans.values(), strict=True):
        yield from ({name: span} for name, span in zip(spans, together, strict=True))


def _repeated(spans: Sequence[RowSpan]) -> Iterator[RowSpan]:
    """The batches of one cycle after the other, whose orders are concatenated."""
    for cycle in itertools.count():
        shift = cycle * spans[-1][1]
        yield from ((start + shift, stop + shift) for start, stop in spans)


def _checked(sampler: Sampler, n: int, n_rows: int, orders: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """The orders of a sampler, which may be third-party code.

    Raises:
        SamplerError: they are not what it promised, or contain rows that do not exist.
    """
    arrays = tuple(np.asarray(order) for order in orders)
    if [(len(order), order.ndim, order.dtype.kind) for order in arrays] != [(n, 1, "i")] * len(sampler.streams):
        raise SamplerError(
            f"{type(sampler).__name__} drew {', '.join(f'{o.dtype}{list(o.shape)}' for o in arrays) or 'nothing'}",
            cause=f"streams {', '.join(sampler.streams)}, {n} rows of each",
            hint="let its draws give an order int64 [n] for each stream",
        )
    for stream, order in zip(sampler.streams, arrays, strict=True):
        if order.min() < 0 or order.max() >= n_rows:  # some frameworks would silently clip it
            wrong = order.min() if order.min() < 0 else order.max()
            raise SamplerError(f"{type(sampler).__name__} drew row {wrong} for {stream!r}", cause=f"{n_rows} rows")
    return arrays
