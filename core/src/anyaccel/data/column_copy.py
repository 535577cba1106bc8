"""Filling: columns into one array of another layout or dtype, in one pass over the memory that they lie in.

Numbers of a column may lie in several pieces of Arrow memory (row groups of a file), and only some rows may be wanted.
Whatever has to be done to them is done block by block in memory that stays in the processor's cache, on the way.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from anyaccel.data.arrow_columns import to_numpy
from anyaccel.data.feature_set_view import FeatureSetView
from anyaccel.data.rows import Rows

_BLOCK = 2 * 2**20  # bytes of columns side by side that the caches hold: measured from 0.4 to 13 MB
_THREADS = 4  # at most: memory is no faster for more
_SHARE = 16 * 2**20  # bytes that are worth a thread
_TILE = 64  # columns that are turned into rows together
_FEW = 4  # so many columns of bare numbers are cheaper written one by one
_LEAST = 512  # rows of a block, for the calls that each costs
_LINE = 64  # bytes; without so many between two rows of a block, all would meet in the same places of a cache


@dataclass(frozen=True)
class Source:
    """A column as it lies in memory.

    Attributes:
        pieces: arrays [m, *shape] in the order of the rows, at least one.
        chosen: which rows of all pieces together, int64 [n], in any order; None for all.
    """

    pieces: tuple[np.ndarray, ...]
    chosen: np.ndarray | None = None

    @property
    def as_it_is(self) -> np.ndarray | None:
        """The column where it needs nothing done: one piece, all rows of it."""
        return self.pieces[0] if len(self.pieces) == 1 and self.chosen is None else None

    @property
    def width(self) -> int:
        """How many numbers of the last axis it has; a bare number counts as one."""
        return int(self.pieces[0].shape[-1]) if self.pieces[0].ndim > 1 else 1

    def read(self, start: int, stop: int, out: np.ndarray) -> None:
        """Rows of the column into `out` [stop - start, *shape], with a cast where its dtype is another.

        From several pieces they are to be wanted in ascending order.
        """
        if len(self.pieces) == 1 and self.chosen is not None:
            gather(self.pieces[0], self.chosen[start:stop], out)
        elif len(self.pieces) == 1:
            np.copyto(out, self.pieces[0][start:stop], casting="unsafe")
        elif self.chosen is None:
            for piece, first in self._between(start, stop):
                low, high = max(first, start), min(first + len(piece), stop)
                out[low - start : high - start] = piece[low - first : high - first]
        else:
            self._pick(self.chosen[start:stop], out)

    def _pick(self, chosen: np.ndarray, out: np.ndarray) -> None:
        """Ascending rows from several pieces."""
        for piece, first in self._between(int(chosen[0]), int(chosen[-1]) + 1) if len(chosen) else ():
            low, high = np.searchsorted(chosen, (first, first + len(piece)))
            if low < high:
                gather(piece, chosen[low:high] - first, out[low:high])

    def _between(self, start: int, stop: int) -> Iterator[tuple[np.ndarray, int]]:
        """The pieces with rows from `start` to `stop`, and the number of the first row of each."""
        number = bisect_right(self._ends, start)
        while number < len(self.pieces) and self._ends[number] - len(self.pieces[number]) < stop:
            yield self.pieces[number], self._ends[number] - len(self.pieces[number])
            number += 1

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(map(len, self.pieces)))


def sources_of(rows: Rows, names: Sequence[str]) -> list[Source]:
    """Columns of rows where they lie, without a copy; but bools, which Arrow packs, are unpacked."""
    chosen = _chosen(rows.rows, len(rows.feature_set)) if isinstance(rows, FeatureSetView) else None
    return [_source(rows, name, chosen) for name in names]


def _source(rows: Rows, name: str, chosen: np.ndarray | slice | None) -> Source:
    whole: Rows = rows.feature_set if isinstance(rows, FeatureSetView) else rows
    if rows.role(name) == "tag" or rows.spec(name).dtype == "bool":
        return Source((rows.array(name),))
    if sum(len(chunk) > 0 for chunk in whole.column(name).chunks) > 1:
        chunks = (rows if isinstance(chosen, slice) else whole).column(name).chunks
        pieces = tuple(to_numpy(name, chunk) for chunk in chunks if len(chunk))
        return Source(pieces, chosen if isinstance(chosen, np.ndarray) else None)
    return Source((whole.array(name),), chosen) if isinstance(chosen, np.ndarray) else Source((rows.array(name),))


def filled(sources: Sequence[Source], out: np.ndarray) -> np.ndarray:
    """`out` with columns side by side along its last axis, [n, *shape]; bare numbers take one place of it.

    One column alone is of the shape of `out`. Of much, a few threads do a share each.
    """
    places = _places(sources)
    sources = sources if places is None else _in_order(sources, places)
    shares = _shares(out)
    if len(shares) == 1:
        _fill(sources, places, out, *shares[0])
        return out
    with ThreadPoolExecutor(len(shares), "anyaccel-filling") as threads:
        told = np.geterr()  # a thread has its own, and what the caller set would not hold there
        done = [threads.submit(_told, told, _fill, sources, places, out, start, stop) for start, stop in shares]
        for one in done:
            one.result()
    return out


def _told(errors: Any, fill: Callable[..., None], *given: Any) -> None:
    with np.errstate(**errors):
        fill(*given)


def _shares(out: np.ndarray) -> list[tuple[int, int]]:
    """Which rows each thread does."""
    count = max(1, min(_THREADS, _processors(), out.nbytes // _SHARE))
    step = max(1, -(-len(out) // count))
    return [(start, min(start + step, len(out))) for start in range(0, max(len(out), 1), step)]


def _processors() -> int:
    """Of those that this process may use, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _fill(sources: Sequence[Source], places: np.ndarray | None, out: np.ndarray, start: int, stop: int) -> None:
    """Rows from `start` to `stop`, in blocks: in place, or where `places` has them."""
    block = _rows_of_block(out)
    scratch = np.empty((min(_TILE, len(sources)), block + max(_LINE // out.itemsize, 1)), out.dtype)
    rows = None if places is None else np.empty((block, *out.shape[1:]), out.dtype)
    if len(sources) == 1 and rows is None and not _makes_more(sources[0], out):
        block = max(stop - start, 1)
    for begin in range(start, stop, block):
        end = min(begin + block, stop)
        if rows is None or places is None:
            _write(sources, begin, end, out[begin:end], scratch)
        else:
            _write(sources, begin, end, rows[: end - begin], scratch)
            _scatter(rows[: end - begin], places[begin:end], out)


def _places(sources: Sequence[Source]) -> np.ndarray | None:
    """Where rows belong that are read in ascending order, int64 [n]; None where they are read in their own order.

    Of bare numbers in many columns, or in many pieces, a row is collected from many places: that is cheap only where
    the next one is beside them.
    """
    spread = len(sources) > 1 and any(one.pieces[0].ndim == 1 for one in sources)
    chosen = next((one.chosen for one in sources if one.chosen is not None), None)
    if chosen is None or _ascends(chosen) or not (spread or any(len(one.pieces) > 1 for one in sources)):
        return None
    return np.argsort(chosen)


def _in_order(sources: Sequence[Source], places: np.ndarray) -> list[Source]:
    """The sources with the row that belongs at `places[i]` as their row i; all that choose rows choose the same."""
    one = next(one for one in sources if one.chosen is not None)
    chosen: np.ndarray | None = None if one.chosen is None else one.chosen[places]
    if chosen is not None and len(chosen) == sum(map(len, one.pieces)) and _ascends(chosen):
        chosen = None  # these are all rows
    return [Source(one.pieces, places if one.chosen is None else chosen) for one in sources]


def _scatter(rows: np.ndarray, places: np.ndarray, out: np.ndarray) -> None:
    """`out[places] = rows`, whole rows at a time."""
    whole = f"V{out.itemsize * (out.size // len(out))}"
    np.put(out.reshape(len(out), -1).view(whole), places, rows.reshape(len(rows), -1).view(whole), mode="clip")


def _write(sources: Sequence[Source], start: int, stop: int, out: np.ndarray, scratch: np.ndarray) -> None:
    """Rows of columns side by side into `out` [stop - start, *shape]."""
    if len(sources) == 1:
        sources[0].read(start, stop, out)
        return
    for run, place in _runs(sources):
        if len(run) > 1:
            _turn(run, start, stop, out[:, place : place + len(run)], scratch[: len(run), : stop - start])
        else:
            part = out[..., place : place + run[0].width]
            run[0].read(start, stop, part[:, 0] if run[0].pieces[0].ndim == 1 else part)


def _turn(run: Sequence[Source], start: int, stop: int, out: np.ndarray, scratch: np.ndarray) -> None:
    """Columns of bare numbers into rows [k, len(run)]: one under the other first, and then all at once."""
    for source, line in zip(run, scratch, strict=True):
        source.read(start, stop, line)
    out[...] = scratch.T


def _runs(sources: Sequence[Source]) -> Iterator[tuple[Sequence[Source], int]]:
    """Columns that are written together, and where in the last axis they begin: bare numbers in tiles, others alone."""
    number = place = 0
    while number < len(sources):
        stop = number
        while stop < min(number + _TILE, len(sources)) and sources[stop].pieces[0].ndim == 1:
            stop += 1
        stop = stop if stop - number >= _FEW else number + 1
        yield sources[number:stop], place
        place += sum(source.width for source in sources[number:stop])
        number = stop


def _rows_of_block(out: np.ndarray) -> int:
    row = out.itemsize * (out.size // max(len(out), 1))
    return max(1, min(max(_BLOCK // max(row, 1), _LEAST), len(out)))


def _makes_more(source: Source, out: np.ndarray) -> bool:
    """Whether reading takes memory besides `out`, so that it is to be done in blocks."""
    return source.chosen is not None and any(
        piece.dtype != out.dtype or not piece.flags.c_contiguous for piece in source.pieces
    )


def _chosen(rows: np.ndarray, count: int) -> np.ndarray | slice | None:
    """Rows of a view: None where they are all in order, a slice where they are neighbours in order."""
    first, last = int(rows[0]), int(rows[-1])
    if last - first + 1 != len(rows) or not _ascends(rows):
        return rows
    return None if len(rows) == count else slice(first, last + 1)


def _ascends(rows: np.ndarray) -> bool:
    return bool((rows[1:] > rows[:-1]).all())


def gather(array: np.ndarray, indices: np.ndarray, out: np.ndarray) -> np.ndarray:
    """`out[...] = array[indices]` along the first axis, and `out`; other threads run meanwhile.

    Into C-contiguous memory of the same dtype without any memory besides.

    Args:
        array: [n, *shape].
        indices: integers [k] of 0 to n - 1, which is not looked at: another number gives the first or the last row.
        out: [k, *shape], writable; of another dtype, the numbers are cast.
    """
    if array.dtype == out.dtype and array.flags.c_contiguous and out.flags.c_contiguous and len(array):
        return np.take(array, indices, axis=0, out=out, mode="clip")  # checking them would gather twice
    out[...] = array[indices]
    return out
