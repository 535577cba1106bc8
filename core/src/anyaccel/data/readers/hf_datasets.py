"""Data sets of Hugging Face, which hold an Arrow table, read as that table."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from anyaccel.errors import DataError

_HUGGING_FACE = ("with_format", "column_names", "features", "__getitem__", "__len__")


def has_table(data: Any) -> bool:
    """Whether `data` is a data set that holds an Arrow table, as `datasets.Dataset` does."""
    return all(hasattr(data, name) for name in _HUGGING_FACE) and not isinstance(data, type)


def arrow_table(label: str, dataset: Any) -> Any:
    """The Arrow table of a data set for which `has_table` is true, with its chosen rows in its order.

    On the data set's own memory, which may be a mapped file, unless rows were chosen, which are gathered. Functions
    that it applies when rows are read (`set_transform`) are not applied. Its extension types are read as their storage.
    """
    kind = type(dataset).__name__
    cause: Exception | None = None
    try:
        table = dataset.with_format("arrow")[:]
        problem = f"the {kind} of {label!r} gave a {type(table).__name__} for its Arrow table"
    except Exception as error:
        table, problem, cause = None, f"the {kind} of {label!r} does not give its Arrow table: {error}", error
    if not isinstance(table, pa.Table):
        raise DataError(
            problem, hint="give its data as a pyarrow.Table, or row by row: MapSource(label, dataset, features=[...])"
        ) from cause
    return _without_own_types(table)


def _without_own_types(table: Any) -> Any:
    for index, field in enumerate(table.schema):
        if isinstance(field.type, pa.BaseExtensionType) and not isinstance(field.type, pa.FixedShapeTensorType):
            chunks = [chunk.storage for chunk in table.column(index).chunks]
            column = pa.chunked_array(chunks, field.type.storage_type)
            table = table.set_column(index, field.with_type(column.type), column)
    return table
