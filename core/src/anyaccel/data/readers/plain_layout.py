"""Arrow columns in the plain layout: text and bytes as views, and run-end encoded ones, Arrow cannot gather."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_VIEWS = {"string_view": pa.large_string(), "binary_view": pa.large_binary()}


def plain_table(table: Any) -> Any:
    """Return the table with all columns in the plain layout."""
    for index, field in enumerate(table.schema):
        column = plain_column(table.column(index))
        if column.type != field.type:
            table = table.set_column(index, field.with_type(column.type), column)
    return table


def plain_column(column: Any) -> Any:
    """Return a chunked array in the plain layout: the same one where it is."""
    if "_view" not in str(column.type) and not _is_run_end_encoded(column.type):
        return column
    return pa.chunked_array([_plain(chunk) for chunk in column.chunks], _plain_type(column.type))


def _is_run_end_encoded(arrow_type: Any) -> bool:
    return str(arrow_type).startswith("run_end_encoded")


def _plain(array: Any) -> Any:
    if _is_run_end_encoded(array.type):
        return _plain(pc.run_end_decode(array))
    plain_type = _plain_type(array.type)
    if not pa.types.is_dictionary(plain_type):
        return _cast(array, plain_type)
    values = _cast(array.dictionary, plain_type.value_type)
    return pa.DictionaryArray.from_arrays(array.indices, values, ordered=plain_type.ordered)


def _cast(array: Any, arrow_type: Any) -> Any:
    try:
        return array.cast(arrow_type)
    except pa.ArrowNotImplementedError:  # pyarrow 16 and 17 know views but do not cast them
        return pa.array(array.to_pylist(), arrow_type)


def _plain_type(arrow_type: Any) -> Any:
    """Return the type with text and bytes in their plain layout; by name, as pyarrow 14 has no functions that tell
    views.
    """
    if _is_run_end_encoded(arrow_type):
        return _plain_type(arrow_type.value_type)
    if str(arrow_type) in _VIEWS:
        return _VIEWS[str(arrow_type)]
    if pa.types.is_dictionary(arrow_type):
        return pa.dictionary(arrow_type.index_type, _plain_type(arrow_type.value_type), arrow_type.ordered)
    if pa.types.is_list(arrow_type):
        return pa.list_(_plain_type(arrow_type.value_type))
    if pa.types.is_large_list(arrow_type):
        return pa.large_list(_plain_type(arrow_type.value_type))
    if pa.types.is_fixed_size_list(arrow_type):
        return pa.list_(_plain_type(arrow_type.value_type), arrow_type.list_size)
    if pa.types.is_struct(arrow_type):
        return pa.struct([field.with_type(_plain_type(field.type)) for field in arrow_type])
    return arrow_type
