"""Rows of a source: batches as it gives them, or items as samplers draw them, on devices while they are needed."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice
from typing import Any, ClassVar

import numpy as np

from anyaccel.backend import AsyncCopy, ComputingBackend
from anyaccel.data import BatchSource, MapSource
from anyaccel.data.streaming.source_errors import BatchPosition, error_context
from anyaccel.errors import SourceError
from anyaccel.graph import Column
from anyaccel.phases.loading.device_columns import Feed
from anyaccel.phases.loading.epoch_plan import Cut, Stretch
from anyaccel.phases.loading.forming import Batch, formed
from anyaccel.phases.loading.loader import Order, Passes, Portion, Supply
from anyaccel.phases.loading.prefetch import ahead
from anyaccel.phases.loading.streaming import SLOTS, Streamed, arrived
from anyaccel.registry import registry

BLOCK_SECONDS = 0.05
"""A block is handed over after so long, however little it holds: the device must not wait for a slow source."""


@dataclass(slots=True)
class _Slot:
    """Host memory for one block, with the number of classes, and what was sent from it and may still be being read."""

    columns: list[tuple[Column, np.ndarray, int | None]] = field(default_factory=list)
    capacity: int = 0
    sent: list[AsyncCopy] = field(default_factory=list)

    def free(self) -> None:
        for one in self.sent:
            one.source_reusable()
        self.sent = []


@dataclass(slots=True)
class _Block:
    """Batches that are together on their devices: how many rows each has, and how many all columns have."""

    sizes: list[int]
    rows: int
    sent: dict[str, AsyncCopy]


class Sourced(Supply):
    """The batches of a source, several in one block.

    A block holds whole steps: as many as come within `BLOCK_SECONDS` and fit into its bytes, at least one; the first
    holds one, so that something is computed while the pace of the source is learnt. Columns have as many rows as the
    largest block had so far, so that few shapes are ever compiled.

    Args:
        columns: what is loaded, all of the source.
        source: gives the batches.
        classes: for columns of class indices, the number of classes, by value name.
        accumulate: batches for one step.
        block_bytes: of a block, at most, unless one step has more.
    """

    residency = "streamed"
    repeats: ClassVar[bool] = False

    def __init__(
        self,
        columns: Sequence[Column],
        source: BatchSource,
        classes: Mapping[str, int],
        accumulate: int,
        block_bytes: int,
    ) -> None:
        each = source.steps
        self.steps = None if each is None else -(-each // accumulate)
        self._columns = tuple(columns)
        self._source, self._classes, self._accumulate = source, classes, accumulate
        self._row = max(sum(column.spec.nbytes for column in columns), 1)
        self._block_bytes = block_bytes
        self._lanes = {one.name: (one.feature_set, one.stream) for one in columns}
        self._backends = {one.name: _backend(one) for one in columns}
        self._capacity = 0
        self._slots: list[_Slot] = []
        self._orders: Any = None
        self._ordered = 0
        self._begun: int | None = None
        self._first = True

    def portions(self, number: int, done: int, order: Order) -> Generator[Portion]:
        """Blocks of batches, made ahead; steps that are done are read once more, and left out."""
        slots, self._slots = self._slots or [_Slot() for _ in range(SLOTS)], []  # of this thread alone, as of Streamed
        again, self._begun = self._begun == number, number
        with closing(ahead(partial(self._blocks, number, done, slots, again))) as blocks:
            for block in blocks:
                feed = Feed(arrived(block.sent), self._lanes)
                works, rows = tuple(_works(block.sizes, self._accumulate)), block.rows
                del block
                yield Portion(feed, self._straight(feed, rows, order), works, {})
                del feed

    def shrink(self) -> bool:
        """Blocks of one step."""
        had, self._block_bytes = self._block_bytes, 0
        self._capacity, self._slots, self._orders = 0, [], None
        return had > 0

    def close(self) -> None:
        """As of `Supply`."""
        self._slots, self._orders = [], None
        self._source.close()

    def _straight(self, feed: Feed, rows: int, order: Order) -> Any:
        """Rows of a block lie in the order in which they are taken."""
        if self._orders is None or rows != self._ordered:
            self._ordered = rows
            self._orders = order(feed, dict.fromkeys(self._lanes.values(), np.arange(rows, dtype=np.int64)))
        return self._orders

    def _blocks(self, number: int, done: int, slots: list[_Slot], again: bool) -> Generator[_Block]:
        most = self._block_bytes
        try:
            with closing(self._opened(number, again)) as batches:
                left = islice(enumerate(batches), done * self._accumulate, None)
                for slot in cycle(slots):
                    slot.free()
                    sizes = self._filled(slot, left, number)
                    if not sizes:
                        break
                    yield self._sent(slot, sizes)
                    self._first = False
        finally:
            for slot in slots:
                slot.free()
            if most == self._block_bytes:  # they are used again
                self._slots = slots

    def _opened(self, number: int, again: bool) -> Generator[Batch]:
        try:
            return self._source.batches(number)
        except SourceError as error:
            if not again:
                raise
            raise SourceError(
                f"epoch {number} was to begin again, as memory ran out, and {error.problem}",
                available=error.available,
                hint=error.hint,
            ) from error

    def _filled(self, slot: _Slot, batches: Iterable[tuple[int, Batch]], number: int) -> list[int]:
        """Put batches into a slot until it is full, or time is over; how many rows each has."""
        sizes: list[int] = []
        start, began = 0, time.perf_counter()
        for position, batch in batches:
            size = len(next(iter(batch.values())))
            if start + size > slot.capacity or slot.capacity < self._capacity:
                self._make_room(slot, start, size)
            with error_context(BatchPosition(self._source.label, number, position)):
                for column, buffer, classes in slot.columns:
                    formed(column, batch, buffer[start : start + size], classes)
            sizes.append(size)
            start += size
            if len(sizes) % self._accumulate:  # in the middle of a step
                continue
            if not self._goes_on(start, sum(sizes[-self._accumulate :]), slot.capacity, time.perf_counter() - began):
                break
        return sizes

    def _goes_on(self, filled: int, step: int, capacity: int, seconds: float) -> bool:
        """Whether a block takes another step, if that is like the last; what makes buffers grow has to come fast."""
        rows = filled + step
        if self._first or rows * self._row > self._block_bytes:
            return False
        return seconds < (BLOCK_SECONDS if rows <= capacity else BLOCK_SECONDS / 2)

    def _make_room(self, slot: _Slot, filled: int, size: int) -> None:
        """Buffers for some rows more, which take over those that are there; twice as large where they grow."""
        if filled + size > self._capacity:
            self._capacity = max(filled + size, min(2 * self._capacity, self._block_bytes // self._row))
        old, slot.columns, slot.capacity = slot.columns, [], self._capacity
        for number, one in enumerate(self._columns):
            shape = (self._capacity, *one.spec.shape)
            buffer = self._backends[one.name].staging_buffer(shape, one.spec.dtype, one.device)
            if filled:
                buffer[:filled] = old[number][1][:filled]
            slot.columns.append((one, buffer, self._classes.get(one.name)))

    def _sent(self, slot: _Slot, sizes: list[int]) -> _Block:
        found: dict[str, AsyncCopy] = {}
        for one, buffer, _ in slot.columns:
            found[one.name] = self._backends[one.name].copy_async(buffer, one.device)
            slot.sent.append(found[one.name])
        return _Block(sizes, slot.capacity, found)


class Repeated(Sourced):
    """The batches of a source that gives the same ones whenever it is asked for an epoch."""

    repeats = True


def _works(sizes: Sequence[int], accumulate: int) -> Iterator[Stretch]:
    """Steps of so many batches; equal ones that follow each other are one stretch."""
    last: Stretch | None = None
    for first in range(0, len(sizes), accumulate):
        its = sizes[first : first + accumulate]
        step = Stretch(0 if last is None else last.stop, 1, sum(its), max(its) if accumulate > 1 else None)
        if last is not None and (last.size, last.piece) == (step.size, step.piece):
            last = last.first(last.count + 1)
            continue
        if last is not None:
            yield last
        last = step
    if last is not None:
        yield last


def _backend(column: Column) -> ComputingBackend:
    return registry().computing(column.framework, column.device.kind)


class ItemsStreamed(Streamed):
    """Items of a data set, read as samplers draw them, block by block.

    Args:
        columns: what is loaded, all of the source.
        source: gives the items.
        classes: for columns of class indices, the number of classes, by value name.
        passes, steps, most: as of `Streamed`.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        source: MapSource,
        classes: Mapping[str, int],
        passes: Passes,
        steps: int,
        most: int,
    ) -> None:
        shapes = {one.name: np.empty((0, *one.spec.shape), one.spec.dtype) for one in columns}
        super().__init__(columns, shapes, passes, steps, most)
        self._columns = {one.name: one for one in columns}
        self._source, self._classes = source, classes

    def fill(self, cut: Cut, buffers: Mapping[str, np.ndarray]) -> None:
        """Read the rows of a block; what several streams draw is read for each."""
        for lane in dict.fromkeys((column.feature_set, column.stream) for column in self._columns.values()):
            order = cut.orders[lane]
            batch = self._source.gather(order)
            for name, buffer in buffers.items():
                column = self._columns[name]
                if (column.feature_set, column.stream) == lane:
                    with error_context(f"source {self._source.label!r}"):
                        formed(column, batch, buffer[: len(order)], self._classes.get(name))
