"""Frames: rows as a pandas DataFrame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from anyaccel.data.arrow_columns import contiguous, is_readable, to_numpy, type_name
from anyaccel.display import cut, guarded, line, listing, page, row, size, table
from anyaccel.errors import DataError
from anyaccel.html import Markup, escaped, faint, text
from anyaccel.install_hints import install_line

if TYPE_CHECKING:
    from anyaccel.data.rows import Rows


def data_frame(rows: Rows, index: np.ndarray) -> Any:
    """A pandas DataFrame of all columns of some rows, with this index.

    Raises:
        DataError: pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise DataError(
            f"{rows.label!r} cannot become a DataFrame: pandas is not installed", hint=install_line("pandas")
        ) from error
    frame = pd.DataFrame({name: _cells(rows, name) for name in rows.columns})
    frame.index = pd.Index(index)
    return frame


def _cells(rows: Rows, name: str) -> Any:
    column = rows.column(name)
    if not is_readable(column):
        return column.to_pandas()
    array = rows.array(name)
    return list(array) if array.ndim > 1 else array


_FIRST = 3  # rows
_VALUES = 3  # of a sample that has several


def rows_html(rows: Rows) -> str:
    """How many rows, and a table of the columns with their roles, types and first values. Never raises."""
    return guarded(rows, lambda: _page(rows))


def _page(rows: Rows) -> Markup:
    whole = getattr(rows, "feature_set", None)
    name = rows.label if whole is None else f"{rows.label}[{getattr(rows, 'name', '')}]"
    said = _whole(rows) if whole is None else [f"of {len(whole):,}"]
    told = "; ".join([f"{len(rows):,} rows", *said])
    head = ("column", "role", "type", "first values")
    columns = _columns(rows)
    return page(type(rows).__name__, name, line(faint(told)), table(head, columns, lambda one: one, most=len(columns)))


def _columns(rows: Rows) -> list[Markup]:
    """A row for each column; of a role with many the first, and how many more there are, so that none hides another."""
    made: list[Markup] = []
    for role, names in (("features", rows.features), ("targets", rows.targets), ("tags", rows.tags)):
        first, hidden, _ = cut(names)
        made += [_column(rows, name) for name in first]
        made += [row([faint(f"and {hidden:,} more {role}")])] if hidden else []
    return made


def _whole(rows: Any) -> list[str]:
    """What is told of a feature set and not of a view: its size, splits and transforms."""
    splits = listing([f"{name} {len(view):,}" for name, view in rows.splits.items()])
    transforms = listing([f"{type(one.transform).__name__} of {listing(one.columns)}" for one in rows.transforms])
    named = {"splits": splits, "transforms": transforms}
    return [size(rows.nbytes), *(f"{what}: {names}" for what, names in named.items() if names)]


def _column(rows: Rows, name: str) -> Markup:
    kind = type_name(name, rows.schema.field(name).type)
    return row([name, rows.role(name), kind, escaped(", ".join(first_values(rows, name, _FIRST)), 120)])


def first_values(rows: Rows, name: str, count: int) -> list[str]:
    """The values of a column in the first rows, as text; each is read for itself."""
    source = getattr(rows, "feature_set", rows)
    chosen = getattr(rows, "rows", range(len(rows)))[:count]
    column = source.column(name)
    return [_value(name, column.slice(int(i), 1)) for i in chosen]


def _value(name: str, part: Any) -> str:
    """The one value of a column of one row."""
    if is_readable(part):
        return sample(to_numpy(name, contiguous(part)))
    inner = getattr(part[0], "values", None)
    if isinstance(inner, pa.Array):
        return _several([number(one) for one in inner.slice(0, _VALUES).to_pylist()], len(inner))
    return text(number(part[0].as_py()), 40)


def sample(values: np.ndarray) -> str:
    """One sample as text: a number, or the first of its numbers."""
    flat = values[:1].reshape(-1)
    shown = [number(one) for one in flat[:_VALUES].tolist()]
    return shown[0] if len(flat) == 1 and shown else _several(shown, len(flat))


def number(value: Any) -> str:
    """A value as text, floats with four digits."""
    return f"{value:.4g}" if isinstance(value, float) else text(value)


def _several(shown: list[str], count: int) -> str:
    rest = ["\N{HORIZONTAL ELLIPSIS}"] if count > len(shown) else []
    return f"[{', '.join([*shown, *rest])}]"
