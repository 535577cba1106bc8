"""Text that looks like numbers or dates, and the pandas code that reads it as such."""

from __future__ import annotations

import re
from datetime import date
from typing import Any

import pyarrow as pa
from pyarrow import compute

from anyaccel.arguments import shown
from anyaccel.errors import PhaseError
from anyaccel.fitting.tables import CLASSES_OF_INTEGERS

NUMBERS, DATES = "numbers", "dates"

_MONTH = r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_GROUPS = r"\d{1,3}((\.\d{3})+(,\d*)?|(,\d{2,3})*,\d{3}(\.\d*)?)"  # not 1.03.2023, a date
_HEX = r"^\s*0[xX][0-9a-fA-F]+\s*$"
_LIKE = {
    NUMBERS: rf"^\s*[-+]?\s*[$€£¥]?\s*({_GROUPS}|\d+([.,]\d*)?|[.,]\d+)([eE][-+]?\d+)?\s*[%$€£¥]?\s*$|{_HEX}",
    DATES: r"(?i)^\s*(\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}|"
    rf"\d{{1,2}}\.?[ -]{_MONTH}[ -]\d{{2,4}}|{_MONTH} \d{{1,2}},? \d{{4}})([T ,].*)?$",
}
_THOUSANDS = r"^\s*[-+$€£¥]*\s*\d{1,3}(,\d{2,3})*,\d{3}(\.\d*)?\s*[%$€£¥]?\s*$"
_COMMA, _DOT, _SYMBOLS, _DOTTED = r",", r"\.", r"[%$€£¥]", r"\.\d{3}\.\d{3}"
_DOT_GROUPS = r"^\s*[-+$€£¥]*\s*\d{1,3}(\.\d{3})+(,\d*)?\s*[%$€£¥]?\s*$"
_DAY_FIRST, _MONTH_FIRST = r"^\s*(1[3-9]|2\d|3[01])[-/.]", r"^\s*\d{1,2}[-/.](1[3-9]|2\d|3[01])[-/.]"
_YEAR_FIRST = r"^\s*\d{4}[-/.]"
_SEPARATED = r"^\s*\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}"


def share_like(column: Any, what: str) -> float:
    """Return the fraction of a column's texts that look like NUMBERS or like DATES."""
    return _share(column, _LIKE[what])


def code_to_read(name: str, column: Any, what: str) -> str:
    """Return pandas code that reads a column of text as NUMBERS or DATES, with the thousands, decimal commas, percent
    signs and order of day and month that its values have.
    """
    texts, like = f"table[{name!r}]", column.filter(compute.match_substring_regex(column, _LIKE[what]))
    if what == NUMBERS and _share(like, _HEX):  # to_numeric reads none of them
        read = "map(lambda text: int(text, 16), na_action='ignore')"
        others = column.filter(compute.invert(compute.match_substring_regex(column, _HEX)))
        if not len(others):
            return f"{texts}.{read}"
        hexadecimal = f"{texts}.where({texts}.str.fullmatch({_HEX[1:-1]!r}, na=False))"
        return f"{code_to_read(name, others, what)}.fillna({hexadecimal}.{read})"
    if what == NUMBERS:
        has_comma, signs = _share(like, _COMMA) > 0, "%$€£¥" if _share(like, _SYMBOLS) else ""
        is_thousands = has_comma and _share(like.filter(compute.match_substring_regex(like, _COMMA)), _THOUSANDS) == 1
        if signs or is_thousands:
            texts += f".str.replace('[{signs}{',' if is_thousands else ''} ]', '', regex=True)"
        # 1.234.567 beside 1.5 does not tell what the dots of the column mean; `coerce` then leaves it out
        has_groups = _share(like, _DOTTED) > 0
        has_groups = has_groups and _share(like.filter(compute.match_substring_regex(like, _DOT)), _DOT_GROUPS) == 1
        if (has_comma and not is_thousands) or has_groups:
            texts += ".str.replace('.', '').str.replace(',', '.')"
        return f"pandas.to_numeric({texts}, errors='coerce')"
    has_others = len(like) < len(column) - column.null_count or any(map(_is_impossible, like.unique().to_pylist()))
    errors = ", errors='coerce'" if has_others else ""
    if not _share(like, _SEPARATED):
        return f"pandas.to_datetime({texts}, format='mixed'{errors})"
    order = f"dayfirst={_share(like, _DAY_FIRST) > _share(like, _MONTH_FIRST)}"
    if not _share(like, _YEAR_FIRST):
        return f"pandas.to_datetime({texts}, format='mixed', {order}{errors})"
    others = f"pandas.to_datetime({texts}, format='mixed', {order}, errors='coerce')"  # it would turn ISO dates round
    return f"pandas.to_datetime({texts}, format='ISO8601', errors='coerce').fillna({others})"


def _is_impossible(text: str) -> bool:
    """Return whether a date in numbers is not in the calendar, such as 2023-02-30."""
    found = re.match(r"\s*(\d{1,4})[-/.](\d{1,2})[-/.](\d{1,4})", text)
    if found is None:
        return False
    first, middle, last = map(int, found.groups())
    orders = [(first, middle, last)] if len(found[1]) == 4 else [(last, middle, first), (last, first, middle)]
    for year, month, day in orders:
        try:
            date(year + 2000 if year < 100 else year, month, day)
            return False
        except ValueError:
            continue
    return True


def is_order_unknown(column: Any) -> bool:
    """Return whether a date such as 3/4/2020 may begin with the day or with the month."""
    return bool(_share(column, _SEPARATED)) and not _share(column, _DAY_FIRST) and not _share(column, _MONTH_FIRST)


def _share(column: Any, pattern: str) -> float:
    return compute.mean(compute.match_substring_regex(column, pattern).cast("uint8")).as_py() or 0.0


def check_text_classes(name: str, column: Any) -> None:
    """Refuse the text of a target as classes if it contains numbers, or if most rows would be a separate class.

    Raises:
        PhaseError: The text is not the name of a class.
    """
    n_classes, n_rows = compute.count_distinct(column).as_py(), len(column) - column.null_count
    share = share_like(column, NUMBERS)
    if n_classes > CLASSES_OF_INTEGERS and share > 0.5:
        value = next(value for value in column.to_pylist() if value is not None and _is_like_number(value))
        raise PhaseError(
            f"the target {name!r} is text, and {share:.0%} of its {n_classes:,} different values look like numbers, "
            f"such as {shown(value)}",
            hint=f"read it as numbers, table[{name!r}] = {code_to_read(name, column, NUMBERS)}; or write "
            "loss='cross_entropy', if each value is a class",
        )
    if n_classes > CLASSES_OF_INTEGERS and 2 * n_classes > n_rows:
        raise PhaseError(
            f"the target {name!r} is text with {n_classes:,} different values in {n_rows:,} rows, too many for classes",
            hint="name another target; or write loss='cross_entropy', if each value is a class",
        )


def _is_like_number(value: str) -> bool:
    return share_like(pa.chunked_array([pa.array([value])]), NUMBERS) > 0
