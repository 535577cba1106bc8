"""ParquetStream: files larger than memory, read row group by row group and shuffled in a buffer of rows."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from anyaccel import rng
from anyaccel.arguments import is_integer, shown
from anyaccel.call_hints import constructor_hints
from anyaccel.data.readers.file_discovery import Paths
from anyaccel.data.readers.parquet import choose_files
from anyaccel.data.roles import ROLES, NamesOrRest, RoleNames, of_role
from anyaccel.data.sampling.sampler import SimpleSampler, integer
from anyaccel.data.streaming.base import EXAMPLE_ROWS, BatchSource, Columns
from anyaccel.data.streaming.row_groups import PIECE_BYTES, ReadSpec, read_pieces, row_groups
from anyaccel.data.streaming.shuffle_buffer import ShuffleBuffer, shuffled_batches
from anyaccel.data.streaming.to_numpy import column_array
from anyaccel.errors import ColumnError, DataError, MissingFileError, SourceError

BUFFER_GROUPS = 4
"""Row groups, of the size of the largest, whose rows the shuffle buffer holds by default."""


@constructor_hints
class ParquetStream(BatchSource):
    """Batches from Parquet files of any size, read row group by row group and shuffled in a buffer of rows.

    To shuffle, in every epoch the row groups come in a new order; their rows fill a buffer of `buffer_size` rows, which
    is emptied in a random order before it is filled again. So a row meets rows of its own row group and of those that
    come next to it, and a buffer of at least a few row groups mixes well unless the files are sorted on a larger scale.
    All orders follow from the sampler's seed and the number of the epoch, on every machine.

    In memory at once are `buffer_size` rows of the columns that are read, a piece of at most 8 MiB, the compressed
    columns of one row group, and a batch.

    Args:
        label: the label of the feature set that the graph is wired to, or of the source's own `example`.
        path: a file, a folder or a list of files, as `FeatureSet.from_parquet` takes them.
        features, targets, tags: names of columns by role, `...` in one of them for all that the others do not name;
            none of the three for the roles in the files' own metadata. The rules for columns are those of a FeatureSet.
        sampler: a SimpleSampler with size, shuffling, seed and `drop_last` of batches, or a batch size, which shuffles.
            Batches may hold rows of several row groups and buffers; only the last of an epoch may be smaller.
        buffer_size: rows held at once; by default those of 4 row groups, or all if there are fewer.

    Raises:
        MissingFileError: there is no such file.
        OSError: a file cannot be opened.
        DataError: a label that is not text or has a dot.
        ColumnError: invalid roles, or a column that is not of one type in all files.
        SamplerError: `drop_last` leaves no batch, or a setting of the sampler is invalid.
        SourceError: no file, one that is broken or cut short, no rows, another sampler, or a buffer that is larger than
            the data, below 1, or of no use because nothing is shuffled.
    """

    repeats = True

    def __init__(
        self,
        label: str,
        path: Paths,
        *,
        features: NamesOrRest = None,
        targets: NamesOrRest = None,
        tags: NamesOrRest = None,
        sampler: SimpleSampler | int = 32,
        buffer_size: int | None = None,
    ) -> None:
        with _source_errors(label):
            self._files = choose_files(label, _absolute(path), RoleNames(features, targets, tags))
        super().__init__(label, *(of_role(self._files.roles, role) for role in ROLES))
        self._sampler = _checked_sampler(label, sampler)
        self._groups = row_groups(label, self._files)
        self._rows = sum(group.rows for group in self._groups)
        self._steps = self._sampler.steps(self._rows)
        self._buffer_size = self._checked_buffer_size(buffer_size)

    @property
    def rows(self) -> int:
        """Rows of all files, including those that `drop_last` leaves out."""
        return self._rows

    @property
    def steps(self) -> int:
        """Batches of an epoch."""
        return self._steps

    @property
    def buffer_size(self) -> int:
        """Rows held at once."""
        return self._buffer_size

    def batches(self, epoch: int) -> Generator[Columns]:
        """See BatchSource. Each call reads the files anew.

        Raises:
            OSError: from the iterator: a file cannot be opened.
            SourceError: from the iterator: a file that is broken, cut short, or changed since; nulls among features
                and targets, or samples of another shape.
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
        given = f"source {self._label!r}: buffer_size={shown(buffer_size)}"
        if not is_integer(buffer_size) or buffer_size < 1:
            raise SourceError(f"{given} is not a number of rows", hint="give 1 or more, or leave it out")
        if not self._sampler.shuffle:
            raise SourceError(
                f"{given}, but nothing is shuffled",
                cause="rows come in the order of the files",
                hint="leave it out, or write sampler=SimpleSampler(..., shuffle=True)",
            )
        if buffer_size > self._rows:
            raise SourceError(
                f"{given} is larger than the data",
                cause=f"{self._rows} rows",
                hint=f"write buffer_size={self._rows} to shuffle all rows together, or use FeatureSet.from_parquet",
            )
        return int(buffer_size)


@contextmanager
def _source_errors(label: str) -> Iterator[None]:
    try:
        yield
    except (ColumnError, MissingFileError):
        raise
    except DataError as error:
        raise SourceError(f"source {label!r}: {error.problem}", available=error.available, hint=error.hint) from error


def _checked_sampler(label: str, sampler: Any) -> SimpleSampler:
    if isinstance(sampler, SimpleSampler):
        return sampler
    if not is_integer(sampler):
        raise SourceError(
            f"source {label!r} cannot be read by {shown(sampler)}",
            cause="rows of a stream have no numbers, which other samplers need",
            hint="give a SimpleSampler or a batch size",
        )
    return SimpleSampler(int(sampler), shuffle=True)


def _absolute(path: Any) -> Any:
    """The same files after the working folder has changed: they are opened as their rows are needed."""
    if isinstance(path, (str, os.PathLike)) and os.fspath(path) and "://" not in os.fspath(path):
        return str(Path(path).absolute())
    is_list = isinstance(path, (list, tuple)) and all(isinstance(part, (str, os.PathLike)) for part in path)
    return [str(Path(part).absolute()) for part in path] if is_list else path
