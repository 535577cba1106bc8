"""Parquet files read piece by piece, in any order of their row groups, never as a whole."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from anyaccel.data.arrow_columns import check_numbers, column_spec
from anyaccel.data.readers.file_discovery import DataFile
from anyaccel.data.readers.list_columns import with_shapes
from anyaccel.data.readers.parquet import ParquetFiles, parquet_errors
from anyaccel.data.streaming.source_errors import error_context
from anyaccel.errors import SourceError
from anyaccel.segment import TensorSpec

PIECE_BYTES = 8 * 2**20
"""Bytes of a piece of a row group, which are read at once."""


@dataclass(frozen=True, slots=True)
class FileFooter:
    """A file whose footer was read; `stamp` is its size and modification time at that moment."""

    file: DataFile
    metadata: Any
    stamp: tuple[int, int]


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One row group of one file."""

    footer: FileFooter
    number: int
    rows: int

    def __str__(self) -> str:
        return f"row group {self.number} of {self.footer.file.path}"


def row_groups(label: str, files: ParquetFiles) -> tuple[RowGroup, ...]:
    """All row groups that have rows, in the order of the files; only the footers of the files are read."""
    groups = tuple(group for file in files.files for group in _groups_of(_footer(label, file)) if group.rows)
    if not groups:
        raise SourceError(
            f"source {label!r} has no rows",
            cause=f"{len(files.files)} Parquet files without a row",
            hint="give files with rows",
        )
    return groups


@dataclass(frozen=True, slots=True)
class ReadSpec:
    """How row groups are read.

    Attributes:
        label: of the source, for messages.
        files: which columns are read.
        piece_rows: the most rows of a piece.
        specs: the required specs of features and targets; empty before they are known.
    """

    label: str
    files: ParquetFiles
    piece_rows: int
    specs: Mapping[str, TensorSpec] = field(default_factory=dict)


def read_pieces(spec: ReadSpec, groups: Sequence[RowGroup]) -> Generator[Any]:
    """Rows of some row groups, in their order, as Arrow tables; one file is open at a time."""
    for group in groups:
        with error_context(f"{group}, source {spec.label!r}"):
            yield from _pieces_of(spec, group)


def _groups_of(footer: FileFooter) -> Iterator[RowGroup]:
    for number in range(footer.metadata.num_row_groups):
        yield RowGroup(footer, number, footer.metadata.row_group(number).num_rows)


def _footer(label: str, file: DataFile) -> FileFooter:
    stamp = _stamp(file)
    with _opened(label, file) as parquet:
        return FileFooter(file, parquet.metadata, stamp)


def _stamp(file: DataFile) -> tuple[int, int]:
    stat = Path(file.path).stat()
    return stat.st_size, stat.st_mtime_ns


def _pieces_of(spec: ReadSpec, group: RowGroup) -> Iterator[Any]:
    footer = group.footer
    if _stamp(footer.file) != footer.stamp:
        raise SourceError(
            f"{footer.file.path} has changed since the source was made",
            hint="make the source anew, and leave its files alone while it is used",
        )
    with _opened(spec.label, footer.file, footer.metadata) as parquet:
        # If the folders give all columns, any column of the file tells the number of rows.
        names = spec.files.stored or parquet.schema_arrow.names[:1]
        batches = parquet.iter_batches(spec.piece_rows, row_groups=[group.number], columns=names)
        while (batch := _next(group, batches)) is not None:
            yield _checked(spec, group, batch)


def _next(group: RowGroup, batches: Iterator[Any]) -> Any:
    with parquet_errors(group.footer.file.path):
        batch = next(batches, None)
        if batch is not None:
            batch.validate(full=True)
    return batch


def _checked(spec: ReadSpec, group: RowGroup, batch: Any) -> Any:
    files, table = spec.files, pa.Table.from_batches([batch])
    table = with_shapes(files.with_partitions(table, group.footer.file), files.roles)
    for name, role in files.roles.items():
        if role != "tag":
            check_numbers(name, table.column(name))
            _check_spec(name, table.schema.field(name).type, spec.specs, group)
    return table


def _check_spec(name: str, arrow_type: Any, specs: Mapping[str, TensorSpec], group: RowGroup) -> None:
    actual = column_spec(name, arrow_type)
    if actual != specs.get(name, actual):
        raise SourceError(
            f"column {name!r} of {group} is {actual}",
            cause=f"it is {specs[name]} in the rows before, and rows of a column have one shape and dtype",
            hint="write files whose samples have one shape (pad or cut)",
        )


@contextmanager
def _opened(label: str, file: DataFile, metadata: Any = None) -> Iterator[Any]:
    """An open Parquet file; its footer is not read again if its metadata is given."""
    import pyarrow.parquet as pq

    with pa.OSFile(file.path) as source:
        with error_context(f"source {label!r}"), parquet_errors(file.path):
            parquet = pq.ParquetFile(source, metadata=metadata)
        yield parquet
