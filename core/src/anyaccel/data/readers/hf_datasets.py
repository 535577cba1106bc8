"""Data sets of Hugging Face, which hold an Arrow table, read as that table."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from anyaccel.data.roles import listed
from anyaccel.errors import DataError

_HUGGING_FACE = ("with_format", "column_names", "features", "__getitem__", "__len__")


def has_table(data: Any) -> bool:
    """Whether `data` is a data set that holds an Arrow table, as `datasets.Dataset` does."""
    return all(hasattr(data, name) for name in _HUGGING_FACE) and not isinstance(data, type)


def computes_rows(data: Any) -> bool:
    """Whether such a data set calls a function of its user whenever rows are read, as after `set_transform`."""
    return has_table(data) and _format(data).get("type") == "custom"


def arrow_table(label: str, dataset: Any) -> Any:
    """Return the Arrow table of a data set accepted by `has_table`, with its chosen rows and columns in its order.

    It uses the data set's own memory, which may be a mapped file; chosen rows are gathered. Extension types are read as
    their storage.

    Raises:
        DataError: it has no table, or calls a function when rows are read (`set_transform`), whose results the table
            does not have.
    """
    kind = type(dataset).__name__
    cause: Exception | None = None
    if computes_rows(dataset):
        raise DataError(
            f"the {kind} of {label!r} calls a function when rows are read (set_transform), but its table has the "
            "values from before this function",
            hint=f"to apply the function in each epoch, use MapSource({label!r}, dataset, features=[...], "
            "target=[...]); to use the stored values, pass dataset.with_format(None)",
        )
    chosen = _format(dataset)
    try:
        table = dataset.with_format("arrow")[:]
        problem = f"the {kind} of {label!r} returned a {type(table).__name__} as its Arrow table"
    except Exception as error:
        table, problem, cause = None, f"the {kind} of {label!r} cannot return its Arrow table: {error}", error
    if not isinstance(table, pa.Table):
        raise DataError(
            problem,
            hint="pass its data as a pyarrow.Table, or read it row by row: MapSource(label, dataset, features=[...])",
        ) from cause
    columns = chosen.get("columns")
    if columns is not None and not chosen.get("output_all_columns"):  # others are left out of its rows
        table = table.select([name for name in table.column_names if name in columns])
    for index, field in enumerate(table.schema):
        if isinstance(field.type, pa.BaseExtensionType) and not isinstance(field.type, pa.FixedShapeTensorType):
            chunks = [chunk.storage for chunk in table.column(index).chunks]
            column = pa.chunked_array(chunks, field.type.storage_type)
            table = table.set_column(index, field.with_type(column.type), column)
    return table


def _format(dataset: Any) -> Mapping[str, Any]:
    """Return the row format that a data set reports."""
    chosen = getattr(dataset, "format", None)
    return chosen if isinstance(chosen, Mapping) else {}


def are_splits(data: Any) -> bool:
    """Whether `data` is a mapping of such data sets by name, as a `DatasetDict` is."""
    return isinstance(data, Mapping) and bool(data) and all(map(has_table, data.values()))


def joined_splits(label: str, data: Any) -> tuple[Any, dict[str, np.ndarray]] | None:
    """Return one Arrow table of all data sets of a mapping, such as a `DatasetDict`, and the rows of each by its name.

    None for anything other than a mapping of such data sets.

    Raises:
        DataError: their columns differ.
    """
    if not are_splits(data):
        return None
    tables = {str(name): arrow_table(label, dataset) for name, dataset in data.items()}
    first = next(iter(tables))
    for name, table in tables.items():
        if not table.schema.equals(tables[first].schema):
            raise DataError(
                f"the data sets {first!r} and {name!r} of {label!r} have different columns",
                cause="; ".join(f"{key}: {listed(map(str, tables[key].schema))}" for key in (first, name)),
                hint=f"pass only data sets with the same columns, or each one separately: from_arrow({label!r}, "
                f"data[{first!r}], ...)",
            )
    stops = itertools.accumulate(map(len, tables.values()))
    rows = {name: np.arange(stop - len(table), stop) for (name, table), stop in zip(tables.items(), stops, strict=True)}
    return pa.concat_tables(tables.values()), rows
