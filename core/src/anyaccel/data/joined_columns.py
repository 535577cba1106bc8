"""Several columns read together as one tensor."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from anyaccel.data.arrow_columns import check_joinable, first_unrepresentable, is_list, read_only, to_numpy
from anyaccel.data.roles import listed
from anyaccel.data.rows import Rows
from anyaccel.errors import ColumnError
from anyaccel.host_memory import aligned_empty, usable_cores
from anyaccel.segment import TensorSpec


def joined_spec(rows: Rows, names: Sequence[str]) -> TensorSpec:
    """Return the shape per sample and the dtype of columns read as one tensor.

    A single column is unchanged. Several are joined along the last axis, where a scalar counts as shape (1,), in the
    dtype that NumPy promotes theirs to: the wider one, floating if any is floating.

    Raises:
        ColumnError: no names, an unknown one, columns whose shapes differ in more than the last axis, or integers that
            no integer dtype holds together (int64 and uint64).
    """
    if not names:
        raise ColumnError(
            f"no columns of {rows.label!r} are named", available=listed(rows.columns), hint="name at least one"
        )
    if len(names) == 1:
        return rows.spec(names[0])
    specs = [rows.spec(name) for name in names]
    check_joinable(rows.label, [rows.schema.field(name) for name in names], listed(names))
    first = _as_tensor(specs[0])
    for name, spec in zip(names, specs, strict=True):
        if _as_tensor(spec)[:-1] != first[:-1]:
            raise ColumnError(
                f"columns {names[0]!r} ({specs[0]}) and {name!r} ({spec}) of {rows.label!r} cannot be joined",
                cause="joined columns must have the same shape except for the last axis",
                hint="use separate references as separate inputs",
            )
    dtypes = [np.dtype(spec.dtype) for spec in specs]
    common = np.result_type(*dtypes)
    if common.kind == "f" and not any(dtype.kind == "f" for dtype in dtypes):  # NumPy's for uint64 with signed integers
        unsigned = dtypes.index(np.dtype(np.uint64))
        signed = [dtype.kind for dtype in dtypes].index("i")
        raise ColumnError(
            f"columns {names[signed]!r} ({specs[signed]}) and {names[unsigned]!r} ({specs[unsigned]}) of "
            f"{rows.label!r} cannot be joined",
            cause="no integer dtype holds both",
            hint=f"cast({{{names[unsigned]!r}: 'int64'}}, keep_splits=True), or use separate references as separate "
            "inputs",
        )
    return TensorSpec((*first[:-1], sum(_as_tensor(spec)[-1] for spec in specs)), str(common))


def joined_changes(rows: Rows, names: Sequence[str]) -> tuple[str, ...]:
    """Return the columns that change their dtype when joined: `b int64 as float64`.

    Raises:
        ColumnError: as `joined_spec`.
    """
    if len(names) == 1:
        return ()
    dtype, specs = joined_spec(rows, names).dtype, {name: rows.spec(name) for name in names}
    return tuple(f"{name} {spec.dtype} as {dtype}" for name, spec in specs.items() if spec.dtype != dtype)


def joined_array(rows: Rows, names: Sequence[str], dtype: str | None = None) -> np.ndarray:
    """Read columns as one tensor, [n, *shape] as `joined_spec` defines, read-only; a single column is not copied.

    Args:
        rows: The rows with the columns.
        names: Names of the columns.
        dtype: Floating dtype in which the numbers are used later; integers joined with floats must fit it, too.

    Raises:
        ColumnError: see `joined_spec`; or integers that a floating dtype cannot hold exactly.
    """
    spec = joined_spec(rows, names)
    if len(names) == 1:
        return rows.array(names[0])
    columns = _exact_columns(rows, names, spec.dtype, spec.dtype if dtype is None else dtype)
    return read_only(copy_joined(columns, np.empty((len(rows), *spec.shape), spec.dtype)))


def loadable_array(rows: Rows, names: Sequence[str], dtype: Any) -> np.ndarray:
    """Read columns as one tensor [n, *shape] in the dtype of their use, in one pass.

    A single column of that dtype is the read-only memory of the feature set. Everything else is new memory,
    C-contiguous and aligned to 64 bytes, whose ownership may be given up.

    Args:
        rows: The rows with the columns.
        names: Names of the columns.
        dtype: A dtype in any form that NumPy accepts; integers that are joined with floats must fit it exactly.

    Raises:
        ColumnError: see `joined_array`.
        TypeError: NumPy has no such dtype.
    """
    spec, target = joined_spec(rows, names), np.dtype(dtype)
    columns = _exact_columns(rows, names, spec.dtype, target)
    first = columns[0]
    if len(columns) == len(first.chunks) == 1 and first.rows is None and first.chunks[0].dtype == target:
        return first.chunks[0]
    return copy_joined(columns, aligned_empty((len(rows), *spec.shape), target))


def _exact_columns(rows: Rows, names: Sequence[str], joined: str, target: Any) -> list[ChunkedColumn]:
    """Return the columns in place, without a copy (only bool, which Arrow packs, is unpacked); integers joined with
    floats are checked to be exact in both dtypes.
    """
    if len(names) > 1 and np.dtype(joined).kind == "f":
        for name in names:
            dtypes = [np.dtype(joined), np.dtype(target)]
            if np.dtype(rows.spec(name).dtype).kind not in "iu":
                continue
            array = rows.array(name)
            for dtype in dtypes:
                if dtype.kind == "f" and (problem := first_unrepresentable(array, dtype)) is not None:
                    raise ColumnError(
                        f"column {name!r} of {rows.label!r} is joined with floats as {dtype}: row {problem[0]} holds "
                        f"{problem[1]}",
                        cause=f"{dtype} holds integers to 2**{np.finfo(dtype).nmant + 1} exactly",
                        hint=f"scale them with fit_transform() and a scaler, or leave {name!r} out of this reference",
                    )
    chosen = rows.indices
    is_slice = False
    if chosen is not None:
        first, last = int(chosen[0]), int(chosen[-1])
        if last - first + 1 == len(chosen) and _ascends(chosen):  # neighbours in order, which views slice
            is_slice, chosen = len(chosen) < len(rows.base), None
    columns = []
    for name in names:
        has_array = rows.role(name) == "tag" or rows.spec(name).dtype == "bool" or is_list(rows.schema.field(name).type)
        if not has_array and sum(len(chunk) > 0 for chunk in rows.base.column(name).chunks) > 1:
            chunks = (rows if is_slice else rows.base).column(name).chunks
            columns.append(ChunkedColumn(tuple(to_numpy(name, chunk) for chunk in chunks if len(chunk)), chosen))
        elif has_array or chosen is None:
            columns.append(ChunkedColumn((rows.array(name),)))
        else:
            columns.append(ChunkedColumn((rows.base.array(name),), chosen))
    return columns


def join(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Join columns [n, *shape] as one array: one unchanged, several along the last axis, flat if their shapes
    differ.
    """
    if len(parts) == 1:
        return parts[0]
    tensors = [part if part.ndim > 1 else part[:, None] for part in parts]
    if len({tensor.shape[1:-1] for tensor in tensors}) > 1:
        tensors = [part.reshape(len(part), math.prod(part.shape[1:])) for part in parts]
    return np.concatenate(tensors, axis=-1)


def _as_tensor(spec: TensorSpec) -> tuple[int, ...]:
    return spec.shape or (1,)


# -- Copy columns side by side into one array, in one pass over the memory that they lie in ----------------------------
#
# A column may lie in several chunks of Arrow memory (row groups of a file), and only some of its rows may be needed.
# Casts and changes of layout are done on the way, block by block in memory that stays in the processor's cache.


_BLOCK = 2 * 2**20  # bytes of a block of rows; measured to be best from 0.4 to 13 MB
_THREADS = 4  # at most: memory is not faster with more
_SHARE = 16 * 2**20  # bytes that are worth a thread
_TILE = 64  # scalar columns that are transposed together
_FEW = 4  # so many scalar columns are cheaper to write one by one
_LEAST = 512  # rows of a block, to pay for the calls that each costs
_LINE = 64  # bytes between two rows of a block, so that they do not share places of a cache


@dataclass(frozen=True)
class ChunkedColumn:
    """A column in its Arrow chunks, read without a copy of the whole.

    Attributes:
        chunks: Arrays [m, *shape] in the order of the rows, at least one.
        rows: Rows to read, numbered over all chunks, int64 [n], in any order; None for all.
    """

    chunks: tuple[np.ndarray, ...]
    rows: np.ndarray | None = None

    @property
    def is_scalar(self) -> bool:
        """Whether a sample is a single number without axes."""
        return self.chunks[0].ndim == 1

    @property
    def width(self) -> int:
        """Extent of the last axis; 1 for scalars."""
        return 1 if self.is_scalar else int(self.chunks[0].shape[-1])

    def read(self, start: int, stop: int, out: np.ndarray) -> None:
        """Copy rows into `out` [stop - start, *shape], cast to its dtype.

        From several chunks, `rows` must be ascending.
        """
        if len(self.chunks) == 1 and self.rows is not None:
            gather(self.chunks[0], self.rows[start:stop], out)
        elif len(self.chunks) == 1:
            np.copyto(out, self.chunks[0][start:stop], casting="unsafe")
        elif self.rows is None:
            for chunk, first in self._between(start, stop):
                low, high = max(first, start), min(first + len(chunk), stop)
                out[low - start : high - start] = chunk[low - first : high - first]
        elif start < stop:
            rows = self.rows[start:stop]
            for chunk, first in self._between(int(rows[0]), int(rows[-1]) + 1):
                low, high = np.searchsorted(rows, (first, first + len(chunk)))
                if low < high:
                    gather(chunk, rows[low:high] - first, out[low:high])

    def _between(self, start: int, stop: int) -> Iterator[tuple[np.ndarray, int]]:
        """Yield the chunks with rows from `start` to `stop`, and the number of the first row of each."""
        number = bisect_right(self._ends, start)
        while number < len(self.chunks) and self._ends[number] - len(self.chunks[number]) < stop:
            yield self.chunks[number], self._ends[number] - len(self.chunks[number])
            number += 1

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(map(len, self.chunks)))


_Run = tuple[Sequence[ChunkedColumn], int]
"""Columns that are written together, and where in the last axis they begin."""


def copy_joined(columns: Sequence[ChunkedColumn], out: np.ndarray) -> np.ndarray:
    """Copy columns side by side along the last axis of `out` [n, *shape], and return it; scalars take one place.

    A single column has the shape of `out`. Large copies are shared between a few threads.
    """
    first = next((column for column in columns if column.rows is not None), None)
    jumps = any(len(column.chunks) > 1 for column in columns)  # between chunks, or from place to place of `out`
    jumps = jumps or (len(columns) > 1 and any(column.is_scalar for column in columns))
    places: np.ndarray | None = None  # of the rows of all columns that choose some, which choose the same
    if jumps and first is not None and first.rows is not None and not _ascends(first.rows):
        places = np.argsort(first.rows)  # the row that goes to `places[i]` becomes row i
        ordered = first.rows[places]
        is_all = len(ordered) == sum(map(len, first.chunks)) and _ascends(ordered)
        rows = None if is_all else ordered
        columns = [ChunkedColumn(column.chunks, places if column.rows is None else rows) for column in columns]
    # The first row of each thread, and the row after its last.
    count = max(1, min(_THREADS, usable_cores(), out.nbytes // _SHARE))
    step = max(1, -(-len(out) // count))
    shares = [(start, min(start + step, len(out))) for start in range(0, max(len(out), 1), step)]
    if len(shares) == 1:
        _copy(columns, places, out, *shares[0])
        return out
    with ThreadPoolExecutor(len(shares), "anyaccel-copy") as pool:
        errstate: Any = np.geterr()  # a thread has its own, which would not be what the caller set

        def copy_share(start: int, stop: int) -> None:
            with np.errstate(**errstate):
                _copy(columns, places, out, start, stop)

        futures = [pool.submit(copy_share, *share) for share in shares]
        for future in futures:
            future.result()
    return out


def _copy(columns: Sequence[ChunkedColumn], places: np.ndarray | None, out: np.ndarray, start: int, stop: int) -> None:
    """Copy rows from `start` to `stop` in blocks, to the same rows of `out` or to those in `places`."""
    row_bytes = out.itemsize * (out.size // max(len(out), 1))
    block = max(1, min(max(_BLOCK // max(row_bytes, 1), _LEAST), len(out)))
    runs: list[_Run] = []  # scalar columns in tiles, others alone
    number = place = 0
    while number < len(columns):
        end = number
        while end < min(number + _TILE, len(columns)) and columns[end].is_scalar:
            end += 1
        end = end if end - number >= _FEW else number + 1
        runs.append((columns[number:end], place))
        place += sum(column.width for column in columns[number:end])
        number = end
    scratch = np.empty((min(_TILE, len(columns)), block + max(_LINE // out.itemsize, 1)), out.dtype)
    rows = None if places is None else np.empty((block, *out.shape[1:]), out.dtype)
    if len(columns) == 1 and rows is None:
        only = columns[0]
        allocates = any(chunk.dtype != out.dtype or not chunk.flags.c_contiguous for chunk in only.chunks)
        if only.rows is None or not allocates:  # reading it takes no memory but `out`
            block = max(stop - start, 1)
    for begin in range(start, stop, block):
        end = min(begin + block, stop)
        if rows is None or places is None:
            _write(runs, begin, end, out[begin:end], scratch)
        else:
            _write(runs, begin, end, rows[: end - begin], scratch)
            # out[places] = rows, whole rows at a time
            whole_row, part = f"V{out.itemsize * (out.size // len(out))}", rows[: end - begin]
            flat = out.reshape(len(out), -1).view(whole_row)
            np.put(flat, places[begin:end], part.reshape(len(part), -1).view(whole_row), mode="clip")


def _write(runs: Sequence[_Run], start: int, stop: int, out: np.ndarray, scratch: np.ndarray) -> None:
    """Rows of columns side by side into `out` [stop - start, *shape]."""
    if len(runs) == 1 and len(runs[0][0]) == 1:
        runs[0][0][0].read(start, stop, out)
        return
    for run, place in runs:
        if len(run) > 1:
            lines = scratch[: len(run), : stop - start]  # scalar columns, one below the other, then all together
            for column, line in zip(run, lines, strict=True):
                column.read(start, stop, line)
            out[:, place : place + len(run)] = lines.T
        else:
            part = out[..., place : place + run[0].width]
            run[0].read(start, stop, part[:, 0] if run[0].is_scalar else part)


def _ascends(rows: np.ndarray) -> bool:
    return bool((rows[1:] > rows[:-1]).all())


def gather(array: np.ndarray, indices: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Compute `out[...] = array[indices]` along the first axis, and return `out`, without holding the interpreter lock.

    Allocates nothing if both are C-contiguous and of one dtype.

    Args:
        array: [n, *shape].
        indices: Integers [k] from 0 to n - 1, unchecked: others read the first or the last row.
        out: [k, *shape], writable; numbers are cast to its dtype.
    """
    if array.dtype == out.dtype and array.flags.c_contiguous and out.flags.c_contiguous and len(array):
        return np.take(array, indices, axis=0, out=out, mode="clip")  # checking them would gather twice
    out[...] = array[indices]
    return out
