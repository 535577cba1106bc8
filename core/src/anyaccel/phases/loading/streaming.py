"""Streaming: rows in host memory, gathered and copied to their devices block by block, ahead of the compute."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np

from anyaccel.backend import AsyncCopy, ComputingBackend
from anyaccel.device import Device
from anyaccel.graph import Column
from anyaccel.phases.loading.epoch_plan import EpochPlan, EpochSteps, RowSpan, StepBlock, StreamKey
from anyaccel.phases.loading.host_columns import HostColumn, batch_shape, copy_rows, one_shape
from anyaccel.phases.loading.loader import BatchLoader, Chunk, load_orders, stream_of, with_orders
from anyaccel.phases.loading.prefetch import prefetch

BLOCKS = 3
"""Blocks that are on a device at once: one is computed, one waits, one is on its way."""
BUFFERS = 2
"""Host buffers for each column: one is filled while the other is read."""


@dataclass(slots=True)
class _StreamedColumn:
    """A streamed column; `names` are all values that have the same rows."""

    names: tuple[str, ...]
    stream: StreamKey
    array: HostColumn
    backend: ComputingBackend
    device: Device

    def buffer(self, n_rows: int) -> np.ndarray:
        """Allocate host memory for `n_rows` rows."""
        shape = batch_shape(self.array, n_rows)
        return self.backend.staging_buffer(shape, str(self.array.dtype), self.device)

    def part(self, buffers: dict[str, np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
        """Return the beginning of its buffer in this shape; the buffer grows where it is too small."""
        size, flat = math.prod(shape), buffers[self.names[0]].reshape(-1)
        if flat.size < size:
            flat = buffers[self.names[0]] = self.backend.staging_buffer((size,), str(flat.dtype), self.device)
        return flat[:size].reshape(shape)


@dataclass(frozen=True, slots=True)
class _OrderColumn:
    """The row numbers of a block in resident columns; `names` are the orders of these columns."""

    names: tuple[str, ...]
    stream: StreamKey
    backend: ComputingBackend
    device: Device

    def buffer(self, n_rows: int) -> np.ndarray:
        """Allocate host memory for `n_rows` row numbers."""
        return self.backend.staging_buffer((n_rows,), self.backend.index_dtype, self.device)

    def fill(self, buffer: np.ndarray, block: StepBlock) -> None:
        """Write the rows of a block, followed by row 0, which no step takes."""
        start, stop = block.spans.get(self.stream[0], (0, 0))
        order = block.orders.get(self.stream)
        buffer[: stop - start] = np.arange(start, stop) if order is None else order
        buffer[stop - start :] = 0


@dataclass(slots=True)
class CopiedBuffers:
    """Host memory for one block, and the copies that may still read from it."""

    copies: list[AsyncCopy] = field(default_factory=list)

    def wait(self) -> None:
        """Wait until it may be written to again."""
        for copy in self.copies:
            copy.source_reusable()
        self.copies = []


@dataclass(slots=True)
class _Buffers(CopiedBuffers):
    """A host buffer for each column, by its first name."""

    arrays: dict[str, np.ndarray] = field(default_factory=dict)


class StreamingLoader(BatchLoader):
    """Keep rows in host memory, and on their devices only while they are computed.

    Every block has the same shape, so that nothing is compiled for a single block: the last one ends in rows without
    meaning, which no step takes. If rows differ in length, a block is one step, padded to its longest row.

    Args:
        columns: Columns of the plan.
        arrays: Their rows in host memory as loaded, by value name.
        plan: Plan of the epochs.
        block_steps: Maximum number of steps in one block.
        resident: Columns that are whole on their devices, by value name; only the order of their rows is streamed.
    """

    residency = "streamed"

    def __init__(
        self,
        columns: Sequence[Column],
        arrays: Mapping[str, HostColumn],
        plan: EpochPlan,
        block_steps: int,
        resident: Mapping[str, Any] | None = None,
    ) -> None:
        self.n_steps: int | None = plan.n_steps
        self._columns, self._plan = tuple(columns), plan
        self.one_shape = one_shape(columns)
        self._alone = not self.one_shape  # each step in a block of its own
        self._block_steps = 1 if self._alone else block_steps
        self._max_rows = 0
        self._ahead = True
        self._resident: Mapping[str, Any] = resident or {}
        streamed = [column for column in columns if column.name not in self._resident]
        distinct: dict[tuple[int, StreamKey, str, Device], _StreamedColumn] = {}
        for column in streamed:
            stream, array = stream_of(column), arrays[column.name]
            key = (id(array), stream, column.framework, column.device)
            if key in distinct:
                distinct[key].names += (column.name,)
            else:
                distinct[key] = _StreamedColumn((column.name,), stream, array, column.backend, column.device)
        self._streamed = list(distinct.values())
        self._order_columns = _order_columns([column for column in columns if column.name in self._resident])
        self._copied_columns: list[_StreamedColumn | _OrderColumn] = [*self._streamed, *self._order_columns]
        self._orders: dict[str, Any] = {}
        self._block_rows = 0
        self._buffers: list[_Buffers] = []

    def chunks(self, epoch: int, start_step: int = 0) -> Generator[Chunk]:
        """Yield blocks of whole steps, prepared ahead."""
        steps = self._plan.epoch(epoch).skip(start_step)
        if self._max_rows:
            steps = steps.split(self._max_rows)
        self._allocate(steps)
        buffers, self._buffers = self._buffers, []  # of this thread alone: a slow one may still write to its own
        make = partial(self._blocks, steps, buffers)
        with closing(prefetch(make) if self._ahead else make()) as blocks:
            for block, copies in blocks:
                tensors = arrived(copies)
                orders = {name: tensors.pop(_order_of(name)) for name in self._resident}
                columns = with_orders(self._columns, {**tensors, **self._resident}, {**self._orders, **orders})
                del tensors, orders
                del copies
                yield Chunk(columns, block.steps, block.orders)
                del columns

    def shrink(self) -> bool:
        """Use blocks of a quarter of the steps; once a block is a single step, load one block at a time."""
        if self._block_steps == 1 and not self._ahead:
            return False
        self._ahead = self._block_steps > 1
        self._block_steps = max(1, self._block_steps // 4)
        self._begin_anew()
        return True

    def limit_rows(self, max_rows: int) -> None:
        if self._plan.splittable:
            self._max_rows = max_rows
            self._begin_anew()

    def prefetch(self, epoch: int | None) -> None:
        self._plan.prefetch(epoch)

    def close(self) -> None:
        self._begin_anew()
        self._resident = {}

    def _begin_anew(self) -> None:
        self._orders, self._block_rows, self._buffers = {}, 0, []

    def _allocate(self, steps: EpochSteps) -> None:
        """Allocate buffers and row orders for the largest block, once: rows of a block are in the order of the
        steps.
        """
        blocks = self._split(steps)
        n_rows = max((stop - start for block in blocks for start, stop in block.spans.values()), default=0)
        if not self._orders or n_rows > self._block_rows:
            self._block_rows, self._buffers = n_rows, []
            as_they_lie = np.arange(n_rows, dtype=np.int64)
            streamed = [column for column in self._columns if column.name not in self._resident]
            self._orders = load_orders(streamed, dict.fromkeys(map(stream_of, streamed), as_they_lie))
        if not self._buffers:
            made: list[_Buffers] = []  # all or none, as memory may be short for the second
            for _ in range(BUFFERS if self._ahead else 1):
                arrays = {column.names[0]: column.buffer(self._block_rows) for column in self._copied_columns}
                made.append(_Buffers(arrays=arrays))
            self._buffers = made

    def _split(self, steps: EpochSteps) -> Iterator[StepBlock]:
        return steps.single_steps() if self._alone else steps.blocks(self._block_steps)

    def _blocks(self, steps: EpochSteps, buffers: list[_Buffers]) -> Generator[tuple[StepBlock, dict[str, AsyncCopy]]]:
        n_rows = self._block_rows
        try:
            for block, buffer in zip(self._split(steps), cycle(buffers), strict=False):
                buffer.wait()
                filled = self.fill(block, buffer.arrays)
                copies: dict[str, AsyncCopy] = {}
                for column in self._copied_columns:
                    buffer.copies.append(column.backend.copy_async(filled[column.names[0]], column.device))
                    copies.update(dict.fromkeys(column.names, buffer.copies[-1]))
                del filled
                yield block, copies
                del copies
        finally:
            for buffer in buffers:
                buffer.wait()
            if n_rows == self._block_rows:  # they are used again
                self._buffers = buffers

    def fill(self, block: StepBlock, buffers: dict[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Put the rows of a block at the start of the buffers, and return the arrays to copy, by column.

        Rows of feature sets that no step of the block takes are left out.
        """
        filled = dict(buffers)
        for column in self._streamed:
            name, array = column.names[0], column.array
            span, order = block.spans.get(column.stream[0]), block.orders.get(column.stream)
            if not self.one_shape:
                together = block.whole.get(column.stream, (order, 0))[0]
                shape = batch_shape(array, self._block_rows, _rows_of(span or (0, 0), together))
                filled[name] = column.part(buffers, shape)
            if span is not None:
                copy_rows(array, _rows_of(span, order), filled[name][: span[1] - span[0]])
        for orders in self._order_columns:
            orders.fill(filled[orders.names[0]], block)
        return filled


def arrived(copies: Mapping[str, AsyncCopy]) -> dict[str, Any]:
    """The tensors of copies that are under way, by value name; work on their devices from now on waits for them."""
    for copy in copies.values():
        copy.wait()
    return {name: copy.tensor for name, copy in copies.items()}


def _rows_of(span: RowSpan, order: np.ndarray | None) -> np.ndarray | slice:
    return slice(*span) if order is None else order


def _order_of(name: str) -> str:
    """Return the name of the order of a resident column among the copied values; no other value has this name."""
    return f"order of {name}"


def _order_columns(columns: Sequence[Column]) -> list[_OrderColumn]:
    """Return the orders of resident columns, each once on a device."""
    named: dict[tuple[StreamKey, str, Device], list[Column]] = {}
    for column in columns:
        named.setdefault((stream_of(column), column.framework, column.device), []).append(column)
    return [
        _OrderColumn(tuple(_order_of(column.name) for column in group), stream, group[0].backend, device)
        for (stream, _, device), group in named.items()
    ]


class MixedLoader(StreamingLoader):
    """Some columns are resident, the others are streamed."""

    residency = "mixed"
