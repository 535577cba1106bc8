"""Tables: what a feature set is made from, as an Arrow table whose columns carry their roles."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from anyaccel.data.intake import number_column, tag_column
from anyaccel.data.roles import Names, assign_roles, listed, read_roles, stamp
from anyaccel.errors import ColumnError, DataError


def table_from_dict(label: str, data: Mapping[str, Any], features: Names, targets: Names, tags: Names) -> Any:
    """A table from array-likes by name; each column that has a role is copied once.

    Raises:
        DataError: `data` is no mapping.
        ColumnError: roles or columns that cannot be, or columns of unequal length.
    """
    if not isinstance(data, Mapping):
        raise DataError(
            f"the data of {label!r} is a {type(data).__name__}",
            there="from_dict takes a mapping of column names to arrays",
            remedy="write {'name': array, ...}, or use from_pandas, from_arrow or from_parquet",
        )
    roles = assign_roles(label, list(data), features, targets, tags)
    columns = {
        name: tag_column(name, data[name]) if role == "tag" else number_column(name, data[name])
        for name, role in roles.items()
    }
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ColumnError(
            f"the columns of {label!r} differ in length",
            there=listed(f"{name}: {length}" for name, length in lengths.items()),
            remedy="give every column one entry per sample",
        )
    return stamp(pa.table(columns), roles)


def table_from_pandas(label: str, df: Any, features: Names, targets: Names, tags: Names) -> Any:
    """A table from a pandas DataFrame, whose index is left out; each column that has a role is copied once.

    Raises:
        DataError: `df` is no DataFrame.
        ColumnError: roles or columns that cannot be.
    """
    names = getattr(df, "columns", None)
    if names is None or not hasattr(df, "iloc"):
        raise DataError(
            f"the data of {label!r} is a {type(df).__name__}, not a pandas DataFrame", remedy="use from_dict"
        )
    roles = assign_roles(label, list(names), features, targets, tags)
    return table_from_dict(label, {name: df[name] for name in roles}, features, targets, tags)


def table_from_arrow(label: str, table: Any, features: Names, targets: Names, tags: Names) -> Any:
    """A table on the memory of an Arrow table (or of whatever hands one over through Arrow's C interface).

    Raises:
        DataError: not a table, or one whose buffers do not fit its schema.
        ColumnError: roles that cannot be.
    """
    if not isinstance(table, pa.Table):
        if not (hasattr(table, "__arrow_c_stream__") or hasattr(table, "__arrow_c_array__")):
            raise DataError(
                f"the data of {label!r} is a {type(table).__name__}, not an Arrow table",
                remedy="give a pyarrow.Table, or use from_dict or from_pandas",
            )
        table = pa.table(table)
    roles = _chosen(label, table.schema, features, targets, tags)
    try:
        chosen = stamp(table, roles)
        chosen.validate()
    except pa.ArrowException as error:
        raise DataError(
            f"the Arrow table of {label!r} is not valid: {error}", remedy="make the table anew from its source"
        ) from error
    return chosen


def table_from_parquet(label: str, path: str | os.PathLike[str], features: Names, targets: Names, tags: Names) -> Any:
    """A table from the columns of a Parquet file that have a role, read into memory and validated in full.

    Raises:
        OSError: the file cannot be opened.
        DataError: it is no Parquet file, or a broken one.
        ColumnError: roles that cannot be.
    """
    with pa.OSFile(os.fspath(path)) as source:
        return read_parquet(label, source, os.fspath(path), features, targets, tags)


def read_parquet(label: str, source: Any, shown: str, features: Names, targets: Names, tags: Names) -> Any:
    """The same from an open Arrow file; `shown` is its name in messages."""
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(source)
        roles = _chosen(label, file.schema_arrow, features, targets, tags)
        table = file.read(list(roles))
        table.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{shown} cannot be read as Parquet: {error}", remedy="write the file anew, or give a Parquet file"
        ) from error
    return stamp(table, roles)


def _chosen(label: str, schema: Any, features: Names, targets: Names, tags: Names) -> dict[str, str]:
    if features is None and targets is None and tags is None:
        return read_roles(label, schema)
    return assign_roles(label, schema.names, features, targets, tags)
