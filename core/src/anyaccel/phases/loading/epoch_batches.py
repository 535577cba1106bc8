"""Drawing: which rows of which feature set each step of an epoch takes, and in which order they lie."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from anyaccel.data import EpochOrders, Rows, Sampler
from anyaccel.errors import PhaseError, SamplerError

ZIP_STRICT, ZIP_CYCLE = "zip_strict", "zip_cycle"
ALTERNATE_STRICT, ALTERNATE_CYCLE = "alternate_strict", "alternate_cycle"
SCHEDULES = (ZIP_STRICT, ZIP_CYCLE, ALTERNATE_STRICT, ALTERNATE_CYCLE)

Lane = tuple[str, str]
"""A feature set and a stream of its sampler, `""` for the first."""
Span = tuple[int, int]
"""From which row of an order to which."""
Turn = Mapping[str, Span]
"""What one step takes, by feature set; those that are not in it give nothing."""
Spans = Callable[[str], Span | None]
"""The same as a function."""


@dataclass(frozen=True, slots=True)
class Source:
    """A sampler at work on feature sets of `count` rows; `times` is how often it begins again in an epoch, plus one."""

    sampler: Sampler
    draws: EpochOrders
    count: int
    times: int = 1

    def spans(self) -> list[Span]:
        """The batches of an epoch in which it does not begin again."""
        (full, last), size = self.sampler.batches(self.draws.n), self.sampler.batch_size
        stop = full * size + last
        return [(start, min(start + size, stop)) for start in range(0, stop, size)]

    def orders(self, epoch: int) -> tuple[np.ndarray, ...]:
        """The order of each stream; of several times, those rows of each that are in batches, one after the other."""
        if self.times == 1:
            return self._mixed(epoch)
        used = self.spans()[-1][1]
        several = [self._mixed(epoch * self.times + i) for i in range(self.times)]
        return tuple(np.concatenate([order[:used] for order in orders]) for orders in zip(*several, strict=True))

    def _mixed(self, epoch: int) -> tuple[np.ndarray, ...]:
        return _checked(self.sampler, self.draws.n, self.count, self.sampler.shuffled(self.draws, epoch))


def source_of(sampler: Sampler, rows: Mapping[str, Rows]) -> Source:
    """A sampler at work on some rows.

    Raises:
        SamplerError: nothing can be drawn from them, or no batch is full.
    """
    draws = sampler.epoch_orders(rows)
    sampler.batches(draws.n)
    return Source(sampler, draws, len(next(iter(rows.values()))))


class Drawing:
    """What the samplers of a TrainPhase draw from its rows.

    Args:
        label: of the phase.
        samplers: one for all feature sets, or one for each by its label; turns are taken in this order.
        schedule: how several take part in steps.
        rows: the data, by feature set.

    Attributes:
        uniform: full batches of an epoch, their size, and that of a last partial one, where each step takes the same
            of every set; else None.
        turns: what each step takes, where `uniform` is None.
        labels: of the feature sets.

    Raises:
        SamplerError: nothing can be drawn.
        PhaseError: several samplers have different numbers of batches, and the schedule wants equal ones.
    """

    def __init__(
        self, label: str, samplers: Sampler | Mapping[str, Sampler], schedule: str, rows: Mapping[str, Rows]
    ) -> None:
        self.turns: tuple[Turn, ...] = ()
        self.labels = tuple(rows)
        self._first: dict[Lane, np.ndarray] | None = None
        if isinstance(samplers, Sampler):
            self._sources = dict.fromkeys(rows, source_of(samplers, rows))
            full, last = samplers.batches(next(iter(self._sources.values())).draws.n)
            self.uniform: tuple[int, int, int] | None = (full, samplers.batch_size, last)
        else:
            self._sources = {name: source_of(one, {name: rows[name]}) for name, one in samplers.items()}
            spans = self._repeated(label, schedule)
            self.turns = tuple(_alternating(spans) if schedule.startswith("alternate") else _zipped(spans))
            self.uniform = _uniform(self.turns, len(rows))
        self._fixed = all(one.draws.fixed and not one.sampler.shuffle for one in self._sources.values())

    @property
    def steps(self) -> int:
        """How many an epoch has."""
        if self.uniform is None:
            return len(self.turns)
        full, _, last = self.uniform
        return full + (last > 0)

    @property
    def changing(self) -> int:
        """Rows that are drawn anew for every epoch; 0 where all epochs take the same."""
        return 0 if self._fixed else sum(source.draws.n * source.times for source in self._sources.values())

    def _repeated(self, label: str, schedule: str) -> dict[str, list[Span]]:
        """As many batches of every sampler: those that have fewer begin again, or are refused."""
        spans = {name: source.spans() for name, source in self._sources.items()}
        counts = {name: len(own) for name, own in spans.items()}
        most = max(counts.values())
        if schedule.endswith("strict") and min(counts.values()) < most:
            raise PhaseError(
                f"phase {label!r} takes its samplers by {schedule!r}, and they have different numbers of batches",
                available=", ".join(f"{name}: {count}" for name, count in counts.items()),
                hint=f"change batch sizes, or write schedule={schedule.replace('strict', 'cycle')!r}",
            )
        self._sources = {
            name: replace(source, times=-(-most // counts[name])) for name, source in self._sources.items()
        }
        return {name: list(itertools.islice(_again(own), most)) for name, own in spans.items()}

    def orders(self, epoch: int) -> dict[Lane, np.ndarray]:
        """The orders of an epoch (0 is the first) by feature set and stream; the first stream under `""` too.

        Where every epoch has the orders of the first, they are the same object.
        """
        if not self._fixed:
            return self._drawn(epoch)
        if self._first is None:
            self._first = self._drawn(0)
        return self._first

    def _drawn(self, epoch: int) -> dict[Lane, np.ndarray]:
        found: dict[Lane, np.ndarray] = {}
        drawn: dict[int, tuple[np.ndarray, ...]] = {}
        for name, source in self._sources.items():
            if id(source) not in drawn:
                drawn[id(source)] = source.orders(epoch)
            found.update(_lanes(name, source.sampler, drawn[id(source)]))
        return found


def in_order(samplers: Sampler | Mapping[str, Sampler], rows: Mapping[str, Rows]) -> dict[Lane, np.ndarray]:
    """What samplers draw in epoch 0, not shuffled, by feature set and stream: for evaluation.

    Raises:
        SamplerError: nothing can be drawn.
    """
    found: dict[Lane, np.ndarray] = {}
    groups = [(samplers, rows)] if isinstance(samplers, Sampler) else [(samplers[k], {k: rows[k]}) for k in samplers]
    for sampler, its in groups:
        draws = sampler.epoch_orders(its)
        streams = _checked(sampler, draws.n, len(next(iter(its.values()))), draws.orders(0))
        for name in its:
            found.update(_lanes(name, sampler, streams))
    return found


def _lanes(name: str, sampler: Sampler, streams: Sequence[np.ndarray]) -> dict[Lane, np.ndarray]:
    return {(name, ""): streams[0], **{(name, one): its for one, its in zip(sampler.streams, streams, strict=True)}}


def check_joints(
    label: str, turns: Iterable[Turn], joints: Sequence[tuple[str, frozenset[str]]], *, evaluated: bool = False
) -> None:
    """Make sure that what joins feature sets gets equally many rows of each in every step.

    Args:
        label: of the phase.
        turns: what each step takes.
        joints: what joins, for messages, and which feature sets.
        evaluated: whether rows are taken as they are; for the remedy.

    Raises:
        PhaseError: it does not.
    """
    for turn in turns:
        for what, sets in joints:
            sizes = {name: _size(turn.get(name)) for name in sorted(sets)}
            if len(set(sizes.values())) > 1 and any(sizes.values()):
                remedy = "give their samplers one batch size (and drop_last=True), and the data as many rows"
                remedy = remedy if all(sizes.values()) else "take them by schedule='zip_strict'"
                raise PhaseError(
                    f"phase {label!r}: {what} joins {' and '.join(sizes)}, of which a step takes different rows",
                    available=", ".join(f"{name}: {size or 'none'}" for name, size in sizes.items()),
                    hint="give the data of each as many rows" if evaluated else remedy,
                )


def _size(span: Span | None) -> int:
    return 0 if span is None else span[1] - span[0]


def _uniform(turns: Sequence[Turn], sets: int) -> tuple[int, int, int] | None:
    """See `Drawing.uniform`."""
    spans = [next(iter(turn.values())) for turn in turns]
    size, stop = spans[0][1], spans[-1][1]
    expected = [(start, min(start + size, stop)) for start in range(0, stop, size)]
    if spans != expected or any(len(turn) < sets or len(set(turn.values())) > 1 for turn in turns):
        return None
    return stop // size, size, stop % size


def _zipped(spans: Mapping[str, Sequence[Span]]) -> Iterator[Turn]:
    for together in zip(*spans.values(), strict=True):
        yield dict(zip(spans, together, strict=True))


def _alternating(spans: Mapping[str, Sequence[Span]]) -> Iterator[Turn]:
    for together in zip(*spans.values(), strict=True):
        yield from ({name: span} for name, span in zip(spans, together, strict=True))


def _again(spans: Sequence[Span]) -> Iterator[Span]:
    """The spans of orders that lie one after the other."""
    for times in itertools.count():
        shift = times * spans[-1][1]
        yield from ((start + shift, stop + shift) for start, stop in spans)


def _checked(sampler: Sampler, n: int, count: int, streams: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """The orders of a sampler, which may be anybody's.

    Raises:
        SamplerError: they are not what it promised, or name rows that are not there.
    """
    found = tuple(np.asarray(order) for order in streams)
    if [(len(order), order.ndim, order.dtype.kind) for order in found] != [(n, 1, "i")] * len(sampler.streams):
        raise SamplerError(
            f"{type(sampler).__name__} drew {', '.join(f'{o.dtype}{list(o.shape)}' for o in found) or 'nothing'}",
            available=f"streams {', '.join(sampler.streams)}, {n} rows of each",
            hint="let its draws give an order int64 [n] for each stream",
        )
    for stream, order in zip(sampler.streams, found, strict=True):
        if order.min() < 0 or order.max() >= count:  # some frameworks would clip it, and nobody know
            strange = order.min() if order.min() < 0 else order.max()
            raise SamplerError(f"{type(sampler).__name__} drew row {strange} for {stream!r}", available=f"{count} rows")
    return found
