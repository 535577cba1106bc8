"""Parquet: files, lists of files and folders of them as one table in memory of its own."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from anyaccel.data.readers.file_discovery import File, Paths, found_files
from anyaccel.data.readers.list_columns import with_shapes
from anyaccel.data.roles import NamesOrRest, chosen_roles, listed, stamp
from anyaccel.errors import ColumnError, DataError

_NULL = "__HIVE_DEFAULT_PARTITION__"  # what Hive and Spark call a folder of nulls
_INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True)
class Files:
    """Parquet files that make one table.

    Attributes:
        files: in their order.
        roles: of the columns that are read, by name.
        folders: type of each column that folders give, by name.
        schema: of the table, with roles in the field metadata.
    """

    files: Sequence[File]
    roles: dict[str, str]
    folders: Mapping[str, Any]
    schema: Any

    @property
    def stored(self) -> list[str]:
        """Names of the columns that are read from the files."""
        return [name for name in self.roles if name not in self.folders]

    def completed(self, table: Any, file: File) -> Any:
        """The columns that were read from a file with those that its folders give, in the order of `roles`."""
        for name in self.folders.keys() & self.roles.keys():
            kind, text = self.folders[name], file.keys[name]
            value = None if text == _NULL else int(text) if kind == pa.int64() else text
            table = table.append_column(name, pa.array([value], kind).take(pa.array(np.zeros(len(table), np.int64))))
        return pa.table([table.column(name) for name in self.roles], schema=self.schema)


def table_from_parquet(
    label: str,
    path: Paths,
    features: NamesOrRest,
    targets: NamesOrRest,
    tags: NamesOrRest,
    row_groups: int | Sequence[int] | None = None,
) -> Any:
    """A table from the columns of Parquet files that have a role, read row group by row group and validated in full.

    Args:
        label: of the feature set, for messages.
        path: a file, a folder (all `SUFFIXES` files below it in the order of their paths, but for names that start with
            a dot or an underscore; folders named `key=value` give a column), or a list of files in their order.
        features, targets, tags: names of columns by role; all None takes the roles of the first file.
        row_groups: numbers of the row groups that are read, of a single file; None reads all.

    Raises:
        OSError: a file cannot be opened.
        DataError: no file, one that is no valid Parquet file, or wrong row groups.
        ColumnError: roles that cannot be, or a column that is not of one type in all files.
    """
    files = found_files(label, path)
    if row_groups is not None and len(files) > 1:
        raise DataError(
            f"row groups of {label!r} were chosen from {len(files)} files",
            available="row groups are counted within one file",
            hint="give one file, or leave row_groups out",
        )
    chosen = _chosen(label, files, features, targets, tags)
    tables = [chosen.completed(_read(label, file, chosen, row_groups), file) for file in files]
    return with_shapes(pa.concat_tables(tables), chosen.roles)


def chosen_files(label: str, path: Paths, features: NamesOrRest, targets: NamesOrRest, tags: NamesOrRest) -> Files:
    """The files and columns that `table_from_parquet` would read; of the files only the schemas are read.

    Raises:
        OSError, DataError, ColumnError: as `table_from_parquet`.
    """
    return _chosen(label, found_files(label, path), features, targets, tags)


def _chosen(label: str, files: Sequence[File], features: NamesOrRest, targets: NamesOrRest, tags: NamesOrRest) -> Files:
    schemas = [_schema(file) for file in files]
    folders = _folder_columns(files, schemas)
    first = _with_fields(schemas, folders)
    roles = chosen_roles(label, first, features, targets, tags)
    for name in roles.keys() - folders.keys():
        _check_one_type(name, files, schemas)
    return Files(files, roles, folders, stamp(first.empty_table(), roles).schema)


def read_parquet(
    label: str, source: Any, shown: str, features: NamesOrRest, targets: NamesOrRest, tags: NamesOrRest
) -> Any:
    """The same from one open Arrow file; `shown` is its name in messages."""
    import pyarrow.parquet as pq

    with valid(shown):
        file = pq.ParquetFile(source)
    roles = chosen_roles(label, file.schema_arrow, features, targets, tags)
    return stamp(_groups(label, shown, file, list(roles), None), roles)


@contextmanager
def valid(shown: str) -> Iterator[None]:
    """What is done inside reads the Parquet file of the name `shown`.

    Raises:
        DataError: the file is none, or broken.
    """
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{shown} cannot be read as Parquet: {error}", hint="write the file anew, or give a Parquet file"
        ) from error


def _schema(file: File) -> Any:
    import pyarrow.parquet as pq

    with pa.OSFile(file.path) as source, valid(file.path):
        return pq.ParquetFile(source).schema_arrow


def _with_fields(schemas: Sequence[Any], folders: Mapping[str, Any]) -> Any:
    """The first schema with the columns that only later files or the folders have, so that each can be named."""
    whole = schemas[0]
    for schema in schemas[1:]:
        for one in schema:
            whole = whole if one.name in whole.names else whole.append(one)
    for name, kind in folders.items():
        whole = whole.append(pa.field(name, kind))
    return whole


def _folder_columns(files: Sequence[File], schemas: Sequence[Any]) -> dict[str, Any]:
    """Type of each column that folders give: int64 where all values are such integers, else text.

    A column that the files hold too is read from them.
    """
    for file in files[1:]:
        if list(file.keys) != list(files[0].keys):
            raise ColumnError(
                f"{files[0].path} and {file.path} lie in folders of different columns",
                available=f"{listed(files[0].keys)} and {listed(file.keys)}",
                hint="lay all files out alike, or give a list of files",
            )
    stored = {name for schema in schemas for name in schema.names}
    return {name: _folder_type([file.keys[name] for file in files]) for name in files[0].keys if name not in stored}


def _folder_type(values: Sequence[str]) -> Any:
    texts = [value for value in values if value != _NULL]
    integers = texts and all(re.fullmatch(r"-?[0-9]{1,19}", text) and int(text) in _INT64 for text in texts)
    return pa.int64() if integers else pa.string()


def _check_one_type(name: str, files: Sequence[File], schemas: Sequence[Any]) -> None:
    base = next(number for number, schema in enumerate(schemas) if name in schema.names)
    kind = schemas[base].field(name).type if schemas[base].names.count(name) == 1 else None
    for file, schema in zip(files, schemas, strict=True):
        if name not in schema.names:
            raise ColumnError(
                f"column {name!r} is in {files[base].path} but not in {file.path}",
                available=f"the latter has {listed(schema.names)}",
                hint="write all files with the same columns, or leave this one out",
            )
        if schema.names.count(name) > 1 or schema.field(name).type != kind:
            found = "there twice" if schema.names.count(name) > 1 else f"of type {schema.field(name).type}"
            raise ColumnError(
                f"column {name!r} is of type {kind} in {files[base].path} and {found} in {file.path}",
                available="a column is of one type in all files",
                hint="write the files with one schema, or read them apart and cast()",
            )


def _read(label: str, file: File, chosen: Files, row_groups: int | Sequence[int] | None) -> Any:
    import pyarrow.parquet as pq

    with pa.OSFile(file.path) as source:
        with valid(file.path):
            opened = pq.ParquetFile(source)
        # Where the folders give all columns, any one of the file tells how many rows they have.
        return _groups(label, file.path, opened, chosen.stored or opened.schema_arrow.names[:1], row_groups)


def _groups(label: str, shown: str, file: Any, names: list[str], row_groups: int | Sequence[int] | None) -> Any:
    numbers = _numbers(label, shown, file.num_row_groups, row_groups)
    empty = pa.schema([file.schema_arrow.field(name) for name in names], file.schema_arrow.metadata).empty_table()
    with valid(shown):
        parts = [file.read_row_group(number, names) for number in numbers]
        table = pa.concat_tables([part.select(names) for part in parts]) if parts else empty
        table.validate(full=True)
    return table


def _numbers(label: str, shown: str, count: int, row_groups: int | Sequence[int] | None) -> list[int]:
    if row_groups is None:
        return list(range(count))
    given = list(row_groups) if isinstance(row_groups, (Sequence, range, np.ndarray)) else [row_groups]
    for one in given:
        if isinstance(one, bool) or not hasattr(one, "__index__") or operator.index(one) not in range(count):
            raise DataError(
                f"{shown} has no row group {one!r} for {label!r}",
                available=f"row groups 0 to {count - 1}" if count else "no row group at all",
                hint="give numbers of row groups: row_groups=[0, 1]",
            )
    return [operator.index(one) for one in given]
