"""Casting: another dtype for a column, refused where a value would not survive it."""

from __future__ import annotations

from typing import Any

import numpy as np

from anyaccel.data.arrow_columns import KINDS, WIDEST, by_row, not_numbers
from anyaccel.errors import ColumnError


def cast_array(name: str, array: np.ndarray, dtype: Any) -> np.ndarray:
    """`array` [n, *shape] in another dtype, C-contiguous, always a copy.

    Floats may be rounded to a narrower float; everything else keeps its value.

    Raises:
        ColumnError: `dtype` is no dtype of numbers, or a value has no place in it (300 in uint8, 0.5 in int64,
            2**24 + 1 in float32, 1e39 in float32).
    """
    wanted = _dtype(name, dtype)
    fits = _fitting(array, wanted)
    if not fits.all():
        first, value = _first_without(array, fits)
        raise ColumnError(
            f"column {name!r} cannot be cast from {array.dtype} to {wanted}: row {first} holds {value}",
            available=f"{int((~fits).sum())} values have no place in {wanted}",
            hint="choose a wider dtype, or round or clip the values yourself first",
        )
    return array.astype(wanted, order="C", copy=True)


def first_unrepresentable(array: np.ndarray, wanted: np.dtype[Any]) -> tuple[int, Any] | None:
    """Row and value of the first number of `array` [n, *shape] that has no place in `wanted`; None where all have."""
    fits = _fitting(array, wanted)
    return None if fits.all() else _first_without(array, fits)


def _first_without(array: np.ndarray, fits: np.ndarray) -> tuple[int, Any]:
    first = int(by_row(~fits).argmax())
    return first, array[first][~fits[first]].flat[0]


def _dtype(name: str, dtype: Any) -> np.dtype[Any]:
    try:
        wanted: np.dtype[Any] = np.dtype(dtype).newbyteorder("=")
    except TypeError as error:
        raise not_numbers(name, repr(dtype)) from error
    if dtype is None or wanted.kind not in KINDS or wanted.itemsize > WIDEST:
        raise not_numbers(name, repr(dtype) if dtype is None else str(wanted))
    return wanted


def _fitting(array: np.ndarray, wanted: np.dtype[Any]) -> np.ndarray:
    """Which values keep their meaning in `wanted`, bool of the shape of `array`."""
    if wanted == array.dtype or array.dtype.kind == "b":
        return np.ones(array.shape, dtype=bool)
    if wanted.kind == "f":
        return _fitting_float(array, wanted)
    low, high = (0, 1) if wanted.kind == "b" else (np.iinfo(wanted).min, np.iinfo(wanted).max)
    if array.dtype.kind == "f":
        wide = array.astype(np.float64)
        # high + 1 is a power of two and thus exact in float64, which high itself need not be.
        return np.asarray((wide == np.trunc(wide)) & (wide >= float(low)) & (wide < float(high + 1)))
    own = np.iinfo(array.dtype)
    return np.asarray((array >= max(low, own.min)) & (array <= min(high, own.max)))


def _fitting_float(array: np.ndarray, wanted: np.dtype[Any]) -> np.ndarray:
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):
            return np.asarray(np.isfinite(array.astype(wanted)) | ~np.isfinite(array))
    own, exact = np.iinfo(array.dtype), 2 ** (np.finfo(wanted).nmant + 1)
    return np.asarray((array >= max(-exact, own.min)) & (array <= min(exact, own.max)))
