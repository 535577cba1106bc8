"""Columns of lists of one length, as other writers of tables store vectors, read as samples of one shape."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from anyaccel.data.arrow_columns import empty_axis, is_list, is_numeric, list_leaf, missing_values, ragged
from anyaccel.data.padding import padding_of


def fixed_size_lists(name: str, column: Any) -> Any:
    """Return a chunked column of lists of numbers as fixed-size lists on the same memory; any other column unchanged.

    Lists may be nested. Chunks are kept, except that empty ones are dropped.
    """
    if not is_list(column.type) or not is_numeric(list_leaf(column.type)) or not len(column):
        return column
    return pa.chunked_array(_fixed(name, [chunk for chunk in column.chunks if len(chunk)]))


def inner_fixed(name: str, array: Any) -> Any:
    """Return an Arrow array of lists of numbers as fixed-size lists on the same memory; any other array unchanged."""
    return pa.concat_arrays(_fixed(name, [array])) if is_list(array.type) and len(array) else array


def with_shapes(table: Any, roles: Mapping[str, str], padded: Container[str] = ()) -> Any:
    """Return a table whose features and targets of lists have a shape per sample, except for those that are padded.

    Args:
        table: Table of columns with roles.
        roles: Roles in the order of its columns.
        padded: Names of columns that will be padded, in addition to those marked in the metadata.
    """
    for index, (name, role) in enumerate(roles.items()):
        column = table.column(index)
        if role == "tag" or name in padded or padding_of(table.schema.field(index)) is not None:
            continue
        if (converted := fixed_size_lists(name, column)) is not column:
            table = table.set_column(index, table.schema.field(index).with_type(converted.type), converted)
    return table


def _fixed(name: str, chunks: list[Any]) -> list[Any]:
    if any(chunk.null_count for chunk in chunks):
        raise missing_values(name, np.concatenate([chunk.is_null().to_numpy(zero_copy_only=False) for chunk in chunks]))
    lengths = np.concatenate([np.diff(chunk.offsets.to_numpy()) for chunk in chunks])
    if lengths.min() != lengths.max():
        raise ragged(name, f"lists of {int(lengths.min())} to {int(lengths.max())} entries")
    if not lengths[0]:
        raise empty_axis(name, (0,))
    values = [chunk.flatten() for chunk in chunks]
    values = _fixed(name, values) if is_list(values[0].type) else values
    return [pa.FixedSizeListArray.from_arrays(part, int(lengths[0])) for part in values]
