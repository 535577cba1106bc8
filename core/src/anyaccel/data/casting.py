"""Casts of columns to another dtype, refused where a value would not survive."""

from __future__ import annotations

from typing import Any

import numpy as np

from anyaccel.data.arrow_columns import KINDS, WIDEST, any_by_row, not_numbers
from anyaccel.errors import ColumnError


def cast_array(name: str, array: np.ndarray, dtype: Any) -> np.ndarray:
    """Return `array` [n, *shape] in another dtype, C-contiguous, always a copy.

    Floats may be rounded to a narrower float; everything else keeps its value.
    """
    try:
        target: np.dtype[Any] = np.dtype(dtype).newbyteorder("=")
    except TypeError as error:
        raise not_numbers(name, repr(dtype)) from error
    if dtype is None or target.kind not in KINDS or target.itemsize > WIDEST:
        raise not_numbers(name, repr(dtype) if dtype is None else str(target))
    fits = _representable(array, target)
    if not fits.all():
        row, value = _first_false(array, fits)
        raise ColumnError(
            f"column {name!r} cannot be cast from {array.dtype} to {target}: row {row} holds {value}",
            cause=f"{int((~fits).sum())} values cannot be represented in {target}",
            hint="choose a wider dtype, or round or clip the values first",
        )
    return array.astype(target, order="C", copy=True)


def widened(array: np.ndarray) -> np.ndarray:
    """Return `array`, or a float32 copy if its floats have a dtype that NumPy itself lacks (bfloat16, float8).

    Such dtypes are narrower than float32, so no value changes; NumPy's own functions and Arrow accept the copy.
    """
    return array.astype(np.float32) if array.dtype.name.startswith(("bfloat", "float8")) else array


def first_unrepresentable(array: np.ndarray, dtype: np.dtype[Any]) -> tuple[int, Any] | None:
    """Return row and value of the first number of `array` [n, *shape] that `dtype` cannot represent, or None."""
    fits = _representable(array, dtype)
    return None if fits.all() else _first_false(array, fits)


def _first_false(array: np.ndarray, fits: np.ndarray) -> tuple[int, Any]:
    row = int(any_by_row(~fits).argmax())
    return row, array[row][~fits[row]].flat[0]


def _representable(array: np.ndarray, target: np.dtype[Any]) -> np.ndarray:
    """Return which values keep their meaning in `target`, bool of the shape of `array`."""
    if target == array.dtype or array.dtype.kind == "b":
        return np.ones(array.shape, dtype=bool)
    if target.kind == "f":
        return _representable_as_float(array, target)
    low, high = (0, 1) if target.kind == "b" else (np.iinfo(target).min, np.iinfo(target).max)
    if array.dtype.kind == "f":
        wide = array.astype(np.float64)
        # high + 1 is a power of two and thus exact in float64, which high itself need not be.
        return np.asarray((wide == np.trunc(wide)) & (wide >= float(low)) & (wide < float(high + 1)))
    limits = np.iinfo(array.dtype)
    return np.asarray((array >= max(low, limits.min)) & (array <= min(high, limits.max)))


def _representable_as_float(array: np.ndarray, target: np.dtype[Any]) -> np.ndarray:
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):
            return np.asarray(np.isfinite(array.astype(target)) | ~np.isfinite(array))
    limits, exact = np.iinfo(array.dtype), 2 ** (np.finfo(target).nmant + 1)
    return np.asarray((array >= max(-exact, limits.min)) & (array <= min(exact, limits.max)))
