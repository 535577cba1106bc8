"""ParquetStream: files larger than memory, read row group by row group and shuffled in a buffer of rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from anyaccel import rng
from anyaccel.arguments import is_integer, shown
from anyaccel.call_hints import constructor_hints
from anyaccel.data.arrow_columns import check_column, column_spec, contiguous, shaped_table, to_numpy
from anyaccel.data.readers.file_discovery import DataFile, Paths
from anyaccel.data.readers.parquet import ParquetFiles, choose_files, parquet_errors
from anyaccel.data.roles import ROLES, NamesOrRest, RoleNames, of_role
from anyaccel.data.samplers import SimpleSampler, integer
from anyaccel.data.streaming.base import EXAMPLE_ROWS, BatchSource, Columns
from anyaccel.data.streaming.source_errors import error_context
from anyaccel.data.streaming.to_numpy import column_array
from anyaccel.errors import ColumnError, DataError, MissingFileError, SourceError
from anyaccel.segment import TensorSpec

_BATCH_SIZE = 32
BUFFER_GROUPS = 4
"""Row groups, of the size of the largest, whose rows the shuffle buffer holds by default."""


@constructor_hints
class ParquetStream(BatchSource):
    """Stream batches from Parquet files of any size, read by row group and shuffled in a buffer of rows.

    Shuffling: in every epoch the row groups are read in a new order; their rows fill a buffer of `buffer_size` rows,
    which is emptied in a random order before it is filled again. So a row is mixed with rows of the same and of
    neighboring row groups. A buffer of at least a few row groups mixes well, unless the files are sorted on a larger
    scale. All orders depend only on the sampler's seed and the number of the epoch, on every machine.

    Memory use: `buffer_size` rows of the columns that are read, a piece of at most 8 MiB, the compressed columns of one
    row group, and a batch.

    Args:
        label: Label of the feature set that the graph is connected to, or of the source's own `example`.
        path: A file, a folder or a list of files; see `FeatureSet.from_parquet`.
        features, target, tags: Names of columns by role, `...` in one of them for all columns that the others do not
            name. Without any, the roles in the files' own metadata. Columns follow the rules of a FeatureSet.
        batch_size: Rows of a batch, 32 by default; they are shuffled. Batches may hold rows of several row groups and
            buffers; only the last of an epoch may be smaller.
        sampler: Instead of `batch_size`, a SimpleSampler with size, shuffling, seed and `drop_last` of batches.
        buffer_size: Number of rows held in memory; by default the rows of 4 row groups, or all if there are fewer.

    Raises:
        MissingFileError: the file does not exist.
        OSError: a file cannot be opened.
        DataError: a label that is not text or has a dot.
        ColumnError: invalid roles, or a column that does not have one type in all files.
        SamplerError: `drop_last` leaves no batch, or a setting of the sampler is invalid.
        SourceError: no file, one that is broken or cut short, no rows, another sampler, or a buffer that is larger than
            the data, below 1, or useless because nothing is shuffled.

    Example:
        >>> import anyaccel as aa, pyarrow as pa, pyarrow.parquet as pq
        >>> table = pa.table({"x": [0.0, 0.5] * 50, "y": [0, 1] * 50})
        >>> pq.write_table(table, "data.parquet", row_group_size=10)
        >>> source = aa.ParquetStream("stream", "data.parquet", features=["x"], target=["y"], batch_size=16)
        >>> source.rows, source.steps
        (100, 7)
    """

    repeats = True

    def __init__(
        self,
        label: str,
        path: Paths,
        *,
        features: NamesOrRest = None,
        target: NamesOrRest = None,
        tags: NamesOrRest = None,
        batch_size: int | None = None,
        sampler: SimpleSampler | None = None,
        buffer_size: int | None = None,
    ) -> None:
        # The same files after the working folder has changed: they are opened as their rows are needed.
        if isinstance(path, (str, os.PathLike)) and os.fspath(path) and "://" not in os.fspath(path):
            path = str(Path(path).absolute())
        elif isinstance(path, (list, tuple)) and all(isinstance(part, (str, os.PathLike)) for part in path):
            path = [str(Path(part).absolute()) for part in path]
        try:
            self._files = choose_files(label, path, RoleNames(features, target, tags))
        except (ColumnError, MissingFileError):
            raise
        except DataError as error:
            problem = f"source {label!r}: {error.problem}"
            raise SourceError(problem, available=error.available, hint=error.hint) from error
        super().__init__(label, *(of_role(self._files.roles, role) for role in ROLES))
        self._sampler = _checked_sampler(label, batch_size, sampler)
        self._groups = row_groups(label, self._files)
        self._rows = sum(group.rows for group in self._groups)
        self._steps = self._sampler.steps(self._rows)
        self._buffer_size = self._checked_buffer_size(buffer_size)

    @property
    def rows(self) -> int:
        """Number of rows in all files, including those that `drop_last` drops."""
        return self._rows

    @property
    def steps(self) -> int:
        """Number of batches in an epoch."""
        return self._steps

    @property
    def buffer_size(self) -> int:
        """Number of rows held in memory."""
        return self._buffer_size

    def batches(self, epoch: int) -> Generator[Columns]:
        """Yield the batches of an epoch; see `BatchSource.batches`. Each call reads the files again.

        Raises:
            OSError: from the iterator: a file cannot be opened.
            SourceError: from the iterator: a file that is broken, cut short, or changed since; nulls among features and
                targets, or samples of another shape.
        """
        return self._run(integer("epoch", epoch))

    def _run(self, epoch: int) -> Generator[Columns]:
        sampler = self._sampler
        specs = {name: self.spec(name) for name in self.features + self.targets}
        row_bytes = sum(spec.nbytes for spec in specs.values())
        piece_rows = max(1, min(PIECE_BYTES // row_bytes, self._rows))
        size = self._buffer_size if sampler.shuffle else min(self._rows, max(piece_rows, sampler.batch_size))
        groups = [self._groups[number] for number in self._order("row groups", epoch, 0, len(self._groups))]
        with closing(read_pieces(ReadSpec(self._label, self._files, min(piece_rows, size), specs), groups)) as pieces:
            buffer = ShuffleBuffer(size, specs)
            order = lambda number, n: self._order("window", epoch, number, n)  # noqa: E731
            yield from islice(shuffled_batches(pieces, buffer, order, sampler.batch_size), self._steps)

    def _order(self, what: str, epoch: int, number: int, n: int) -> np.ndarray:
        if not self._sampler.shuffle:
            return np.arange(n)
        return rng.permutation(rng.key(self._sampler.seed, what, epoch, number), n)

    def _first(self) -> Columns:
        with closing(read_pieces(ReadSpec(self._label, self._files, EXAMPLE_ROWS), self._groups[:1])) as pieces:
            first = next(pieces)
        return {name: column_array(name, first.column(name)) for name in first.column_names}

    def _checked_buffer_size(self, buffer_size: Any) -> int:
        if buffer_size is None:
            return min(self._rows, BUFFER_GROUPS * max(group.rows for group in self._groups))
        setting = f"source {self._label!r}: buffer_size={shown(buffer_size)}"
        if not is_integer(buffer_size) or buffer_size < 1:
            raise SourceError(f"{setting} is not a number of rows", hint="use 1 or more, or leave it out")
        if not self._sampler.shuffle:
            raise SourceError(
                f"{setting}, but nothing is shuffled",
                cause="rows are read in the order of the files",
                hint="leave it out, or write sampler=SimpleSampler(..., shuffle=True)",
            )
        if buffer_size > self._rows:
            raise SourceError(
                f"{setting} is larger than the data",
                cause=f"{self._rows} rows",
                hint=f"write buffer_size={self._rows} to shuffle all rows together, or use FeatureSet.from_parquet",
            )
        return int(buffer_size)


def _checked_sampler(label: str, batch_size: Any, sampler: Any) -> SimpleSampler:
    if sampler is None:
        return SimpleSampler(_BATCH_SIZE if batch_size is None else batch_size, shuffle=True)
    if is_integer(sampler):
        raise SourceError(f"source {label!r} has sampler={shown(sampler)}", hint=f"write batch_size={shown(sampler)}")
    if not isinstance(sampler, SimpleSampler):
        raise SourceError(
            f"source {label!r} cannot be read by {shown(sampler)}",
            cause="other samplers need row numbers, which a stream does not have",
            hint="pass a SimpleSampler, or batch_size=32",
        )
    if batch_size is not None:
        problem = f"source {label!r} has both a sampler and a batch_size"
        raise SourceError(problem, hint="leave batch_size out: the sampler has one")
    return sampler


# -- parquet files read piece by piece, in any order of their row groups, never as a whole -----------------------------


PIECE_BYTES = 8 * 2**20
"""Bytes of a piece of a row group, which are read at once."""


@dataclass(frozen=True, slots=True)
class FileFooter:
    """A file with its footer; `stamp` is its size and modification time when the footer was read."""

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
    """Return all row groups that have rows, in the order of the files; only the footers of the files are read."""
    groups: list[RowGroup] = []
    for file in files.files:
        stamp = _stamp(file)
        with _opened(label, file) as parquet:
            footer = FileFooter(file, parquet.metadata, stamp)
        counts = [footer.metadata.row_group(number).num_rows for number in range(footer.metadata.num_row_groups)]
        groups += [RowGroup(footer, number, rows) for number, rows in enumerate(counts) if rows]
    if not groups:
        raise SourceError(
            f"source {label!r} has no rows",
            cause=f"{len(files.files)} Parquet files without a row",
            hint="pass files with rows",
        )
    return tuple(groups)


@dataclass(frozen=True, slots=True)
class ReadSpec:
    """The settings to read row groups.

    Attributes:
        label: Label of the source, for messages.
        files: The files, with the columns to read.
        piece_rows: Largest number of rows of a piece.
        specs: Required specs of features and targets; empty before they are known.
    """

    label: str
    files: ParquetFiles
    piece_rows: int
    specs: Mapping[str, TensorSpec] = field(default_factory=dict)


def read_pieces(spec: ReadSpec, groups: Sequence[RowGroup]) -> Generator[Any]:
    """Yield rows of some row groups, in their order, as Arrow tables; one file is open at a time."""
    for group in groups:
        with error_context(f"{group}, source {spec.label!r}"):
            yield from _pieces_of(spec, group)


def _stamp(file: DataFile) -> tuple[int, int]:
    stat = Path(file.path).stat()
    return stat.st_size, stat.st_mtime_ns


def _pieces_of(spec: ReadSpec, group: RowGroup) -> Iterator[Any]:
    footer = group.footer
    if _stamp(footer.file) != footer.stamp:
        raise SourceError(
            f"{footer.file.path} has changed since the source was created",
            hint="create the source again, and do not change its files while it is used",
        )
    with _opened(spec.label, footer.file, footer.metadata) as parquet:
        # If the folders give all columns, any column of the file tells the number of rows.
        names = spec.files.stored or parquet.schema_arrow.names[:1]
        batches = parquet.iter_batches(spec.piece_rows, row_groups=[group.number], columns=names)
        while True:
            with parquet_errors(footer.file.path):
                batch = next(batches, None)
                if batch is None:
                    return
                batch.validate(full=True)
            table = shaped_table(spec.files.with_partitions(pa.Table.from_batches([batch]), footer.file), {})
            for name, role in spec.files.roles.items():
                if role == "tag":
                    continue
                check_column(name, table.column(name))
                actual = column_spec(name, table.schema.field(name).type)
                if actual != spec.specs.get(name, actual):
                    raise SourceError(
                        f"column {name!r} of {group} is {actual}",
                        cause=f"it is {spec.specs[name]} in earlier rows, and all rows of a column must have the same "
                        "shape and dtype",
                        hint="write files with samples of one shape (pad or cut)",
                    )
            yield table


@contextmanager
def _opened(label: str, file: DataFile, metadata: Any = None) -> Iterator[Any]:
    """Open a Parquet file; its footer is not read again if its metadata is given."""
    import pyarrow.parquet as pq

    with pa.OSFile(file.path) as source:
        with error_context(f"source {label!r}"), parquet_errors(file.path):
            parquet = pq.ParquetFile(source, metadata=metadata)
        yield parquet


# -- A buffer of rows from which batches are taken in a shuffled order -------------------------------------------------


Order = Callable[[int, int], np.ndarray]
"""The order of the rows of a full buffer, from how often it was filled before and how many rows it has."""


class ShuffleBuffer:
    """Memory for `size` rows of every column, filled piece by piece and overwritten after the rows were taken.

    Args:
        size: Number of rows.
        specs: Specs of the columns that are read as arrays; all others are kept as Arrow columns.
    """

    def __init__(self, size: int, specs: Mapping[str, TensorSpec]) -> None:
        self._size = size
        self._arrays = {name: np.empty((size, *spec.shape), spec.dtype) for name, spec in specs.items()}
        self._others: dict[str, list[Any]] = {}
        self._filled = 0

    @property
    def free(self) -> int:
        """Number of rows that still fit."""
        return self._size - self._filled

    @property
    def filled(self) -> int:
        """Number of rows in the buffer."""
        return self._filled

    def add(self, piece: Any) -> None:
        """Copy the rows of an Arrow table; all of them must fit."""
        stop = self._filled + len(piece)
        for name in piece.column_names:
            column = piece.column(name)
            if name in self._arrays:
                self._arrays[name][self._filled : stop] = to_numpy(name, contiguous(column))
            else:
                self._others.setdefault(name, []).extend(column.chunks)
        self._filled = stop

    def rows(self, order: np.ndarray) -> dict[str, np.ndarray]:
        """Return copies of some rows, by column name."""
        columns = {name: np.take(array, order, axis=0) for name, array in self._arrays.items()}
        for name, chunks in self._others.items():
            columns[name] = column_array(name, pa.chunked_array(chunks).take(pa.array(order)))
        return columns

    def combine_chunks(self) -> None:
        """Combine the chunks of Arrow columns, so that single rows are found quickly."""
        self._others = {name: [contiguous(pa.chunked_array(chunks))] for name, chunks in self._others.items()}

    def clear(self) -> None:
        """Forget all rows."""
        self._others.clear()
        self._filled = 0


def shuffled_batches(
    pieces: Generator[Any], buffer: ShuffleBuffer, order: Order, batch_size: int
) -> Generator[Columns]:
    """Yield batches of `batch_size` rows, and a last one with the rest, from rows that pass through a buffer.

    Args:
        pieces: Arrow tables, in the order of the rows.
        buffer: The buffer, which is filled, emptied in the order of `order`, and filled again.
        order: Order of the rows of each filling.
        batch_size: Rows of a batch, which may belong to several fillings.
    """
    parts: list[dict[str, np.ndarray]] = []
    missing = batch_size
    for number in _fillings(pieces, buffer):
        taken, rows = 0, order(number, buffer.filled)
        while taken < len(rows):
            part = buffer.rows(rows[taken : taken + missing])
            taken += missing
            parts.append(part)
            missing -= len(next(iter(part.values())))
            if not missing:
                yield _joined(parts)
                parts, missing = [], batch_size
    if parts:
        yield _joined(parts)


def _fillings(pieces: Generator[Any], buffer: ShuffleBuffer) -> Generator[int]:
    """Yield the number of each filling, when the buffer is full or the rows have ended."""
    number = 0
    buffer.clear()
    for piece in pieces:
        while len(piece):
            head, piece = piece.slice(0, buffer.free), piece.slice(min(buffer.free, len(piece)))
            buffer.add(head)
            if not buffer.free:
                buffer.combine_chunks()
                yield number
                buffer.clear()
                number += 1
    if buffer.filled:
        buffer.combine_chunks()
        yield number


def _joined(parts: list[dict[str, np.ndarray]]) -> Columns:
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
