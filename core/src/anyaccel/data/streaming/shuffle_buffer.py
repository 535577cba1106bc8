"""Windows: a number of rows held at once, from which batches are taken in an order of their own."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from anyaccel.data.arrow_columns import contiguous, is_readable, to_numpy
from anyaccel.data.streaming.base import Columns
from anyaccel.segment import TensorSpec

Order = Callable[[int, int], np.ndarray]
"""The order of the rows of a window, from its number and how many rows it has."""


class Window:
    """Room for `size` rows of every column, filled piece by piece and written over when they have been taken.

    Args:
        size: rows.
        specs: of the columns that are read as arrays; all others are kept as Arrow has them.
    """

    def __init__(self, size: int, specs: Mapping[str, TensorSpec]) -> None:
        self._size = size
        self._arrays = {name: np.empty((size, *spec.shape), spec.dtype) for name, spec in specs.items()}
        self._others: dict[str, list[Any]] = {}
        self._filled = 0

    @property
    def room(self) -> int:
        """Rows that it can take in still."""
        return self._size - self._filled

    @property
    def filled(self) -> int:
        """Rows that it holds."""
        return self._filled

    def take_in(self, piece: Any) -> None:
        """Copy the rows of an Arrow table, of which there is room for all."""
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
        found = {name: np.take(array, order, axis=0) for name, array in self._arrays.items()}
        for name, chunks in self._others.items():
            found[name] = _as_array(name, pa.chunked_array(chunks).take(pa.array(order)))
        return found

    def join(self) -> None:
        """Make one piece of what is kept as Arrow has it, so that rows are found at once."""
        self._others = {name: [contiguous(pa.chunked_array(chunks))] for name, chunks in self._others.items()}

    def empty(self) -> None:
        """Forget all rows."""
        self._others.clear()
        self._filled = 0


def windowed(pieces: Generator[Any], window: Window, order: Order, batch: int) -> Generator[Columns]:
    """Batches of `batch` rows, and a last one of the rest, of rows that pass through a window one window after another.

    Args:
        pieces: Arrow tables, in the order in which the rows come.
        window: is filled, emptied in the order that `order` says, and filled again.
        order: the order of a window's rows.
        batch: rows of a batch; one may have rows of several windows.
    """
    parts: list[dict[str, np.ndarray]] = []
    missing = batch
    for number in _fillings(pieces, window):
        taken, rows = 0, order(number, window.filled)
        while taken < len(rows):
            part = window.rows(rows[taken : taken + missing])
            taken += missing
            parts.append(part)
            missing -= len(next(iter(part.values())))
            if not missing:
                yield _joined(parts)
                parts, missing = [], batch
    if parts:
        yield _joined(parts)


def _fillings(pieces: Generator[Any], window: Window) -> Generator[int]:
    """The number of each window, when it is full or the rows are at an end."""
    number = 0
    window.empty()
    for piece in pieces:
        while len(piece):
            head, piece = piece.slice(0, window.room), piece.slice(min(window.room, len(piece)))
            window.take_in(head)
            if not window.room:
                window.join()
                yield number
                window.empty()
                number += 1
    if window.filled:
        window.join()
        yield number


def _joined(parts: list[dict[str, np.ndarray]]) -> Columns:
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def as_arrays(piece: Any) -> Columns:
    """The columns of an Arrow table as arrays."""
    return {name: _as_array(name, piece.column(name)) for name in piece.column_names}


def _as_array(name: str, column: Any) -> np.ndarray:
    if is_readable(column):
        return to_numpy(name, contiguous(column))
    return np.asarray(column.to_numpy())
