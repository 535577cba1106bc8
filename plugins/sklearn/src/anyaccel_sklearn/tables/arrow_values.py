"""Convert Arrow columns of any type to numbers, date parts and categories."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute

from anyaccel.arguments import shown
from anyaccel.data.arrow_columns import contiguous, is_numeric, to_numpy
from anyaccel.errors import ColumnError
from anyaccel_sklearn.tables.text_values import DATES, NUMBERS, code_to_read

NUMBER, BOOL, TEXT, DATE, EMPTY = "number", "bool", "text", "date", "empty"
"""Families of types: types of one family can be in the same column."""

_DAY = r"\d{4}-\d{2}-\d{2}"
_ISO_DATE = rf"^{_DAY}([T ]\d{{2}}:\d{{2}}(:\d{{2}}(\.\d+)?)?(Z|[+-]\d{{2}}:?\d{{2}})?)?$"
_TIME_OF_DAY = r"^([01]\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d+)?)?$"
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
DATE_PARTS = ("year", "month", "day", "weekday", "hour", "seconds")


def decoded(column: Any) -> Any:
    """Return a dictionary column with its values, and intervals and similar types as text; other columns unchanged."""
    if not pa.types.is_dictionary(column.type):
        return column
    values = column.type.value_type
    if not (pa.types.is_struct(values) or isinstance(values, pa.BaseExtensionType)):
        return column.cast(values)
    texts = (None if value is None else str(value) for value in column.to_pylist())
    return pa.chunked_array([pa.array(texts, pa.string())])


def nulls_if_empty(column: Any) -> Any:
    """Return a column without any value as one of nulls: pandas has it as numbers, which are all NaN."""
    is_empty = pa.types.is_floating(column.type) and compute.all(column.is_null(nan_is_null=True)).as_py()
    return pa.chunked_array([pa.nulls(len(column))]) if is_empty else column


def family_of(name: str, arrow_type: Any) -> str:
    """Return the family of an Arrow type.

    Raises:
        ColumnError: The type has no family, such as lists and bytes.
    """
    types = pa.types
    if types.is_dictionary(arrow_type):
        values = arrow_type.value_type
        return TEXT if isinstance(values, pa.BaseExtensionType) else family_of(name, values)
    if types.is_null(arrow_type):
        return EMPTY
    if types.is_boolean(arrow_type):
        return BOOL
    if types.is_string(arrow_type) or types.is_large_string(arrow_type):
        return TEXT
    if types.is_date(arrow_type) or types.is_timestamp(arrow_type):
        return DATE
    if is_numeric(arrow_type) or any(
        is_kind(arrow_type) for is_kind in (types.is_decimal, types.is_duration, types.is_time)
    ):
        return NUMBER
    kind = str(getattr(arrow_type, "extension_name", arrow_type))
    code = {"pandas.period": ".dt.to_timestamp()", "pandas.interval": ".astype('category')"}.get(kind)
    raise ColumnError(
        f"column {name!r} is {kind}, which fit cannot use as features",
        available="numbers, booleans, text, categories, dates and times",
        hint=f"convert it first (pandas: table[{name!r}]{code}), or leave it out, drop=[{name!r}]"
        if code
        else f"leave it out, drop=[{name!r}], or convert it to such columns first",
    )


def numbers(name: str, column: Any) -> np.ndarray:
    """Return a column of numbers as float64 [n, k], NaN for missing values; durations and times of day in seconds."""
    kind = column.type
    if pa.types.is_null(kind):
        return np.full((len(column), 1), np.nan)
    if pa.types.is_fixed_size_list(kind) or isinstance(kind, pa.FixedShapeTensorType):
        return to_numpy(name, contiguous(column)).reshape(len(column), -1).astype(np.float64)
    unit = 1.0
    if pa.types.is_duration(kind) or pa.types.is_time(kind):
        unit = _SECONDS[kind.unit]
        column = column.cast(pa.int32() if pa.types.is_time32(kind) else pa.int64())
    elif pa.types.is_decimal(kind) or pa.types.is_boolean(kind):
        column = column.cast(pa.float64() if pa.types.is_decimal(kind) else pa.uint8())
    return np.asarray(column.to_numpy()).astype(np.float64).reshape(-1, 1) * unit


def dates(column: Any) -> Any:
    """Return a column of dates, or of text in ISO 8601, as timestamps; None if a text is not a date."""
    if pa.types.is_null(column.type):
        return column.cast(pa.timestamp("us"))
    if pa.types.is_timestamp(column.type):
        return column
    if pa.types.is_date(column.type):
        return column.cast(pa.timestamp("ms"))
    if not compute.all(compute.match_substring_regex(column, _ISO_DATE)).as_py():
        return None
    for zone in (None, "UTC"):
        try:
            return column.cast(pa.timestamp("us", zone))
        except pa.ArrowInvalid:
            continue
    return None


def times_of_day(column: Any) -> Any:
    """Return a column of text such as 08:30 or 08:30:15 as times, as a CSV file is read; None if a text is no time."""
    if not compute.all(compute.match_substring_regex(column, _TIME_OF_DAY)).as_py():
        return None
    texts = compute.binary_join_element_wise(pa.scalar("1970-01-01", column.type), column, pa.scalar(" ", column.type))
    return texts.cast(pa.timestamp("us")).cast(pa.time64("us"))


def date_numbers(column: Any, parts: tuple[str, ...] = DATE_PARTS) -> np.ndarray:
    """Return parts of timestamps as float64 [n, parts], NaN for missing values; seconds count from 1970."""
    made = []
    for part in parts:
        if part == "seconds":
            seconds = np.asarray(column.cast(pa.int64()).to_numpy()).astype(np.float64)
            made.append(seconds * _SECONDS[column.type.unit])
        else:
            function = compute.day_of_week if part == "weekday" else getattr(compute, part)
            made.append(np.asarray(function(column).to_numpy()).astype(np.float64))
    return np.stack(made, axis=1) if made else np.empty((len(column), 0))


def in_zone(name: str, times: Any, zone: str) -> Any:
    """Return timestamps in the time zone that they had in training, `""` for none.

    Raises:
        ColumnError: Only the training or only these timestamps have a zone.
    """
    here = times.type.tz or ""
    if here == zone:
        return times
    if here and zone:
        return times.cast(pa.timestamp(times.type.unit, zone))
    words = {place: f"the time zone {place!r}" if place else "no time zone" for place in (zone, here)}
    code = f"pandas.to_datetime(table[{name!r}])"
    raise ColumnError(
        f"the times of column {name!r} had {words[zone]} where the model was trained, and have {words[here]} here, so "
        "their hours cannot be compared",
        hint=f"name their zone (pandas: {code}.dt.tz_localize({zone!r}))"
        if zone
        else f"leave the zone out (pandas: {code}.dt.tz_localize(None) keeps the hours of the clock, "
        "dt.tz_convert(None) takes those of UTC)",
    )


def categories(column: Any) -> np.ndarray:
    """Return the values of a column as numbers, booleans and text, None for missing values: an object array [n].

    Dates become text and durations seconds, in any unit; a folder holds no others.
    """
    types = pa.types
    if types.is_duration(column.type) or types.is_time(column.type):
        column = pa.chunked_array([numbers("", column)[:, 0]])
    elif types.is_date(column.type) or types.is_timestamp(column.type):
        zone = "UTC" if getattr(column.type, "tz", None) else None
        column = dates(column).cast(pa.timestamp("us", zone), safe=False).cast(pa.string())
    values = np.empty(len(column), dtype=object)
    values[:] = column.to_pylist()
    if types.is_floating(column.type):
        values[[value is not None and value != value for value in values]] = None
    elif types.is_decimal(column.type):
        values[:] = [None if it is None else int(it) if it == int(it) else float(it) for it in values]
    return values


def _booleans(column: Any) -> dict[Any, bool]:
    """Return the truth of the texts in a column, as far as they are known."""
    texts = [value for value in compute.unique(column).to_pylist() if isinstance(value, str)]
    truths = {value: value.strip().lower() in ("true", "yes", "t", "y", "1", "on") for value in texts}
    return truths if 0 < len(truths) <= 2 else {"yes": True, "no": False}


def other_family(name: str, column: Any, expected: str) -> ColumnError:
    """Return the error for a column with another family of values than in training."""
    place = next((row for row, value in enumerate(column.to_pylist()) if value is not None), 0)
    family = family_of(name, column.type)
    as_numbers, as_dates = f"pandas.to_numeric(table[{name!r}])", f"pandas.to_datetime(table[{name!r}])"
    if family == TEXT:
        as_numbers, as_dates = code_to_read(name, column, NUMBERS), code_to_read(name, column, DATES)
    words = {NUMBER: "numbers", BOOL: "booleans", TEXT: "text", DATE: "dates"}
    hints = {
        NUMBER: f"convert them to numbers first (pandas: {as_numbers})",
        BOOL: f"convert them to booleans first (pandas: table[{name!r}].map({_booleans(column)}))",
        TEXT: f"convert them to text as in training (pandas: table[{name!r}].astype(str), or read_csv with "
        f"dtype={{{name!r}: str}})",
        DATE: f"convert them to dates first (pandas: {as_dates})",
    }
    return ColumnError(
        f"column {name!r} held {words[expected]} where the model was trained, and holds {words[family]} here",
        cause=f"row {place} has {shown(column[place].as_py())}",
        hint=hints[expected],
    )
