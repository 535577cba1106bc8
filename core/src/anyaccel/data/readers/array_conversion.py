"""Array-likes (arrays, lists, pandas and Arrow columns) as Arrow columns that no one else can write to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from anyaccel.data.arrow_columns import (
    KINDS,
    WIDEST,
    any_by_row,
    check_column,
    contiguous,
    empty_axis,
    fixed_size_lists,
    list_column,
    missing_values,
    not_numbers,
    ragged,
    to_arrow,
    to_numpy,
    widened,
)
from anyaccel.data.readers.plain_layout import plain_column
from anyaccel.errors import ColumnError


def number_column(name: str, values: Any) -> Any:
    """Return a feature or target as an Arrow chunked column on its own memory; the dtype is kept.

    Args:
        name: Name of the column, for messages.
        values: Array-like of shape [n, *shape]; lists get the dtype that NumPy gives them.
    """
    converted = _as_arrow(name, values)
    if isinstance(converted, pa.ChunkedArray):
        converted = fixed_size_lists(name, converted)
        check_column(name, converted)
        converted = to_numpy(name, contiguous(converted))
    array = widened(_numbers(name, converted))
    if array.dtype.kind not in KINDS or array.dtype.itemsize > WIDEST:
        raise not_numbers(name, str(array.dtype))
    if 0 in array.shape[1:]:
        raise empty_axis(name, array.shape[1:])
    owned = np.array(array, dtype=array.dtype.newbyteorder("="), order="C", copy=True)
    return pa.chunked_array([to_arrow(owned)])


def read_column(name: str, values: Any, role: str, *, may_differ: bool = False) -> Any:
    """Return array-like values as an Arrow chunked column for a role.

    Args:
        name: Name of the column, for messages.
        values: See `number_column` and `tag_column`.
        role: The role.
        may_differ: Whether the rows may differ in length, for a column of lists: Arrow, or a sequence of rows that
            NumPy reads as arrays.
    """
    if role == "tag":
        return tag_column(name, values)
    if not may_differ:
        return number_column(name, values)
    converted = _as_arrow(name, values)
    return converted if isinstance(converted, pa.ChunkedArray) else list_column(name, converted)


def tag_column(name: str, values: Any) -> Any:
    """Return a tag as an Arrow chunked column, on its own memory unless the values are Arrow's already."""
    converted = _as_arrow(name, values)
    if isinstance(converted, pa.ChunkedArray):
        is_given = isinstance(values, (pa.Array, pa.ChunkedArray))
        return converted if is_given else converted.take(pa.array(np.arange(len(converted))))
    try:
        return number_column(name, converted)
    except ColumnError as no_number:
        plain = converted
        if isinstance(converted, np.ndarray):
            plain = converted.copy() if converted.ndim == 1 else converted.tolist()
            if converted.dtype.kind in "mM" and np.datetime_data(converted.dtype)[0] not in ("s", "ms", "us", "ns"):
                plain = converted.astype(f"{converted.dtype.kind}8[s]")  # Arrow has no months or hours
        try:
            column = pa.array(plain, from_pandas=True)  # NaN among text is missing, too
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            if hasattr(converted, "toarray") or _array(name, converted).dtype.kind == "c":
                raise no_number from error
            if isinstance(error, OverflowError):
                raise ColumnError(
                    f"column {name!r} cannot be read: it has integers of more than 64 bits",
                    hint="convert it to text if it identifies something, or to float",
                ) from error
            raise ColumnError(
                f"column {name!r} cannot be read: {error}",
                hint="use values of one type: numbers, text, dates, or lists of these",
            ) from error
        return column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])


def _as_arrow(name: str, values: Any) -> Any:
    """Return a chunked array for Arrow data and objects that convert themselves to it, everything else unchanged."""
    if isinstance(values, pa.ChunkedArray):
        return values
    if isinstance(values, pa.Array):
        return pa.chunked_array([values])
    if isinstance(getattr(values, "dtype", None), np.dtype):
        return values
    if hasattr(values, "columns"):
        raise ColumnError(
            f"column {name!r} is a whole data frame",
            hint=f"pass its values as one column, {name!r}: frame.to_numpy(), or each column by its name",
        )
    # Arrow reads a pandas Series by its class; only recent ones have an Arrow interface.
    if hasattr(values, "__arrow_array__") or hasattr(values, "iloc"):
        try:
            return _as_arrow(name, pa.array(values))
        except (pa.ArrowException, TypeError):  # sparse columns, and categories of several types
            return np.asarray(values)
    return plain_column(pa.chunked_array(values)) if hasattr(values, "__arrow_c_stream__") else values


def _numbers(name: str, values: Any) -> np.ndarray:
    if isinstance(values, np.ma.MaskedArray) and np.ma.getmaskarray(values).any():
        raise missing_values(name, any_by_row(np.ma.getmaskarray(values)), "masked values")
    if isinstance(values, (list, tuple)) and any(isinstance(value, np.ma.MaskedArray) for value in values):
        masked = np.array([bool(np.ma.getmaskarray(value).any()) for value in values])
        if masked.any():
            raise missing_values(name, masked, "masked values")
    array = _array(name, values)
    if array.ndim == 0 and callable(getattr(values, "toarray", None)):
        raise ColumnError(
            f"column {name!r} is a sparse {type(values).__name__}",
            cause="columns are dense arrays [n, *shape]",
            hint=f"write {name!r}: x.toarray(), or reduce its columns first (TruncatedSVD)",
        )
    if array.ndim == 0:
        raise ColumnError(
            f"column {name!r} has no rows: it is a single {type(values).__name__}",
            hint="pass an array or a list with one entry per row",
        )
    if array.dtype == np.object_:
        values = _unnest(array)
        array = _array(name, values)
    if array.dtype == np.object_:
        missing = np.array([_is_missing(value) for value in array.flat], dtype=bool).reshape(array.shape)
        others = array[~missing]
        if missing.any() and len(others) and all(isinstance(value, str) for value in others):
            count = int(any_by_row(missing).sum())
            raise not_numbers(name, f"text, with nulls in {count} of {len(array)} rows")
        if missing.any():
            integers = len(others) and all(map(_is_integer, others))
            raise missing_values(name, any_by_row(missing), "NaN or null among integers" if integers else "nulls")
    elif array.dtype.kind == "f" and isinstance(values, (list, tuple)):
        # NumPy makes floats of integers with NaN among them, and of integers that no single dtype holds.
        missing = np.isnan(array)
        could_be = not missing.all() and (missing | (array == np.trunc(array))).all()
        if could_be and all(_is_integer(value) for value in _leaves(values) if not _is_missing(value)):
            if missing.any():
                raise missing_values(name, any_by_row(missing), "NaN or null among integers")
            raise not_numbers(name, "integers that no single dtype holds")
    return array


def _array(name: str, values: Any) -> np.ndarray:
    try:
        return np.asarray(values)
    except TypeError as error:  # a tensor of a dtype that NumPy lacks
        problem = f"column {name!r} is a {type(values).__name__} that cannot be converted to an array: {error}"
        raise ColumnError(problem, hint=f"cast it first: {name!r}: tensor.float()") from error
    except ValueError as error:
        entries = values if isinstance(values, (list, tuple)) else ()
        missing = np.array([_is_missing(entry) for entry in entries], dtype=bool)
        raise missing_values(name, missing) if missing.any() else ragged(name) from error
    except RuntimeError as error:  # a tensor that has a gradient, or is on a device
        problem = f"column {name!r} is a {type(values).__name__} that cannot be converted to an array: {error}"
        raise ColumnError(problem, hint=f"pass its values: {name!r}: tensor.detach().cpu()") from error


def _unnest(values: Any) -> Any:
    """Return object arrays and sequences as lists, at any depth; numeric arrays stay."""
    if isinstance(values, (list, tuple)) or (isinstance(values, np.ndarray) and values.dtype == np.object_):
        return [_unnest(value) for value in values]
    return values


def _leaves(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _leaves(value)
        elif isinstance(value, np.ndarray):
            yield value.dtype.type(0)  # stands for all entries, which are of one type
        else:
            yield value


def _is_integer(value: Any) -> bool:
    return isinstance(value, (int, np.integer, np.bool_))


def _is_missing(value: Any) -> bool:
    is_nan = isinstance(value, (float, np.floating)) and bool(value != value)
    return value is None or is_nan or type(value).__name__ in ("NAType", "NaTType")
