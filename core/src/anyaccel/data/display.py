"""How rows are shown: as text, as HTML in notebooks, and as a pandas DataFrame."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pyarrow as pa

from anyaccel.data.arrow_columns import contiguous, is_readable, to_numpy, type_name
from anyaccel.data.rows import Rows
from anyaccel.errors import DataError
from anyaccel.html import Markup, cut, escaped, faint, guarded, line, listing, page, row, table, text
from anyaccel.install_hints import install_line
from anyaccel.printable import size

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
    cells: dict[str, Any] = {}
    for name in rows.columns:
        column = rows.column(name)
        array = rows.array(name) if is_readable(column) else None
        cells[name] = column.to_pandas() if array is None else list(array) if array.ndim > 1 else array
    frame = pd.DataFrame(cells)
    frame.index = pd.Index(index)
    return frame


def summary(rows: Rows) -> str:
    """Return rows in one line: their number, and the columns of each role with their types."""
    parts = []
    for role, names in (("features", rows.features), ("targets", rows.targets), ("tags", rows.tags)):
        if len(names) <= _ONE_BY_ONE:
            types = ", ".join(f"{name} {type_name(rows.schema.field(name))}" for name in names)
            parts += [f"{role}: {types}"] if names else []
            continue
        by_type: dict[str, list[str]] = {}
        for name in names:
            by_type.setdefault(type_name(rows.schema.field(name)), []).append(name)
        parts += [
            f"{len(same)} {role if len(same) > 1 else role.removesuffix('s')} {kind}: {', '.join(same[:_NAMED])}"
            + (f", ... and {len(same) - _NAMED} more" if len(same) > _NAMED else "")
            for kind, same in by_type.items()
        ]
    return "; ".join([f"{len(rows)} rows", *parts])


def rows_html(rows: Rows) -> str:
    """Return the number of rows, and a table of the columns with their roles, types and first values. Never raises."""
    return guarded(rows, lambda: _page(rows))


def _page(rows: Rows) -> Markup:
    facts = [f"{len(rows):,} rows"]
    if rows.base is rows:
        title, whole = rows.label, cast(Any, rows)  # a feature set
        splits = listing([f"{name} {len(view):,}" for name, view in whole.splits.items()])
        transforms = listing([f"{type(it.transform).__name__} of {listing(it.columns)}" for it in whole.transforms])
        named = {"splits": splits, "transforms": transforms}
        facts += [size(whole.nbytes), *(f"{what}: {names}" for what, names in named.items() if names)]
    else:
        title = f"{rows.label}[{getattr(rows, 'name', '')}]"
        facts.append(f"of {len(rows.base):,}")
    columns: list[Markup] = []  # of a role with many the first, and how many more there are, so that no role is hidden
    for role, names in (("features", rows.features), ("targets", rows.targets), ("tags", rows.tags)):
        first, hidden, _ = cut(names)
        for name in first:
            values = escaped(", ".join(first_values(rows, name, _FIRST_ROWS)), 120)
            columns.append(row([name, rows.role(name), type_name(rows.schema.field(name)), values]))
        columns += [row([faint(f"and {hidden:,} more {role}")])] if hidden else []
    head = ("column", "role", "type", "first values")
    body = table(head, columns, lambda column: column, most=len(columns))
    return page(type(rows).__name__, title, line(faint("; ".join(facts))), body)


def first_values(rows: Rows, name: str, count: int) -> list[str]:
    """Return the values of a column in the first rows, as text; only these rows are read."""
    indices = range(len(rows)) if rows.indices is None else rows.indices
    column = rows.base.column(name)
    values = []
    for index in indices[:count]:
        part = column.slice(int(index), 1)
        inner = None if is_readable(part) else getattr(part[0], "values", None)
        if is_readable(part):
            values.append(sample(to_numpy(name, contiguous(part))))
        elif isinstance(inner, pa.Array):
            shown = [number(value) for value in inner.slice(0, _FIRST_VALUES).to_pylist()]
            values.append(_several(shown, len(inner)))
        else:
            values.append(text(number(part[0].as_py()), 40))
    return values


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
