"""Parquet: files, lists of files and folders of them as one table in memory of its own."""

from __future__ import annotations

import itertools
import operator
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from anyaccel.data.intake.lists import with_shapes
from anyaccel.data.roles import NamesOrRest, chosen_roles, listed, stamp
from anyaccel.errors import ColumnError, DataError

SUFFIXES = (".parquet", ".parq", ".pq")
_NULL = "__HIVE_DEFAULT_PARTITION__"  # what Hive and Spark call a folder of nulls
_INT64 = range(-(2**63), 2**63)
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True)
class _File:
    """One file, and the `key=value` folders that it lies in."""

    path: str
    keys: Mapping[str, str] = field(default_factory=dict)


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
    files = _files(label, path)
    if row_groups is not None and len(files) > 1:
        raise DataError(
            f"row groups of {label!r} were chosen from {len(files)} files",
            there="row groups are counted within one file",
            remedy="give one file, or leave row_groups out",
        )
    schemas = [_schema(file) for file in files]
    folders = _folder_columns(files, schemas)
    first = _with_fields(schemas, folders)
    roles = chosen_roles(label, first, features, targets, tags)
    for name in roles.keys() - folders.keys():
        _check_one_type(name, files, schemas)
    stored = [name for name in roles if name not in folders]
    tables = [_read(label, file, stored, row_groups, folders) for file in files]
    wanted = stamp(first.empty_table(), roles).schema
    whole = pa.concat_tables([pa.table([table.column(name) for name in roles], schema=wanted) for table in tables])
    return with_shapes(whole, roles)


def read_parquet(
    label: str, source: Any, shown: str, features: NamesOrRest, targets: NamesOrRest, tags: NamesOrRest
) -> Any:
    """The same from one open Arrow file; `shown` is its name in messages."""
    import pyarrow.parquet as pq

    with _valid(shown):
        file = pq.ParquetFile(source)
    roles = chosen_roles(label, file.schema_arrow, features, targets, tags)
    return stamp(_groups(label, shown, file, list(roles), None), roles)


@contextmanager
def _valid(shown: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{shown} cannot be read as Parquet: {error}", remedy="write the file anew, or give a Parquet file"
        ) from error


def _files(label: str, path: Paths) -> list[_File]:
    if not isinstance(path, (str, os.PathLike)):
        return _listed_files(label, path)
    if not os.fspath(path):  # pathlib reads it as the current folder
        raise DataError(f"the path for {label!r} is empty", remedy="give a file, a folder, or a list of files")
    where = Path(path)
    if not where.is_dir():
        _check_no_pattern(label, where)
        return [_File(os.fspath(path))]
    inside = sorted((one.relative_to(where) for one in _below(where)), key=lambda one: one.parts)
    found = [one for one in inside if one.suffix.lower() in SUFFIXES]
    if not found:
        raise DataError(
            f"there is no Parquet file below {where}",
            there=f"{listed(inside)}; names that start with a dot or an underscore are left out",
            remedy=f"give a folder with files that end in {', '.join(SUFFIXES)}, or a list of files",
        )
    return [_File(str(where / one), _keys(one)) for one in found]


def _check_no_pattern(label: str, where: Path) -> None:
    """Make sure that a path that does not exist is no pattern, which only a shell would have filled in."""
    if not any(sign in str(where) for sign in "*?[") or where.exists():
        return
    plain = itertools.takewhile(lambda part: not any(sign in part for sign in "*?["), where.parts)
    folder = Path(*plain)
    pattern = where.relative_to(folder).as_posix()
    raise DataError(
        f"the path for {label!r} is the pattern {str(where)!r}, and there is no file of this name",
        there="paths are taken as they are written",
        remedy=f"give a list of files: sorted(pathlib.Path({folder.as_posix()!r}).glob({pattern!r})); or a folder",
    )


def _below(folder: Path, above: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """Files below a folder, but for names that start with a dot or an underscore, and links back to `above`."""
    above |= {folder.resolve()}
    for one in folder.iterdir():
        if one.name.startswith((".", "_")) or one.resolve() in above:
            continue
        if one.is_dir():
            yield from _below(one, above)
        else:
            yield one


def _keys(path: Path) -> dict[str, str]:
    pairs = [part.partition("=") for part in path.parts[:-1]]
    return {unquote(key): unquote(value) for key, equals, value in pairs if key and equals}


def _listed_files(label: str, paths: Any) -> list[_File]:
    if not isinstance(paths, Sequence) or isinstance(paths, bytes):
        raise DataError(
            f"{label!r} cannot be read from {paths!r}", there="from_parquet takes a path or a list of paths of files"
        )
    for path in paths:
        if not isinstance(path, (str, os.PathLike)) or Path(path).is_dir():
            raise DataError(
                f"{path!r} in the list for {label!r} is not the path of a file", remedy="list files, or give one folder"
            )
    if not paths:
        raise DataError(f"the list of files for {label!r} is empty", remedy="give at least one file")
    return [_File(os.fspath(path)) for path in paths]


def _schema(file: _File) -> Any:
    import pyarrow.parquet as pq

    with pa.OSFile(file.path) as source, _valid(file.path):
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


def _folder_columns(files: Sequence[_File], schemas: Sequence[Any]) -> dict[str, Any]:
    """Type of each column that folders give: int64 where all values are such integers, else text.

    A column that the files hold too is read from them.
    """
    for file in files[1:]:
        if list(file.keys) != list(files[0].keys):
            raise ColumnError(
                f"{files[0].path} and {file.path} lie in folders of different columns",
                there=f"{listed(files[0].keys)} and {listed(file.keys)}",
                remedy="lay all files out alike, or give a list of files",
            )
    stored = {name for schema in schemas for name in schema.names}
    return {name: _folder_type([file.keys[name] for file in files]) for name in files[0].keys if name not in stored}


def _folder_type(values: Sequence[str]) -> Any:
    texts = [value for value in values if value != _NULL]
    integers = texts and all(re.fullmatch(r"-?[0-9]{1,19}", text) and int(text) in _INT64 for text in texts)
    return pa.int64() if integers else pa.string()


def _check_one_type(name: str, files: Sequence[_File], schemas: Sequence[Any]) -> None:
    base = next(number for number, schema in enumerate(schemas) if name in schema.names)
    kind = schemas[base].field(name).type if schemas[base].names.count(name) == 1 else None
    for file, schema in zip(files, schemas, strict=True):
        if name not in schema.names:
            raise ColumnError(
                f"column {name!r} is in {files[base].path} but not in {file.path}",
                there=f"the latter has {listed(schema.names)}",
                remedy="write all files with the same columns, or leave this one out",
            )
        if schema.names.count(name) > 1 or schema.field(name).type != kind:
            found = "there twice" if schema.names.count(name) > 1 else f"of type {schema.field(name).type}"
            raise ColumnError(
                f"column {name!r} is of type {kind} in {files[base].path} and {found} in {file.path}",
                there="a column is of one type in all files",
                remedy="write the files with one schema, or read them apart and cast()",
            )


def _read(
    label: str, file: _File, stored: list[str], row_groups: int | Sequence[int] | None, folders: Mapping[str, Any]
) -> Any:
    import pyarrow.parquet as pq

    with pa.OSFile(file.path) as source:
        with _valid(file.path):
            opened = pq.ParquetFile(source)
        # Where the folders give all columns, any one of the file tells how many rows they have.
        table = _groups(label, file.path, opened, stored or opened.schema_arrow.names[:1], row_groups)
    for name, kind in folders.items():
        text = file.keys[name]
        value = None if text == _NULL else int(text) if kind == pa.int64() else text
        table = table.append_column(name, pa.array([value], kind).take(pa.array(np.zeros(len(table), np.int64))))
    return table


def _groups(label: str, shown: str, file: Any, names: list[str], row_groups: int | Sequence[int] | None) -> Any:
    numbers = _numbers(label, shown, file.num_row_groups, row_groups)
    empty = pa.schema([file.schema_arrow.field(name) for name in names], file.schema_arrow.metadata).empty_table()
    with _valid(shown):
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
                there=f"row groups 0 to {count - 1}" if count else "no row group at all",
                remedy="give numbers of row groups: row_groups=[0, 1]",
            )
    return [operator.index(one) for one in given]
