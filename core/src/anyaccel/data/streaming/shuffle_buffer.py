"""A buffer of rows from which batches are taken in a shuffled order."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from anyaccel.data.arrow_columns import contiguous, to_numpy
from anyaccel.data.streaming.base import Columns
from anyaccel.data.streaming.to_numpy import column_array
from anyaccel.segment import TensorSpec

Order = Callable[[int, int], np.ndarray]
"""The order of the rows of a full buffer, from how often it was filled before and how many rows it has."""


class ShuffleBuffer:
    """Memory for `size` rows of every column, filled piece by piece and overwritten after they have been taken.

    Args:
        size: rows.
        specs: of the columns that are read as arrays; all others are kept as Arrow columns.
    """

    def __init__(self, size: int, specs: Mapping[str, TensorSpec]) -> None:
        self._size = size
        self._arrays = {name: np.empty((size, *spec.shape), spec.dtype) for name, spec in specs.items()}
        self._others: dict[str, list[Any]] = {}
        self._filled = 0

    @property
    def free(self) -> int:
        """Rows that it has still room for."""
        return self._size - self._filled

    @property
    def filled(self) -> int:
        """Rows that it holds."""
        return self._filled

    def add(self, piece: Any) -> None:
        """Copy the rows of an Arrow table, for all of which there must be room."""
        stop = self._filled + len(piece)
        for name in piece.column_names:
            column = piece.column(name)
            if name in self._arrays:
                self._arrays[name][self._filled : stop] = to_numpy(name, contiguous(column))
            else:
                self._others.setdefault(name, []).extend(column.chunks)
        self._filled = stop

    def rows(self, order: np.ndarray) -> dict[str, np.ndarray]:
        """Copies of some rows, by column name."""
        columns = {name: np.take(array, order, axis=0) for name, array in self._arrays.items()}
        for name, chunks in self._others.items():
            columns[name] = column_array(name, pa.chunked_array(chunks).take(pa.array(order)))
        return columns

    def combine_chunks(self) -> None:
        """Combine the chunks of Arrow columns, so that single rows are found at once."""
        self._others = {name: [contiguous(pa.chunked_array(chunks))] for name, chunks in self._others.items()}

    def clear(self) -> None:
        """Forget all rows."""
        self._others.clear()
        self._filled = 0


def shuffled_batches(
    pieces: Generator[Any], buffer: ShuffleBuffer, order: Order, batch_size: int
) -> Generator[Columns]:
    """Batches of `batch_size` rows, and a last one of the rest, of rows that pass through a buffer.

    Args:
        pieces: Arrow tables, in the order in which the rows come.
        buffer: is filled, emptied in the order that `order` says, and filled again.
        order: the order of the rows of each filling.
        batch_size: rows of a batch, which may come from several fillings.
    """
    parts: list[dict[str, np.ndarray]] = []
    missing = batch_size
    for number in _fillings(pieces, buffer):
        taken, rows = 0, order(number, buffer.filled)
        while taken < len(rows):
            part = buffer.rows(rows[taken : taken + missing])
            taken += missing
            parts.append(part)
            missing -= len(next(iter(part.values())))
            if not missing:
                yield _joined(parts)
                parts, missing = [], batch_size
    if parts:
        yield _joined(parts)


def _fillings(pieces: Generator[Any], buffer: ShuffleBuffer) -> Generator[int]:
    """Yield the number of each filling, when the buffer is full or the rows have ended."""
    number = 0
    buffer.clear()
    for piece in pieces:
        while len(piece):
            head, piece = piece.slice(0, buffer.free), piece.slice(min(buffer.free, len(piece)))
            buffer.add(head)
            if not buffer.free:
                buffer.combine_chunks()
                yield number
                buffer.clear()
                number += 1
    if buffer.filled:
        buffer.combine_chunks()
        yield number


def _joined(parts: list[dict[str, np.ndarray]]) -> Columns:
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
