"""Padded source loader: batches of a source that differ in length, each step in a block of its own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np

from anyaccel.data.padding import Pad
from anyaccel.data.streaming.source_errors import BatchPosition, error_context
from anyaccel.graph import Column
from anyaccel.phases.loading.host_columns import Batch, copy_batch
from anyaccel.phases.loading.source_loader import BatchSourceLoader, HostBuffers


class PaddedSourceLoader(BatchSourceLoader):
    """The batches of a source whose columns differ in length: every step has a block of its own shape.

    Batches that make one step together are padded to the longest of them. Arguments are those of `BatchSourceLoader`.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.one_shape = False

    def _fill(self, buffers: HostBuffers, batches: Iterable[tuple[int, Batch]], epoch: int) -> list[int]:
        """Copy the batches of one step; the number of rows of each."""
        sizes: list[int] = []
        parts: dict[str, list[np.ndarray]] = {column.name: [] for column in self._columns}
        for position, batch in islice(batches, self._accumulate):
            sizes.append(len(next(iter(batch.values()))))
            with error_context(BatchPosition(self._source.label, epoch, position)):
                for column in self._columns:
                    parts[column.name].append(self._copy_of(column, batch, sizes[-1]))
        buffers.capacity = sum(sizes)
        buffers.columns = [
            (column, self._joined(buffers, column, parts[column.name]), self._ranges.get(column.name))
            for column in self._columns
            if sizes
        ]
        return sizes

    def _copy_of(self, column: Column, batch: Batch, rows: int) -> np.ndarray:
        """A column of a batch as the plan loads it; the source may overwrite its own arrays."""
        shape = column.spec.shape
        if column.ragged:
            shape = (batch[column.columns[0]].shape[1], *shape[1:])
        out = np.empty((rows, *shape), column.spec.dtype)
        copy_batch(column, batch, out, self._ranges.get(column.name))
        return out

    def _joined(self, buffers: HostBuffers, column: Column, parts: Sequence[np.ndarray]) -> np.ndarray:
        """The batches of a step in a buffer, the shorter ones padded."""
        rows, rest = sum(map(len, parts)), column.spec.shape
        if column.ragged:
            rest = (max(part.shape[1] for part in parts), *rest[1:])
        size = rows * math.prod(rest)
        flat = buffers.flat.get(column.name)
        if flat is None or flat.size < size:
            backend = self._backends[column.name]
            flat = buffers.flat[column.name] = backend.staging_buffer((size,), column.spec.dtype, column.device)
        out, start = flat[:size].reshape(rows, *rest), 0
        for part in parts:
            own = out[start : start + len(part)]
            if column.ragged:
                own[:, part.shape[1] :] = self._source.pads.get(column.columns[0], Pad()).value
                own = own[:, : part.shape[1]]
            own[...] = part
            start += len(part)
        return out
