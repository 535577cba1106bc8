"""Columns in Arrow memory, and their values as NumPy arrays on the same memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from anyaccel.data.arrow_columns import check_complete, check_numbers, contiguous, read_only, to_numpy
from anyaccel.data.padding import padding_of
from anyaccel.data.ragged_columns import check_ragged, field_spec, flat_column


class ColumnStore:
    """Columns of equal length; the array of a column is made once.

    Args:
        table: Arrow table with the columns.
        schema: of the columns to keep, in their order.
    """

    def __init__(self, table: Any, schema: Any) -> None:
        self._schema = schema
        self._columns = {name: table.column(name) for name in schema.names}
        self._arrays: dict[str, np.ndarray] = {}

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    @property
    def nbytes(self) -> int:
        """Bytes of all columns in Arrow memory."""
        return sum(int(column.nbytes) for column in self._columns.values())

    def check_readable(self, names: tuple[str, ...]) -> None:
        """Check that these columns can be read as arrays.

        Raises:
            ColumnError: one has nulls, empty samples or a type that is not numeric, or is not what its padding says.
        """
        for name in names:
            field = self._schema.field(name)
            if padding_of(field) is None:
                check_numbers(name, self._columns[name])
            else:
                check_ragged(field, self._columns[name])

    def column(self, name: str) -> Any:
        """A column as an Arrow chunked array."""
        return self._columns[name]

    def table(self) -> Any:
        """All columns as an Arrow table, on the same memory."""
        return pa.table(list(self._columns.values()), schema=self._schema)

    def array(self, name: str) -> np.ndarray:
        """Values of a column, [n, *shape] in its own dtype, read-only; the same object on every call.

        Raises:
            ColumnError: it is not numeric, or has nulls.
        """
        if name not in self._arrays:
            self._arrays[name] = self._as_array(name)
        return self._arrays[name]

    def _as_array(self, name: str) -> np.ndarray:
        """On Arrow's memory where possible: chunks are combined, bool unpacked, and ragged rows padded, in a copy."""
        field = self._schema.field(name)
        ragged = flat_column(field, self._columns[name])
        if ragged is not None:
            return read_only(ragged.padded())
        field_spec(field)
        check_complete(name, self._columns[name])
        combined = contiguous(self._columns[name])
        self._columns[name] = pa.chunked_array([combined])
        return to_numpy(name, combined)
