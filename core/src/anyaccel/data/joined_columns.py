"""Several columns read together as one tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from anyaccel.data.arrow_columns import read_only
from anyaccel.data.casting import first_unrepresentable
from anyaccel.data.column_copy import ChunkedColumn, chunked_columns, copy_joined
from anyaccel.data.roles import listed
from anyaccel.data.rows import Rows
from anyaccel.errors import ColumnError
from anyaccel.host_memory import aligned_empty
from anyaccel.segment import TensorSpec


def joined_spec(rows: Rows, names: Sequence[str]) -> TensorSpec:
    """Shape per sample and dtype of columns read as one tensor.

    A single column is as it is. Several are joined along the last axis, where a scalar counts as shape (1,), in the
    dtype to which NumPy promotes theirs: the wider one, floating if one of them is.

    Raises:
        ColumnError: no names, an unknown one, columns whose shapes differ in more than the last axis, or integers that
            no integer dtype holds together (int64 and uint64).
    """
    if not names:
        raise ColumnError(
            f"no columns of {rows.label!r} were named", available=listed(rows.columns), hint="name at least one"
        )
    specs = [rows.spec(name) for name in names]
    if len(specs) == 1:
        return specs[0]
    ragged = next((name for name in names if rows.is_ragged(name)), None)
    if ragged is not None:
        raise ColumnError(
            f"column {ragged!r} of {rows.label!r}, whose rows differ in length, cannot be joined with others",
            available=f"columns: {listed(names)}",
            hint=f"use separate references as separate inputs: {rows.label}.reference({ragged!r})",
        )
    first = _as_tensor(specs[0])
    for name, spec in zip(names, specs, strict=True):
        if _as_tensor(spec)[:-1] != first[:-1]:
            raise ColumnError(
                f"columns {names[0]!r} ({specs[0]}) and {name!r} ({spec}) of {rows.label!r} cannot be joined",
                cause="joined columns have one shape except for the last axis",
                hint="use separate references as separate inputs",
            )
    return TensorSpec((*first[:-1], sum(_as_tensor(spec)[-1] for spec in specs)), _promoted(rows.label, names, specs))


def joined_changes(rows: Rows, names: Sequence[str]) -> tuple[str, ...]:
    """The columns that change their dtype when joined: `b int64 as float64`.

    Raises:
        ColumnError: as `joined_spec`.
    """
    dtype, specs = joined_spec(rows, names).dtype, {name: rows.spec(name) for name in names}
    return tuple(f"{name} {spec.dtype} as {dtype}" for name, spec in specs.items() if spec.dtype != dtype)


def joined_array(rows: Rows, names: Sequence[str], dtype: str | None = None) -> np.ndarray:
    """Columns read as one tensor, [n, *shape] as `joined_spec` says, read-only; a single column is not copied.

    Args:
        rows: whose columns.
        names: of the columns.
        dtype: the floating dtype in which the numbers are used later; integers joined with floats must fit it too.

    Raises:
        ColumnError: as `joined_spec`; or integers that a floating dtype cannot hold exactly.
    """
    spec = joined_spec(rows, names)
    if len(names) == 1:
        return rows.array(names[0])
    columns = _exact_columns(rows, names, spec.dtype, spec.dtype if dtype is None else dtype)
    return read_only(copy_joined(columns, np.empty((len(rows), *spec.shape), spec.dtype)))


def loadable_array(rows: Rows, names: Sequence[str], dtype: Any) -> np.ndarray:
    """Columns read as one tensor in the dtype in which they are used, [n, *shape], made in one pass.

    A single column of that dtype is the read-only memory of the feature set. Everything else is new memory,
    C-contiguous and aligned to 64 bytes, which may be given away.

    Args:
        rows: whose columns.
        names: of the columns.
        dtype: anything that NumPy takes as a dtype; integers that are joined with floats must fit it exactly.

    Raises:
        ColumnError: as `joined_array`.
        TypeError: NumPy has no such dtype.
    """
    spec, target = joined_spec(rows, names), np.dtype(dtype)
    columns = _exact_columns(rows, names, spec.dtype, target)
    whole = columns[0].whole if len(columns) == 1 else None
    if whole is not None and whole.dtype == target:
        return whole
    return copy_joined(columns, aligned_empty((len(rows), *spec.shape), target))


def _exact_columns(rows: Rows, names: Sequence[str], joined: str, target: Any) -> list[ChunkedColumn]:
    """The columns where they lie; integers joined with floats are checked to be exact in both dtypes."""
    if len(names) > 1 and np.dtype(joined).kind == "f":
        for name in names:
            _check_exact(rows, name, [np.dtype(joined), np.dtype(target)])
    return chunked_columns(rows, names)


def _promoted(label: str, names: Sequence[str], specs: Sequence[TensorSpec]) -> str:
    """NumPy's common dtype, except for uint64 with signed integers, which NumPy promotes to floats."""
    dtypes = [np.dtype(spec.dtype) for spec in specs]
    common = np.result_type(*dtypes)
    if common.kind != "f" or any(dtype.kind == "f" for dtype in dtypes):
        return str(common)
    unsigned = dtypes.index(np.dtype(np.uint64))
    signed = [dtype.kind for dtype in dtypes].index("i")
    raise ColumnError(
        f"columns {names[signed]!r} ({specs[signed]}) and {names[unsigned]!r} ({specs[unsigned]}) of {label!r} cannot "
        "be joined",
        cause="no integer dtype holds both",
        hint=f"cast({{{names[unsigned]!r}: 'int64'}}, keep_splits=True), or use separate references as separate inputs",
    )


def _check_exact(rows: Rows, name: str, dtypes: Sequence[np.dtype[Any]]) -> None:
    if np.dtype(rows.spec(name).dtype).kind not in "iu":
        return
    array = rows.array(name)
    for dtype in dtypes:
        if dtype.kind == "f" and (problem := first_unrepresentable(array, dtype)) is not None:
            raise ColumnError(
                f"column {name!r} of {rows.label!r} is joined with floats as {dtype}: row {problem[0]} holds "
                f"{problem[1]}",
                cause=f"{dtype} holds integers to 2**{np.finfo(dtype).nmant + 1} exactly",
                hint=f"make them smaller, with fit_transform() and a scaler, or take {name!r} out of this reference",
            )


def join(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Columns [n, *shape] as one array: one as it is, several along the last axis, flat if their shapes differ."""
    if len(parts) == 1:
        return parts[0]
    tensors = [part if part.ndim > 1 else part[:, None] for part in parts]
    if len({tensor.shape[1:-1] for tensor in tensors}) > 1:
        tensors = [part.reshape(len(part), math.prod(part.shape[1:])) for part in parts]
    return np.concatenate(tensors, axis=-1)


def _as_tensor(spec: TensorSpec) -> tuple[int, ...]:
    return spec.shape or (1,)
