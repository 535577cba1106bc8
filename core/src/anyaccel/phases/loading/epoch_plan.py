"""Passes over the rows of a phase: what each step takes, in which order, and the same in pieces, one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from anyaccel.phases.loading.epoch_batches import Lane, Span, Turn


@dataclass(frozen=True, slots=True)
class Stretch:
    """Steps of one size, one after the other: `count` of `size` rows each, from row `start` of every order on.

    `piece` is how many rows are computed at once where a step is several batches; else None.
    """

    start: int
    count: int
    size: int
    piece: int | None = None

    @property
    def stop(self) -> int:
        """The row after the last."""
        return self.start + self.count * self.size

    def first(self, count: int) -> Stretch:
        """Its first steps."""
        return replace(self, count=count)

    def without(self, count: int) -> Stretch:
        """What is left without its first steps."""
        return replace(self, start=self.start + count * self.size, count=self.count - count)


Work = Stretch | Turn
"""Steps of one size that take the same of every feature set, or one step that takes what it says."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass over the rows: what an epoch, or an evaluation, takes.

    Attributes:
        sets: labels of the feature sets.
        works: its steps.
        orders: for each lane the rows in the order in which they are taken; lanes that have none go as they lie.
    """

    sets: tuple[str, ...]
    works: tuple[Work, ...]
    orders: Mapping[Lane, np.ndarray]

    @property
    def steps(self) -> int:
        """How many there are."""
        return sum(steps_of(work) for work in self.works)

    def without(self, done: int) -> Pass:
        """What is left without its first steps."""
        return replace(self, works=tuple(_without(self.works, done)))

    def parted(self, most: int) -> Pass:
        """The same rows in more steps: those that are turns take at most so many rows of each feature set."""
        return replace(self, works=tuple(part for work in self.works for part in parts_of(work, most)))

    def cut(self, most: int) -> Iterator[Cut]:
        """Pieces of at most `most` steps; a single step of another size goes with those before it."""
        block: list[Work] = []
        for work in _broken(self.works, most):
            if block and _steps(block) + steps_of(work) > most and not _is_tail(work, block):
                yield self._cut(block)
                block = []
            block.append(work)
        if block:
            yield self._cut(block)

    def _cut(self, works: list[Work]) -> Cut:
        spans = _hulls(works, self.sets)
        orders = {lane: order[slice(*spans[lane[0]])] for lane, order in self.orders.items() if lane[0] in spans}
        return Cut(tuple(_shifted(work, spans) for work in works), spans, orders)


@dataclass(frozen=True, slots=True)
class Cut:
    """Some steps of a pass: `works` count from the first row of the piece, `spans` say which rows these are."""

    works: tuple[Work, ...]
    spans: Mapping[str, Span]
    orders: Mapping[Lane, np.ndarray]


def steps_of(work: Work) -> int:
    """How many steps it is."""
    return work.count if isinstance(work, Stretch) else 1


def parts_of(work: Work, most: int) -> Iterator[Work]:
    """A turn in parts of at most so many rows of each feature set that has some left; a stretch as it is."""
    if isinstance(work, Stretch):
        yield work
        return
    for low in range(0, max(stop - start for start, stop in work.values()), most):
        yield {
            name: (start + low, min(start + low + most, stop))
            for name, (start, stop) in work.items()
            if start + low < stop
        }


def _steps(works: Iterable[Work]) -> int:
    return sum(steps_of(work) for work in works)


def _without(works: Iterable[Work], done: int) -> Iterator[Work]:
    for work in works:
        here = min(done, steps_of(work))
        done -= here
        if here == 0:
            yield work
        elif isinstance(work, Stretch) and here < work.count:
            yield work.without(here)


def _broken(works: Iterable[Work], most: int) -> Iterator[Work]:
    for work in works:
        if not isinstance(work, Stretch):
            yield work
            continue
        for done in range(0, work.count, most):
            yield work.without(done).first(min(most, work.count - done))


def _is_tail(work: Work, block: list[Work]) -> bool:
    """Whether it is the last, smaller batch of an epoch: a block of its own would have a shape of its own."""
    return (
        isinstance(work, Stretch)
        and work.count == 1
        and all(isinstance(one, Stretch) and one.size > work.size for one in block)
    )


def _hulls(works: Iterable[Work], sets: Iterable[str]) -> dict[str, Span]:
    """The rows from the first to the last that some steps take, by feature set."""
    found: dict[str, Span] = {}
    for work in works:
        taken = dict.fromkeys(sets, (work.start, work.stop)) if isinstance(work, Stretch) else work
        for name, (start, stop) in taken.items():
            low, high = found.get(name, (start, stop))
            found[name] = (min(low, start), max(high, stop))
    return found


def _shifted(work: Work, spans: Mapping[str, Span]) -> Work:
    if isinstance(work, Stretch):
        return replace(work, start=work.start - next(iter(spans.values()))[0])
    return {name: (start - spans[name][0], stop - spans[name][0]) for name, (start, stop) in work.items()}
