"""How rows are shown: as text, as HTML in notebooks, and as a pandas DataFrame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from anyaccel.data.arrow_columns import contiguous, is_readable, to_numpy, type_name
from anyaccel.data.ragged_columns import padding_of, up_to
from anyaccel.data.rows import Rows
from anyaccel.errors import DataError
from anyaccel.html import Markup, cut, escaped, faint, guarded, line, listing, page, row, size, table, text
from anyaccel.install_hints import install_line

_ONE_BY_ONE = 6  # columns of a role that a text lists with their types
_NAMED = 4  # columns of one type that a text names where a role has more
_FIRST_ROWS = 3
_FIRST_VALUES = 3  # of a sample with several


def data_frame(rows: Rows, index: np.ndarray) -> Any:
    """Return a pandas DataFrame of all columns of some rows, with this index."""
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


def summary(rows: Rows) -> str:
    """Return rows in one line: their number, and the columns of each role with their types."""
    parts = []
    for role, names in (("features", rows.features), ("targets", rows.targets), ("tags", rows.tags)):
        if len(names) > _ONE_BY_ONE:
            parts += _by_type(rows, role, names)
        elif names:
            parts.append(f"{role}: {', '.join(f'{name} {_type_of(rows, name)}' for name in names)}")
    return "; ".join([f"{len(rows)} rows", *parts])


def _by_type(rows: Rows, role: str, names: Sequence[str]) -> list[str]:
    """Return the number of columns of each type, with their first names."""
    by_type: dict[str, list[str]] = {}
    for name in names:
        by_type.setdefault(_type_of(rows, name), []).append(name)
    return [
        f"{len(same)} {role if len(same) > 1 else role.removesuffix('s')} {kind}: {', '.join(same[:_NAMED])}"
        + (f", ... and {len(same) - _NAMED} more" if len(same) > _NAMED else "")
        for kind, same in by_type.items()
    ]


def _type_of(rows: Rows, name: str) -> str:
    field = rows.schema.field(name)
    if padding_of(field) is None:
        return type_name(name, field.type)
    return up_to(rows.spec(name))


def rows_html(rows: Rows) -> str:
    """Return the number of rows, and a table of the columns with their roles, types and first values. Never raises."""
    return guarded(rows, lambda: _page(rows))


def _page(rows: Rows) -> Markup:
    is_whole = rows.base is rows
    title = rows.label if is_whole else f"{rows.label}[{getattr(rows, 'name', '')}]"
    facts = "; ".join([f"{len(rows):,} rows", *(_facts(rows) if is_whole else [f"of {len(rows.base):,}"])])
    head = ("column", "role", "type", "first values")
    columns = _columns(rows)
    body = table(head, columns, lambda column: column, most=len(columns))
    return page(type(rows).__name__, title, line(faint(facts)), body)


def _columns(rows: Rows) -> list[Markup]:
    """Return a row for each column; of a role with many the first, and how many more there are, so that no role is
    hidden.
    """
    lines: list[Markup] = []
    for role, names in (("features", rows.features), ("targets", rows.targets), ("tags", rows.tags)):
        first, hidden, _ = cut(names)
        lines += [_column(rows, name) for name in first]
        lines += [row([faint(f"and {hidden:,} more {role}")])] if hidden else []
    return lines


def _facts(feature_set: Any) -> list[str]:
    """Size, splits and transforms of a feature set."""
    splits = listing([f"{name} {len(view):,}" for name, view in feature_set.splits.items()])
    transforms = listing(
        [f"{type(fitted.transform).__name__} of {listing(fitted.columns)}" for fitted in feature_set.transforms]
    )
    named = {"splits": splits, "transforms": transforms}
    return [size(feature_set.nbytes), *(f"{what}: {names}" for what, names in named.items() if names)]


def _column(rows: Rows, name: str) -> Markup:
    values = escaped(", ".join(first_values(rows, name, _FIRST_ROWS)), 120)
    return row([name, rows.role(name), _type_of(rows, name), values])


def first_values(rows: Rows, name: str, count: int) -> list[str]:
    """Return the values of a column in the first rows, as text; only these rows are read."""
    indices = range(len(rows)) if rows.indices is None else rows.indices
    column = rows.base.column(name)
    return [_value(name, column.slice(int(index), 1)) for index in indices[:count]]


def _value(name: str, part: Any) -> str:
    """Return the value of a column of a single row."""
    if is_readable(part):
        return sample(to_numpy(name, contiguous(part)))
    inner = getattr(part[0], "values", None)
    if isinstance(inner, pa.Array):
        return _several([number(value) for value in inner.slice(0, _FIRST_VALUES).to_pylist()], len(inner))
    return text(number(part[0].as_py()), 40)


def sample(values: np.ndarray) -> str:
    """Return the first sample of `values` as text: a number, or the first of its numbers."""
    flat = values[:1].reshape(-1)
    shown = [number(value) for value in flat[:_FIRST_VALUES].tolist()]
    return shown[0] if len(flat) == 1 and shown else _several(shown, len(flat))


def number(value: Any) -> str:
    """Return a value as text, floats with four digits."""
    return f"{value:.4g}" if isinstance(value, float) else text(value)


def _several(shown: list[str], count: int) -> str:
    rest = ["\N{HORIZONTAL ELLIPSIS}"] if count > len(shown) else []
    return f"[{', '.join([*shown, *rest])}]"
