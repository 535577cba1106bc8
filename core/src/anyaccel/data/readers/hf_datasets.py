"""Inner tables: data sets of other libraries that hold an Arrow table, read as that."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from anyaccel.errors import DataError

_HUGGING_FACE = ("with_format", "column_names", "features", "__getitem__", "__len__")


def has_table(given: Any) -> bool:
    """Whether something is a data set that holds an Arrow table, as `datasets.Dataset` of Hugging Face does."""
    return all(hasattr(given, name) for name in _HUGGING_FACE) and not isinstance(given, type)


def table_of(label: str, dataset: Any) -> Any:
    """The Arrow table of a data set of which `has_table` is true, with its rows chosen and in its order.

    On the data set's own memory, which may be a mapped file, where no rows were chosen; gathered where some were.
    Functions that it applies when rows are read (`set_transform`) are not applied. Types of its own are read as what
    they are stored as.

    Raises:
        DataError: it does not give its table.
    """
    try:
        table = dataset.with_format("arrow")[:]
    except Exception as error:
        raise DataError(
            f"the {type(dataset).__name__} of {label!r} does not give its Arrow table: {error}",
            hint="give what it holds as a pyarrow.Table, or row by row: MapSource(label, dataset, features=[...])",
        ) from error
    if not isinstance(table, pa.Table):
        raise DataError(
            f"the {type(dataset).__name__} of {label!r} gave a {type(table).__name__} for its Arrow table",
            hint="give what it holds as a pyarrow.Table, or row by row: MapSource(label, dataset, features=[...])",
        )
    return _without_own_types(table)


def _without_own_types(table: Any) -> Any:
    for index, one in enumerate(table.schema):
        if isinstance(one.type, pa.BaseExtensionType) and not isinstance(one.type, pa.FixedShapeTensorType):
            chunks = [chunk.storage for chunk in table.column(index).chunks]
            column = pa.chunked_array(chunks, one.type.storage_type)
            table = table.set_column(index, one.with_type(column.type), column)
    return table
