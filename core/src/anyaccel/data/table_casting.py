"""Casts of the columns of a table to other dtypes: what `FeatureSet.cast` does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyaccel.data.arrow_columns import to_arrow
from anyaccel.data.casting import cast_array
from anyaccel.data.padding import padding_of
from anyaccel.data.ragged_columns import cast_lists
from anyaccel.data.roles import listed
from anyaccel.data.rows import Rows
from anyaccel.errors import ColumnError


def cast_table(rows: Rows, dtypes: Mapping[str, Any]) -> Any:
    """The Arrow table of some rows with columns in other dtypes; the other columns share their memory.

    Args:
        rows: with the columns.
        dtypes: NumPy dtype, or its name, by column.

    Raises:
        ColumnError: not a mapping, an unknown column, one or a dtype that is not numeric, or a value that the dtype
            cannot represent.
    """
    if not isinstance(dtypes, Mapping):
        raise ColumnError(
            f"cast({dtypes!r}) of {rows.label!r} does not say which columns",
            available=f"columns: {listed(rows.columns)}",
            hint=f"write cast({{{rows.columns[0]!r}: {dtypes if isinstance(dtypes, str) else 'float32'!r}}})",
        )
    table = rows.to_arrow()
    for name, dtype in dtypes.items():
        field, column = _cast_column(rows, name, dtype)
        table = table.set_column(table.schema.get_field_index(name), field, column)
    return table


def _cast_column(rows: Rows, name: str, dtype: Any) -> tuple[Any, Any]:
    """The field and values of a column in another dtype."""
    rows.role(name)
    field = rows.schema.field(name)
    if padding_of(field) is not None:
        return cast_lists(field, rows.column(name), dtype)
    column = to_arrow(cast_array(name, rows.array(name), dtype))
    return field.with_type(column.type), column
