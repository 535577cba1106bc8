"""Choosing rows: by their numbers, or by conditions on their columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from anyaccel.data.arrow_columns import is_readable
from anyaccel.data.rows import Rows
from anyaccel.errors import DataError, SplitError

_EXAMPLES = 5
_CONDITIONS = "a value, a collection of values, a function of the column's array that returns a mask"


def positions_where(rows: Rows, purpose: str, conditions: Mapping[str, Any]) -> np.ndarray:
    """Return the positions of the rows that meet all conditions, int64 [k], k > 0, ascending.

    Args:
        rows: Rows with the columns.
        purpose: Purpose of the rows, in messages: `"the filter"`, `"split 'hot'"`.
        conditions: By column, of any role: a value that the column equals; a collection of values that contains it; or
            a function of the column (see `column_values`) that returns a bool mask [n].
    """
    if not isinstance(conditions, Mapping) or not conditions:
        raise DataError(
            f"the conditions of {purpose} of {rows.label!r} must be a mapping by column, got {conditions!r}",
            available=_CONDITIONS,
            hint="write {'column': value, ...}",
        )
    masks = {name: _mask(rows, name, condition) for name, condition in conditions.items()}
    together: np.ndarray = np.logical_and.reduce(list(masks.values()))
    if not together.any():
        counts = []
        for name, condition in conditions.items():
            met = f"{_described(name, condition)} is met by {int(masks[name].sum())} of {len(rows)} rows"
            if not masks[name].any() and not callable(condition):
                distinct = list(dict.fromkeys(repr(_plain(value)) for value in column_values(rows, name)[:1000]))
                more = ", ..." if len(distinct) > _EXAMPLES else ""
                met += f" (values: {', '.join(distinct[:_EXAMPLES])}{more})"
            counts.append(met)
        raise SplitError(
            f"{purpose} of {rows.label!r} leaves no rows: none meets {described(conditions)}",
            cause="; ".join(counts),
            hint="widen the conditions",
        )
    return np.flatnonzero(together).astype(np.int64)


def column_values(rows: Rows, name: str) -> np.ndarray:
    """Return a column as conditions see it: `rows.array(name)` if it is numeric without nulls, otherwise an object
    array [n].
    """
    rows.role(name)
    column = rows.column(name)
    if is_readable(column):
        return rows.array(name)
    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":  # Python's own times end at microseconds
        column = column.cast(pa.timestamp("us", column.type.tz), safe=False)
    return np.fromiter(column.to_pylist(), dtype=object, count=len(column))


def described(conditions: Mapping[str, Any]) -> str:
    """Return conditions as text that is the same in every process: `label=3, who in 2 values, voltage by <lambda>`."""
    return ", ".join(_described(name, condition) for name, condition in conditions.items())


def _described(name: str, condition: Any) -> str:
    if callable(condition):
        return f"{name} by {getattr(condition, '__name__', type(condition).__name__)}"
    values = list(condition) if _is_collection(condition) else [condition]
    return f"{name}={_plain(values[0])!r}" if len(values) == 1 else f"{name} in {len(values)} values"


def _mask(rows: Rows, name: str, condition: Any) -> np.ndarray:
    values = column_values(rows, name)
    subject = f"the condition on {name!r} of {rows.label!r}"
    if callable(condition):
        try:
            mask = np.asarray(condition(values))
        except Exception as error:
            error.add_note(
                f"Raised by {subject}, which received an array of dtype {values.dtype} and shape {list(values.shape)}."
            )
            raise
        if mask.dtype != np.bool_ or mask.shape != values.shape[:1]:
            raise DataError(
                f"{subject} returned dtype {mask.dtype} and shape {list(mask.shape)}",
                cause=f"a mask must have dtype bool and shape [{len(values)}]; the function received "
                f"{list(values.shape)}",
                hint="compare, and reduce the other axes: lambda x: (x > 0).all(axis=1)",
            )
        return mask
    if isinstance(condition, (Mapping, Iterator)):
        kind = "a mapping" if isinstance(condition, Mapping) else "an iterator, which can be read only once"
        raise DataError(f"{subject} is {kind}", available=_CONDITIONS, hint="pass a list of values")
    if isinstance(condition, np.ndarray) and condition.dtype == np.bool_ and values.dtype != np.bool_:
        raise DataError(
            f"{subject} is a bool array, but the column is of {values.dtype}",
            available=_CONDITIONS,
            hint="use take(np.flatnonzero(mask)) to choose rows with a mask",
        )
    wanted = [_plain(value) for value in condition] if _is_collection(condition) else [_plain(condition)]
    if values.dtype == object:
        try:
            among: Any = frozenset(wanted)
            return np.fromiter((value in among for value in values), dtype=bool, count=len(values))
        except TypeError:  # lists and others without a hash
            return np.fromiter((value in wanted for value in values), dtype=bool, count=len(values))
    if values.ndim > 1:
        raise DataError(
            f"column {name!r} of {rows.label!r} has samples of shape {list(values.shape[1:])}, which cannot equal a "
            "single value",
            hint="pass a function that returns a mask: lambda x: (x > 0).all(axis=1)",
        )
    for value in wanted:
        if not isinstance(value, (bool, int, float)):
            raise DataError(
                f"column {name!r} of {rows.label!r} is of {values.dtype} and cannot equal {value!r}",
                available=_CONDITIONS,
                hint="give numbers",
            )
    # Those that a column of this dtype can equal; floats are rounded to it, as NumPy compares them.
    if values.dtype.kind == "f":
        largest = float(np.finfo(values.dtype).max)
        possible = [
            value for value in wanted if abs(value) <= largest or (isinstance(value, float) and not np.isfinite(value))
        ]
    else:
        low, high = (0, 1) if values.dtype.kind == "b" else (np.iinfo(values.dtype).min, np.iinfo(values.dtype).max)
        possible = [int(value) for value in wanted if low <= value <= high and value == int(value)]
    return np.isin(values, np.array(possible, dtype=values.dtype))


def _is_collection(condition: Any) -> bool:
    if isinstance(condition, (str, bytes, pa.Scalar)) or getattr(condition, "ndim", 1) == 0:
        return False
    return isinstance(condition, Iterable) and hasattr(condition, "__len__")


def _plain(value: Any) -> Any:
    """Return Python's own value of a NumPy or Arrow scalar."""
    if isinstance(value, pa.Scalar):
        return value.as_py()
    if isinstance(value, np.datetime64):
        return value.astype("datetime64[us]").item() if np.datetime_data(value.dtype)[0] == "ns" else value.item()
    return value.item() if isinstance(value, np.generic) or getattr(value, "ndim", 1) == 0 else value
