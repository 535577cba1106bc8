"""Row groups: Parquet files read piece by piece, in any order of their row groups, never as a whole."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from anyaccel.data.arrow_columns import check_numbers, column_spec
from anyaccel.data.readers.file_discovery import File
from anyaccel.data.readers.list_columns import with_shapes
from anyaccel.data.readers.parquet import Files, valid
from anyaccel.data.streaming.source_errors import error_context
from anyaccel.errors import SourceError
from anyaccel.segment import TensorSpec

PIECE_BYTES = 8 * 2**20
"""Bytes of one piece of a row group, of what is read of it at once."""


@dataclass(frozen=True, slots=True)
class Known:
    """A file whose end was read, which says where everything is; `stamp` is its size and time of that moment."""

    file: File
    footer: Any
    stamp: tuple[int, int]


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One row group of one file."""

    known: Known
    number: int
    rows: int

    def __str__(self) -> str:
        return f"row group {self.number} of {self.known.file.path}"


def row_groups(label: str, files: Files) -> tuple[RowGroup, ...]:
    """All row groups that have rows, in the order of the files; only the ends of the files are read.

    Raises:
        OSError: a file cannot be opened.
        SourceError: a file is broken or cut short.
    """
    known = [_known(label, file) for file in files.files]
    counts = [(one, number, one.footer.row_group(number).num_rows) for one in known for number in _numbers(one)]
    found = tuple(RowGroup(*count) for count in counts if count[-1])
    if not found:
        raise SourceError(
            f"source {label!r} has no rows",
            available=f"{len(files.files)} Parquet files without a row",
            hint="give files with rows",
        )
    return found


@dataclass(frozen=True, slots=True)
class Reading:
    """How row groups are read.

    Attributes:
        label: of the source, for messages.
        files: which columns are read.
        most: rows of a piece.
        specs: what features and targets have to be; empty before they are known.
    """

    label: str
    files: Files
    most: int
    specs: Mapping[str, TensorSpec] = field(default_factory=dict)


def pieces(plan: Reading, groups: Sequence[RowGroup]) -> Generator[Any]:
    """Rows of some row groups, in their order, as Arrow tables; one file is open at a time.

    Raises:
        OSError: a file cannot be opened.
        SourceError: a file is broken, cut short, or not the one that it was; or nulls among features and targets, or
            samples of another shape.
    """
    for group in groups:
        with error_context(f"{group}, source {plan.label!r}"):
            yield from _pieces(plan, group)


def _numbers(one: Known) -> range:
    return range(one.footer.num_row_groups)


def _known(label: str, file: File) -> Known:
    stamp = _stamp(file)
    with _opened(label, file) as parquet:
        return Known(file, parquet.metadata, stamp)


def _stamp(file: File) -> tuple[int, int]:
    found = Path(file.path).stat()
    return found.st_size, found.st_mtime_ns


def _pieces(plan: Reading, group: RowGroup) -> Iterator[Any]:
    known = group.known
    if _stamp(known.file) != known.stamp:
        raise SourceError(
            f"{known.file.path} is not the file that it was when the source was made",
            hint="make the source anew, and leave its files alone while it is used",
        )
    with _opened(plan.label, known.file, known.footer) as parquet:
        # Where the folders give all columns, any one of the file tells how many rows there are.
        names = plan.files.stored or parquet.schema_arrow.names[:1]
        read = parquet.iter_batches(plan.most, row_groups=[group.number], columns=names)
        while (batch := _next(group, read)) is not None:
            yield _checked(plan, group, batch)


def _next(group: RowGroup, read: Iterator[Any]) -> Any:
    with valid(group.known.file.path):
        batch = next(read, None)
        if batch is not None:
            batch.validate(full=True)
    return batch


def _checked(plan: Reading, group: RowGroup, batch: Any) -> Any:
    files, table = plan.files, pa.Table.from_batches([batch])
    table = with_shapes(files.completed(table, group.known.file), files.roles)
    for name, role in files.roles.items():
        if role != "tag":
            check_numbers(name, table.column(name))
            _check_spec(name, table.schema.field(name).type, plan.specs, group)
    return table


def _check_spec(name: str, kind: Any, specs: Mapping[str, TensorSpec], group: RowGroup) -> None:
    found = column_spec(name, kind)
    if found != specs.get(name, found):
        raise SourceError(
            f"column {name!r} of {group} is {found}",
            available=f"it is {specs[name]} in the rows before, and rows of a column have one shape and dtype",
            hint="write files whose samples have one shape (pad or cut)",
        )


@contextmanager
def _opened(label: str, file: File, footer: Any = None) -> Iterator[Any]:
    """A Parquet file that is open inside `with`; its end is not read where that is given."""
    import pyarrow.parquet as pq

    with pa.OSFile(file.path) as source:
        with error_context(f"source {label!r}"), valid(file.path):
            parquet = pq.ParquetFile(source, metadata=footer)
        yield parquet
