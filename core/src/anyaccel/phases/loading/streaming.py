"""Streamed rows: gathered in host memory and sent ahead of the compute, block by block, by a thread."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np

from anyaccel.backend import AsyncCopy, ComputingBackend
from anyaccel.data.column_copy import gather
from anyaccel.device import Device
from anyaccel.graph import Column
from anyaccel.phases.loading.device_columns import Feed
from anyaccel.phases.loading.epoch_batches import Lane, Span
from anyaccel.phases.loading.epoch_plan import Cut, Pass
from anyaccel.phases.loading.loader import Order, Passes, Portion, Supply, foresee
from anyaccel.phases.loading.prefetch import ahead
from anyaccel.registry import registry

BLOCKS = 3
"""Blocks that are on a device at once: one is computed, one waits, one is on its way."""
SLOTS = 2
"""Host buffers for each column: one is filled while the other is read."""


@dataclass(slots=True)
class _Carried:
    """A column as it is streamed; `names` are all values that have the same rows."""

    names: tuple[str, ...]
    lane: Lane
    array: np.ndarray
    backend: ComputingBackend
    device: Device

    def buffer(self, rows: int) -> np.ndarray:
        """Host memory for so many rows."""
        return self.backend.staging_buffer((rows, *self.array.shape[1:]), str(self.array.dtype), self.device)


@dataclass(slots=True)
class _Slot:
    """A host buffer for each column by its first name, and what was sent from them and may still be being read."""

    buffers: dict[str, np.ndarray]
    sent: list[AsyncCopy] = field(default_factory=list)

    def free(self) -> None:
        for one in self.sent:
            one.source_reusable()
        self.sent = []


class Streamed(Supply):
    """Rows in host memory, on their devices only while they are computed.

    Every block has the same shape, so that nothing is compiled for it alone: the last one ends in rows of no meaning,
    which no step takes.

    Args:
        columns: what is loaded.
        arrays: in host memory, by value name, in the form in which they are loaded.
        passes: what an epoch of a number takes.
        steps: of an epoch.
        most: steps in one block.
        whole: whether steps must be taken as a whole; else a block may be a part of one.
    """

    residency = "streamed"

    def __init__(
        self,
        columns: Sequence[Column],
        arrays: Mapping[str, np.ndarray],
        passes: Passes,
        steps: int,
        most: int,
        whole: bool = True,
    ) -> None:
        self.steps: int | None = steps
        self._passes = passes
        self._most = most
        self._whole, self._part = whole, 0
        self._early = True
        self._lanes = {one.name: (one.feature_set, one.stream) for one in columns}
        self._carried = list(_carried(columns, arrays))
        self._orders: Any = None
        self._rows = 0
        self._slots: list[_Slot] = []

    def portions(self, number: int, done: int, order: Order) -> Generator[Portion]:
        """Blocks of whole steps, made ahead."""
        left = self._passes(number).without(done)
        if self._part:
            left = left.parted(self._part)
        self._prepare(left, order)
        slots, self._slots = self._slots, []  # of this thread alone: one that is slow to end may still write to its own
        make = partial(self._blocks, left, slots)
        with closing(ahead(make) if self._early else make()) as blocks:
            for cut, sent in blocks:
                feed = Feed(arrived(sent), self._lanes)
                del sent
                yield Portion(feed, self._orders, cut.works, cut.orders)
                del feed

    def shrink(self) -> bool:
        """Blocks of a quarter of the steps; when there is one step in a block, one block at a time."""
        if self._most == 1 and not self._early:
            return False
        self._early = self._most > 1
        self._most = max(1, self._most // 4)
        self.close()
        return True

    def part(self, most: int) -> None:
        """As of `Supply`."""
        if not self._whole:
            self._part = most
            self.close()

    def foresee(self, number: int | None) -> None:
        """As of `Supply`."""
        foresee(self._passes, number)

    def close(self) -> None:
        """As of `Supply`."""
        self._orders, self._rows, self._slots = None, 0, []

    def _prepare(self, left: Pass, order: Order) -> None:
        """Orders for the largest block, and buffers, once: rows of a block lie in the order in which they are taken."""
        rows = max((stop - start for cut in left.cut(self._most) for start, stop in cut.spans.values()), default=0)
        if self._orders is None or rows > self._rows:
            self._rows, self._slots = rows, []
            straight = np.arange(rows, dtype=np.int64)
            empty = Feed(dict.fromkeys(self._lanes), self._lanes)
            self._orders = order(empty, dict.fromkeys(self._lanes.values(), straight))
        if not self._slots:
            self._slots = [self._slot() for _ in range(SLOTS if self._early else 1)]

    def _slot(self) -> _Slot:
        return _Slot({one.names[0]: one.buffer(self._rows) for one in self._carried})

    def _blocks(self, left: Pass, slots: list[_Slot]) -> Generator[tuple[Cut, dict[str, AsyncCopy]]]:
        rows = self._rows
        try:
            for cut, slot in zip(left.cut(self._most), cycle(slots), strict=False):
                slot.free()
                sent = self._sent(cut, slot)
                yield cut, sent
                del sent
        finally:
            for slot in slots:
                slot.free()
            if rows == self._rows:  # they are used again
                self._slots = slots

    def _sent(self, cut: Cut, slot: _Slot) -> dict[str, AsyncCopy]:
        self.fill(cut, slot.buffers)
        found: dict[str, AsyncCopy] = {}
        for one in self._carried:
            sent = one.backend.copy_async(slot.buffers[one.names[0]], one.device)
            slot.sent.append(sent)
            found.update(dict.fromkeys(one.names, sent))
        return found

    def fill(self, cut: Cut, buffers: Mapping[str, np.ndarray]) -> None:
        """Put the rows of a block into buffers, in front; nothing where no step of it takes any of a feature set."""
        for one in self._carried:
            span = cut.spans.get(one.lane[0])
            if span is not None:
                _fill(one.array, buffers[one.names[0]], span, cut.orders.get(one.lane))


def arrived(sent: Mapping[str, AsyncCopy]) -> dict[str, Any]:
    """The tensors that were sent, by name of value; what is asked of their devices from now on waits for them."""
    for one in sent.values():
        one.wait()
    return {name: one.tensor for name, one in sent.items()}


def _fill(array: np.ndarray, buffer: np.ndarray, span: Span, order: np.ndarray | None) -> None:
    start, stop = span
    if order is None:
        np.copyto(buffer[: stop - start], array[start:stop])
    else:
        gather(array, order, buffer[: stop - start])


def _carried(columns: Sequence[Column], arrays: Mapping[str, np.ndarray]) -> list[_Carried]:
    """Columns, each with all names that have its array, lane and place."""
    found: dict[tuple[int, Lane, str, Device], _Carried] = {}
    for column in columns:
        lane = (column.feature_set, column.stream)
        key = (id(arrays[column.name]), lane, column.framework, column.device)
        if key in found:
            found[key].names += (column.name,)
            continue
        backend = registry().computing(column.framework, column.device.kind)
        found[key] = _Carried((column.name,), lane, arrays[column.name], backend, column.device)
    return list(found.values())
