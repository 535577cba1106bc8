"""Parquet files, lists of files and folders of them as one Arrow table in its own memory."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from anyaccel.arguments import is_integer
from anyaccel.data.arrow_columns import shaped_table
from anyaccel.data.readers.file_discovery import DataFile, Paths, discover_files
from anyaccel.data.roles import RoleNames, checked_pads, chosen_roles, listed, stamp
from anyaccel.errors import ColumnError, DataError

_NULL = "__HIVE_DEFAULT_PARTITION__"  # how Hive and Spark name a folder of nulls
_INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True)
class ParquetFiles:
    """Parquet files that make one table.

    Attributes:
        files: Files in their order.
        roles: Roles of the columns to read, by name.
        partitions: Type of each column that comes from `key=value` folders, by name.
        schema: Schema of the table, with roles in the field metadata.
    """

    files: Sequence[DataFile]
    roles: dict[str, str]
    partitions: Mapping[str, Any]
    schema: Any

    @property
    def stored(self) -> list[str]:
        """Names of the columns that are read from the files themselves."""
        return [name for name in self.roles if name not in self.partitions]

    def with_partitions(self, table: Any, file: DataFile) -> Any:
        """The columns read from a file together with those of its folders, in the order of `roles`."""
        for name in self.partitions.keys() & self.roles.keys():
            arrow_type, text = self.partitions[name], file.keys[name]
            value = None if text == _NULL else int(text) if arrow_type == pa.int64() else text
            repeated = pa.array([value], arrow_type).take(pa.array(np.zeros(len(table), np.int64)))
            table = table.append_column(name, repeated)
        return pa.table([table.column(name) for name in self.roles], schema=self.schema)


def table_from_parquet(
    label: str, path: Paths, names: RoleNames, row_groups: int | Sequence[int] | None = None, pad: Any = None
) -> Any:
    """Return a table of the columns of Parquet files that have a role, read row group by row group and fully validated.

    Args:
        label: Label of the feature set, for messages.
        path: A file, a folder or a list of files, as for `FeatureSet.from_parquet`.
        names: Names of columns by role; without any the roles of the first file.
        row_groups: Numbers of the row groups to read, of a single file; None reads all.
        pad: Padding, as in `FeatureSet.from_parquet`.
    """
    files = discover_files(label, path)
    if row_groups is not None and len(files) > 1:
        raise DataError(
            f"row groups of {label!r} were chosen from {len(files)} files",
            cause="row groups are numbered within one file",
            hint="pass one file, or leave row_groups out",
        )
    import pyarrow.parquet as pq

    chosen = _choose(label, files, names)
    tables = []
    for file in files:
        with pa.OSFile(file.path) as source:
            with parquet_errors(file.path):
                opened = pq.ParquetFile(source)
            # If the folders give all columns, any column of the file tells the number of rows.
            stored = chosen.stored or opened.schema_arrow.names[:1]
            table = _read_row_groups(label, file.path, opened, stored, row_groups)
            tables.append(chosen.with_partitions(table, file))
    return shaped_table(pa.concat_tables(tables), checked_pads(label, pad, chosen.roles))


def choose_files(label: str, path: Paths, names: RoleNames) -> ParquetFiles:
    """Return the files and columns that `table_from_parquet` would read; only the schemas are read."""
    return _choose(label, discover_files(label, path), names)


def _choose(label: str, files: Sequence[DataFile], names: RoleNames) -> ParquetFiles:
    schemas = [_schema(file) for file in files]
    partitions = _partition_columns(files, schemas)
    merged = _merged_schema(schemas, partitions)
    roles = chosen_roles(label, merged, names)
    for name in roles.keys() - partitions.keys():
        first = next(number for number, schema in enumerate(schemas) if name in schema.names)
        first_type = schemas[first].field(name).type if schemas[first].names.count(name) == 1 else None
        for file, schema in zip(files, schemas, strict=True):
            if name not in schema.names:
                raise ColumnError(
                    f"column {name!r} is in {files[first].path} but not in {file.path}",
                    cause=f"{file.path} has {listed(schema.names)}",
                    hint="write all files with the same columns, or leave this one out",
                )
            if schema.names.count(name) > 1 or schema.field(name).type != first_type:
                other = "there twice" if schema.names.count(name) > 1 else f"of type {schema.field(name).type}"
                raise ColumnError(
                    f"column {name!r} is of type {first_type} in {files[first].path} and {other} in {file.path}",
                    cause="a column must have one type in all files",
                    hint="write the files with one schema, or read them separately and cast()",
                )
    return ParquetFiles(files, roles, partitions, stamp(merged.empty_table(), roles).schema)


def names_of_columns(label: str, path: Paths) -> list[str]:
    """Return the names of all columns of Parquet files, those of folders `key=value` too; only the schemas are read."""
    files = discover_files(label, path)
    schemas = [_schema(file) for file in files]
    return list(_merged_schema(schemas, _partition_columns(files, schemas)).names)


def read_parquet(label: str, source: Any, shown: str, names: RoleNames) -> Any:
    """Return a table from one open Arrow file; `shown` is its name in messages."""
    import pyarrow.parquet as pq

    with parquet_errors(shown):
        file = pq.ParquetFile(source)
    roles = chosen_roles(label, file.schema_arrow, names)
    return stamp(_read_row_groups(label, shown, file, list(roles), None), roles)


@contextmanager
def parquet_errors(shown: str) -> Iterator[None]:
    """Turn errors of reading the Parquet file named `shown` into DataError."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{shown} cannot be read as Parquet: {error}", hint="write the file again, or pass a Parquet file"
        ) from error


def _schema(file: DataFile) -> Any:
    import pyarrow.parquet as pq

    with pa.OSFile(file.path) as source, parquet_errors(file.path):
        return pq.ParquetFile(source).schema_arrow


def _merged_schema(schemas: Sequence[Any], partitions: Mapping[str, Any]) -> Any:
    """Return the first schema with the columns that only later files or the folders have, so that each can be named."""
    merged = schemas[0]
    for schema in schemas[1:]:
        for field in schema:
            merged = merged if field.name in merged.names else merged.append(field)
    for name, arrow_type in partitions.items():
        merged = merged.append(pa.field(name, arrow_type))
    return merged


def _partition_columns(files: Sequence[DataFile], schemas: Sequence[Any]) -> dict[str, Any]:
    """Return the type of each column that comes from folders; a column that the files also have is read from them."""
    for file in files[1:]:
        if list(file.keys) != list(files[0].keys):
            raise ColumnError(
                f"{files[0].path} and {file.path} are in folders with different columns",
                cause=f"{listed(files[0].keys)} and {listed(file.keys)}",
                hint="use one folder layout for all files, or pass a list of files",
            )
    stored = {name for schema in schemas for name in schema.names}
    types: dict[str, Any] = {}
    for name in filter(lambda key: key not in stored, files[0].keys):
        texts = [file.keys[name] for file in files if file.keys[name] != _NULL]
        integers = texts and all(re.fullmatch(r"-?[0-9]{1,19}", text) and int(text) in _INT64 for text in texts)
        types[name] = pa.int64() if integers else pa.string()
    return types


def _read_row_groups(
    label: str, shown: str, file: Any, names: list[str], row_groups: int | Sequence[int] | None
) -> Any:
    count = file.num_row_groups
    numbers: list[Any] = list(range(count))
    if row_groups is not None:
        numbers = list(row_groups) if isinstance(row_groups, (Sequence, range, np.ndarray)) else [row_groups]
    for number in numbers:
        if not is_integer(number) or operator.index(number) not in range(count):
            raise DataError(
                f"{shown} has no row group {number!r} for {label!r}",
                available=f"row groups 0 to {count - 1}" if count else "",
                hint="pass numbers of row groups: row_groups=[0, 1]",
            )
    empty = pa.schema([file.schema_arrow.field(name) for name in names], file.schema_arrow.metadata).empty_table()
    with parquet_errors(shown):
        parts = [file.read_row_group(operator.index(number), names) for number in numbers]
        table = pa.concat_tables([part.select(names) for part in parts]) if parts else empty
        table.validate(full=True)
    return table
