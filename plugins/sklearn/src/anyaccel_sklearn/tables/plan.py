"""treatment_of: choose the transform that builds the features of a table, and the treatment of each column."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute

from anyaccel.arguments import shown
from anyaccel.data.roles import listed
from anyaccel.errors import ColumnError, PhaseError, TableWarning
from anyaccel.fitting.table_columns import TableColumn
from anyaccel.user_level import user_level
from anyaccel_sklearn.tables.arrow_values import (
    BOOL,
    DATE,
    DATE_PARTS,
    NUMBER,
    TEXT,
    categories,
    date_numbers,
    dates,
    decoded,
    family_of,
    numbers,
    times_of_day,
)
from anyaccel_sklearn.tables.given_transformer import GivenTransformer
from anyaccel_sklearn.tables.text_values import DATES, NUMBERS, code_to_read, is_order_unknown, share_like
from anyaccel_sklearn.tables.treatment import FEW, MANY_ROWS, TableTreatment
from anyaccel_sklearn.transforms.scalers import SCALERS

_UNIQUE, _FEWEST = 0.95, 10  # of a text column: fraction of different values, and rows, from which it identifies rows
_IDENTIFIER = "identifier"
_STAND_INS = (99, 999, 9999, 99999, 999999)  # also negative; written for missing values
_FEWEST_NUMBERED = 50  # rows from which different integers look like row numbers


def treatment_of(
    preprocess: Any,
    table: Any,
    target: np.ndarray | None,
    *,
    as_categories: Sequence[str],
    embed: bool | Sequence[str],
    embeds: bool,
    seed: int,
) -> TableTreatment | GivenTransformer:
    """Return the treatment of the columns of a table, not fitted yet.

    Args:
        preprocess: `"auto"`, or a transformer in scikit-learn's style.
        table: Arrow table of the features in the training rows.
        target: Target of these rows, one number or class each, or None.
        as_categories: Names of columns to treat as categories, regardless of their values.
        embed: Names of the columns whose categories become codes; True for all; False for none; `"auto"` for those with
            many categories, and many rows for each, if the model embeds.
        embeds: Whether the model embeds codes. Numbers then also become their places in quantile intervals.
        seed: Seed of all random numbers.

    Raises:
        ColumnError: A column cannot become a feature, or no column is left.
    """
    if not isinstance(preprocess, str) or preprocess != "auto":
        return _given(preprocess, table, target, as_categories, embed)
    parts: dict[str, Any] = {"numbers": [], "dates": {}, "one_hot": [], "encoded": [], "codes": []}
    families: dict[str, str] = {}
    zones: dict[str, str] = {}
    report: list[TableColumn] = []
    identifiers: list[str] = []
    stand_ins: dict[str, tuple[float, int]] = {}
    inexact: dict[str, int] = {}
    for name in table.column_names:
        column = decoded(table.column(name))
        family, values = family_of(name, column.type), column
        if family == TEXT and name not in as_categories and column.null_count < len(column):
            for kind, read in ((DATE, dates), (NUMBER, times_of_day)):
                made = read(column)
                family, values = (family, values) if made is None else (kind, made)
        families[name] = family
        is_category = name in as_categories or (_is_dictionary(table.column(name).type) and family != DATE)
        if is_category or family in (BOOL, TEXT):
            described = _category(name, values, table.column(name).type, as_categories, embed, embeds, target)
        elif family == DATE:
            times = dates(values)
            zones[name] = times.type.tz or ""
            described = _date(name, times)
        else:
            described = _number(name, values)
            if described[0] and (n_inexact := _n_inexact(values)):
                inexact[name] = n_inexact
            if found := _stand_in(numbers(name, values)):
                stand_ins[name] = found
        kind_of_part, column_report, detail = described
        report.append(column_report)
        if kind_of_part == "dates":
            parts["dates"][name] = detail
        elif kind_of_part == _IDENTIFIER:
            identifiers.append(name)
        elif kind_of_part:
            parts[kind_of_part].append(name)
    dropped = [f"{column.name!r} ({column.treatment})" for column in report if column.kind == "dropped"]
    if len(dropped) == len(report):
        raise ColumnError(
            f"no feature is left of the {len(report)} columns in {len(table)} training rows: {listed(dropped)}",
            hint=f"take them as categories: categories={identifiers}"
            if identifiers
            else "use rows with different values in a column",
        )
    if identifiers:
        values = {name: shown(compute.drop_null(table.column(name))[0].as_py(), 40) for name in identifiers}
        first = [f"{name!r} (such as {value})" for name, value in values.items()]
        warnings.warn(
            f"text columns with a different value in nearly every row say nothing about new rows and are left out: "
            f"{listed(first)}. Hint: derive a feature from them first; or keep them as categories, "
            f"categories={identifiers}; or leave them out yourself, drop={identifiers}",
            TableWarning,
            user_level(),
        )
    constant = [
        f"{column.name!r} ({column.treatment})"
        for column in report
        if column.kind == "dropped" and column.name not in identifiers
    ]
    if constant:
        problem = f"columns with a single value are left out: {listed(constant)}"
        warnings.warn(problem, TableWarning, user_level())
    counting = [name for name in parts["numbers"] if _counts_rows(table.column(name))]
    if counting:
        problem = f"the integers of {listed(map(repr, counting))} differ in all rows, as row numbers do (pandas writes "
        problem += f"them into a CSV file without a name); if they are row numbers, leave them out: drop={counting}"
        warnings.warn(problem, TableWarning, user_level())
    if inexact:
        counts = (f"{name!r} (in {count:,} of {len(table):,} rows)" for name, count in inexact.items())
        names = list(inexact)
        warnings.warn(
            f"integers beyond 2**53 become the nearest number that a float can hold, which their neighbours become, "
            f"too: {listed(counts)}; if they identify something, take them as categories, categories={names}, or "
            f"leave them out, drop={names}",
            TableWarning,
            user_level(),
        )
    if stand_ins:
        counts = (f"{name!r} ({value:g} in {count:,} rows)" for name, (value, count) in stand_ins.items())
        code = ", ".join(f"{name!r}: {{{value:g}: float('nan')}}" for name, (value, _) in stand_ins.items())
        warnings.warn(
            f"numbers far from all others, as tables have them for missing values: {listed(counts)}; if they stand for "
            f"missing values, leave them empty (pandas: table.replace({{{code}}}))",
            TableWarning,
            user_level(),
        )
    treatment = TableTreatment(**parts, by_interval=embeds, families=families, columns=report, target=target, seed=seed)
    treatment.zones = zones
    return treatment


def _given(
    preprocess: Any, table: Any, target: np.ndarray | None, as_categories: Sequence[str], embed: Any
) -> GivenTransformer:
    """Return a custom transformer, which itself defines the treatment of each column.

    Raises:
        PhaseError: It is a name, or other arguments also define a treatment.
        TransformError: It has no fit and transform.
    """
    if isinstance(preprocess, str):
        problem = f"fit has preprocess={preprocess!r}, which is not a known way to create features"
        hint = "write preprocess='auto'"
        if preprocess in SCALERS:
            hint = f"write scaler={preprocess!r}, which scales all features together"
        raise PhaseError(problem, available="'auto', a transformer of scikit-learn, None", hint=hint)
    if as_categories or embed not in ("auto", False):
        what = f"categories={list(as_categories)}" if as_categories else f"embed={shown(embed)}"
        problem = f"fit has {what} and a {type(preprocess).__name__} as preprocess=, which already decides that"
        raise PhaseError(problem, hint="leave categories= and embed= out, or write preprocess='auto'")
    return GivenTransformer(preprocess, table, target)


Described = tuple[str, TableColumn, Any]
"""The part of a treatment for a column, if any; its report; and parts of a date."""


def _number(name: str, column: Any) -> Described:
    values = numbers(name, column)
    is_missing = np.isnan(values).any(axis=1)
    n_missing, width = int(is_missing.sum()), values.shape[1]
    if width == 1 and (nothing := _says_nothing(name, column, values[~is_missing, 0], n_missing)):
        return "", nothing, None
    treatment = "scaled" if not n_missing else "median where missing, indicator, scaled"
    n_gaps = int(np.isnan(values).any(axis=0).sum())
    return "numbers", TableColumn(name, "number", treatment, n_missing, None, width + n_gaps), None


def _date(name: str, column: Any) -> Described:
    values = date_numbers(column)
    is_missing = np.isnan(values).any(axis=1)
    n_missing, kept = int(is_missing.sum()), values[~is_missing]
    if nothing := _says_nothing(name, column, kept[:, -1], n_missing):
        return "", nothing, None
    varied = [bool((kept[:, place] != kept[0, place]).any()) for place in range(len(DATE_PARTS))]
    parts = tuple(part for part, varies in zip(DATE_PARTS, varied, strict=True) if varies) or ("seconds",)
    treatment = ", ".join(parts) + (", median where missing, indicator" if n_missing else "")
    return "dates", TableColumn(name, "date", treatment, n_missing, None, len(parts) + bool(n_missing)), parts


def _category(
    name: str,
    column: Any,
    arrow_type: Any,
    as_categories: Sequence[str],
    embed: bool | Sequence[str],
    embeds: bool,
    target: np.ndarray | None,
) -> Described:
    values = categories(column)
    n_missing = sum(value is None for value in values)
    different = {value for value in values.tolist() if value is not None}
    count, n_present = len(different), len(values) - n_missing
    if not count or (count == 1 and not n_missing):
        return "", _dropped(name, n_missing, len(values), next(iter(different), None)), None
    is_named = not isinstance(embed, (bool, str)) and name in embed
    if name not in as_categories and not is_named:
        if str(arrow_type) in ("string", "large_string"):
            # Refuse text that is mostly numbers or dates, which would be wrong as categories without notice
            for what in (NUMBERS, DATES):
                share = share_like(column, what)
                if share <= 0.5:
                    continue
                place, value = _first_other(column, what)
                others = f"; row {place} has {shown(value)}" if share < 1 else f", such as {shown(value)}"
                hint = f"read it as {what}, table[{name!r}] = {code_to_read(name, column, what)}"
                if what == DATES and is_order_unknown(column):
                    hint += ", with dayfirst=True if the day comes first"
                raise ColumnError(
                    f"column {name!r} is text, and {share:.0%} of its values look like {what}{others}",
                    hint=f"{hint}; or take it as categories, categories=[{name!r}]",
                )
        if count >= _UNIQUE * n_present and n_present >= _FEWEST:
            treatment = f"identifies rows: {count:,} values in {n_present:,} rows"
            return _IDENTIFIER, TableColumn(name, "dropped", treatment, n_missing), None
    kind = "text" if count > FEW and name not in as_categories and not _is_dictionary(arrow_type) else "category"
    is_learned = embeds and count > FEW and (target is None or n_present >= MANY_ROWS * count)
    if is_named or embed is True or (embed == "auto" and is_learned):
        return "codes", TableColumn(name, kind, "code for an embedding; 0 if missing", n_missing, count, 1), None
    if count <= FEW or target is None:
        width = count + bool(n_missing)
        return "one_hot", TableColumn(name, kind, _one_hot_text(n_missing), n_missing, count, width), None
    is_multiclass = target.dtype.kind != "f" and len(np.unique(target)) > 2
    width = len(np.unique(target)) if is_multiclass else 1
    return "encoded", TableColumn(name, kind, "mean of the target, cross-fitted, scaled", n_missing, count, width), None


def _one_hot_text(n_missing: int) -> str:
    return "a column for each value" + (", and one for missing" if n_missing else "")


def _is_dictionary(arrow_type: Any) -> bool:
    return str(arrow_type).startswith("dictionary")


def _says_nothing(name: str, column: Any, present: np.ndarray, n_missing: int) -> TableColumn | None:
    """Return the report of a constant column of numbers or dates; None for any other column."""
    if present.size and (n_missing or (present != present[0]).any()):
        return None
    value = compute.drop_null(column)[0].as_py() if present.size else None
    return _dropped(name, n_missing, len(present) + n_missing, value)


def _stand_in(values: np.ndarray) -> tuple[float, int] | None:
    """Return a number such as -999 that is far from all others and in several rows, and how often it is there."""
    present = values[~np.isnan(values)]
    if not present.size:
        return None
    for value in (present.min(), present.max()):
        others = present[present != value]
        count = len(present) - len(others)
        if abs(value) in _STAND_INS and count > 1 and len(others):
            gap, spread = max(others.min() - value, value - others.max()), np.ptp(others)
            if gap > spread > 0:
                return float(value), count
    return None


def _counts_rows(column: Any) -> bool:
    """Return whether a column of integers may be row numbers: all differ and are close together."""
    count = len(column)
    if count < _FEWEST_NUMBERED or not pa.types.is_integer(column.type) or column.null_count:
        return False
    least, most = compute.min_max(column).as_py().values()
    return bool(most - least < 2 * count and compute.count_distinct(column).as_py() == count)


def _n_inexact(column: Any) -> int:
    """Return how many integers of a column float64 cannot represent."""
    if not pa.types.is_integer(column.type):
        return 0
    least, most = compute.min_max(column).as_py().values()
    if least is None or max(abs(least), abs(most)) <= 2**53:
        return 0
    integers = compute.drop_null(column).to_numpy()
    floats = integers.astype(np.float64)
    fits = floats < 2.0 ** (64 if integers.dtype.kind == "u" else 63)  # the largest integers become this float
    return int(np.sum(~fits)) + int(np.sum(floats[fits].astype(integers.dtype) != integers[fits]))


def _dropped(name: str, n_missing: int, n_rows: int, value: Any) -> TableColumn:
    why = "no value in any row" if n_missing == n_rows else f"{shown(value, 40)} in all rows"
    return TableColumn(name, "dropped", why, n_missing)


def _first_other(column: Any, what: str) -> tuple[int, Any]:
    """Return the first row whose text does not look like this, or the first row."""
    for place in range(len(column)):
        value = column.slice(place, 1)
        if not value.null_count and not share_like(value, what):
            return place, value[0].as_py()
    present = compute.drop_null(column)
    return 0, present[0].as_py()
