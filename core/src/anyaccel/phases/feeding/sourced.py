"""Rows of a source: batches as it gives them, or items as samplers draw them, on devices while they are needed."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np

from anyaccel.backend import ComputingBackend, Sent
from anyaccel.data import BatchSource, Items
from anyaccel.graph import Column
from anyaccel.phases import loading
from anyaccel.phases.feeding.ahead import ahead
from anyaccel.phases.feeding.course import Cut, Stretch
from anyaccel.phases.feeding.streamed import SLOTS, Streamed
from anyaccel.phases.feeding.supply import Courses, Order, Portion, Supply
from anyaccel.phases.loading import Feed
from anyaccel.registry import registry

Batch = Mapping[str, np.ndarray]
"""Arrays in host memory by name of column."""


def formed(column: Column, batch: Batch, out: np.ndarray, classes: int | None) -> None:
    """Put the rows of a batch into memory as the plan loads them: joined, cast and shaped.

    Raises:
        ColumnError: class indices out of range.
    """
    start = 0
    for name in column.columns:
        part = batch[name]
        if len(column.columns) == 1:
            np.copyto(out, part.reshape(out.shape), casting="same_kind")
            break
        part = part[:, None] if part.ndim == 1 else part
        np.copyto(out[..., start : start + part.shape[-1]], part, casting="same_kind")
        start += part.shape[-1]
    if classes is not None:
        loading.check_classes(column, out, classes)


@dataclass(slots=True)
class _Buffers:
    """Host memory for one block, and what was sent from it and may still be being read."""

    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    sent: list[Sent] = field(default_factory=list)

    def free(self) -> None:
        for one in self.sent:
            one.read()
        self.sent = []


@dataclass(slots=True)
class _Block:
    """Batches that are together: how many rows each, and all."""

    sizes: list[int] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(self.sizes)


class Sourced(Supply):
    """The batches of a source, several in one block while they are of one size.

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
        self._rows, self._orders = 0, None

    def portions(self, number: int, done: int, order: Order) -> Generator[Portion]:
        """Blocks of batches, made ahead; steps that are done are read once more, and left out."""
        with closing(ahead(partial(self._blocks, number, done))) as blocks:
            for works, sent in blocks:
                for one in sent.values():
                    one.arrive()
                feed = Feed({name: one.tensor for name, one in sent.items()}, self._lanes)
                rows = max(work.stop for work in works)
                del sent, one
                yield Portion(feed, self._straight(feed, rows, order), works, {})
                del feed

    def shrink(self) -> bool:
        """Blocks of one step."""
        had, self._block_bytes = self._block_bytes, 0
        return had > 0

    def close(self) -> None:
        """As of `Supply`."""
        self._orders = None
        self._source.close()

    def _straight(self, feed: Feed, rows: int, order: Order) -> Any:
        """Rows of a block lie in the order in which they are taken."""
        if self._orders is None or rows > self._rows:
            self._rows = rows
            self._orders = order(feed, dict.fromkeys(self._lanes.values(), np.arange(rows, dtype=np.int64)))
        return self._orders

    def _blocks(self, number: int, done: int) -> Generator[tuple[tuple[Stretch, ...], dict[str, Sent]]]:
        slots, turn = [_Buffers() for _ in range(SLOTS)], 0
        try:
            with closing(self._source.batches(number)) as batches:
                for block in self._together(batches, done):
                    slots[turn].free()
                    works, sent = self._sent(block, slots[turn])
                    slots[turn].sent = list(sent.values())
                    turn = (turn + 1) % SLOTS
                    yield works, sent
                    del sent, block
        finally:
            for slot in slots:
                slot.free()

    def _together(self, batches: Generator[Batch], done: int) -> Generator[list[Batch]]:
        """Batches of one size, whole steps of them, as many as a block holds; others by themselves."""
        block: list[Batch] = []
        for position, batch in enumerate(batches):
            if position < done * self._accumulate:
                continue
            if block and not self._fits(block, batch):
                yield block
                block = []
            block.append({name: np.array(column) for name, column in batch.items()})  # a source may use it again
        if block:
            yield block

    def _fits(self, block: list[Batch], batch: Batch) -> bool:
        if len(block) % self._accumulate:  # in the middle of a step
            return True
        size, sizes = _size(batch), {_size(one) for one in block}
        return sizes == {size} and (len(block) + self._accumulate) * size * self._row <= self._block_bytes

    def _sent(self, block: list[Batch], slot: _Buffers) -> tuple[tuple[Stretch, ...], dict[str, Sent]]:
        sizes = [_size(batch) for batch in block]
        self._fill(block, sum(sizes), slot)
        found = {one.name: self._backends[one.name].send(slot.arrays[one.name], one.device) for one in self._columns}
        return tuple(_works(sizes, self._accumulate)), found

    def _fill(self, block: list[Batch], rows: int, slot: _Buffers) -> None:
        for column in self._columns:
            buffer = slot.arrays.get(column.name)
            if buffer is None or len(buffer) < rows:
                shape = (rows, *column.spec.shape)
                buffer = slot.arrays[column.name] = self._backends[column.name].buffer(
                    shape, column.spec.dtype, column.device
                )
            start = 0
            for batch in block:
                stop = start + _size(batch)
                formed(column, batch, buffer[start:stop], self._classes.get(column.name))
                start = stop


def _works(sizes: Sequence[int], accumulate: int) -> list[Stretch]:
    """Steps of so many batches; equal ones that follow each other are one stretch."""
    works: list[Stretch] = []
    start = 0
    for first in range(0, len(sizes), accumulate):
        its = sizes[first : first + accumulate]
        step = Stretch(start, 1, sum(its), max(its) if accumulate > 1 else None)
        last = works[-1] if works else None
        if last is not None and (last.size, last.piece) == (step.size, step.piece):
            works[-1] = Stretch(last.start, last.count + 1, last.size, last.piece)
        else:
            works.append(step)
        start = step.stop
    return works


def _size(batch: Batch) -> int:
    return len(next(iter(batch.values())))


def _backend(column: Column) -> ComputingBackend:
    return registry().computing(column.framework, column.device.kind)


class ItemsStreamed(Streamed):
    """Items of a data set, read as samplers draw them, block by block.

    Args:
        columns: what is loaded, all of the source.
        source: gives the items.
        classes: for columns of class indices, the number of classes, by value name.
        course, steps, most: as of `Streamed`.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        source: Items,
        classes: Mapping[str, int],
        course: Courses,
        steps: int,
        most: int,
    ) -> None:
        shapes = {one.name: np.empty((0, *one.spec.shape), one.spec.dtype) for one in columns}
        super().__init__(columns, shapes, course, steps, most)
        self._columns = {one.name: one for one in columns}
        self._source, self._classes = source, classes

    def fill(self, cut: Cut, buffers: Mapping[str, np.ndarray]) -> None:
        """Read the rows of a block; what several streams draw is read for each."""
        for stream in {column.stream for column in self._columns.values()}:
            order = cut.orders[self._source.label, stream]
            batch = self._source.gather(order)
            for name, buffer in buffers.items():
                column = self._columns[name]
                if column.stream == stream:
                    formed(column, batch, buffer[: len(order)], self._classes.get(name))
