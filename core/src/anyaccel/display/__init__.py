"""Display: tables and pages for notebooks, and text formatting. Stands on `anyaccel.html` in the kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from anyaccel.html import FONT, Markup, element, escaped, faint, text

ROWS = 20
"""Rows of a table that are shown; the rest is counted."""


def prose(value: object) -> Markup:
    """A sentence, which may be longer than a name."""
    return escaped(value, 600)


def cut(items: Sequence[Any], most: int = ROWS, last: int = 0) -> tuple[list[Any], int, list[Any]]:
    """The first items to show, the number of items left out, and the `last` items, which come after these."""
    if len(items) <= most:
        return list(items), 0, []
    return list(items[: most - last]), len(items) - most, list(items[len(items) - last :])


def row(cells: Iterable[object], *, device: str = "", tag: str = "td") -> Markup:
    """A row of a table; `device` marks it as belonging to that device."""
    style = "text-align:left;vertical-align:top;padding:3px 14px 3px 0;background:transparent;max-width:36em"
    return element(
        "tr",
        *(element(tag, cell, style=style) for cell in cells),
        data_anyaccel_device=device or None,
        style="background:transparent",
    )


def table(
    head: Sequence[object],
    items: Sequence[Any],
    make: Callable[[Any], Markup] = row,
    *,
    most: int = ROWS,
    last: int = 0,
) -> Markup:
    """A table with a row for each item; of a long one, the first rows, how many are left out, and the last.

    Args:
        head: titles of the columns.
        items: only those that are shown are read.
        make: makes the row of an item; by default from the cells in it.
        most: number of rows that are shown.
        last: how many of these are from the end.
    """
    first, hidden, end = cut(items, most, last)
    left_out = [row([faint(f"and {hidden:,} more")])] if hidden else []
    rows = [*map(make, first), *left_out, *map(make, end)]
    return element(
        "table",
        element("thead", row(head, tag="th"), style="border-bottom:1px solid rgba(128,128,128,.6)"),
        element("tbody", *rows),
        style="border-collapse:collapse;margin:6px 0;font-size:inherit;color:inherit;background:transparent",
    )


def listing(names: Sequence[object], most: int = 8) -> str:
    """Names with commas, and how many more there are."""
    first, hidden, _ = cut(names, most)
    return ", ".join([*(text(name, 40) for name in first), *([f"and {hidden:,} more"] if hidden else [])])


def size(nbytes: int) -> str:
    """A number of bytes with its unit, such as `1.5 MiB`."""
    value, units = float(nbytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.0f} B" if units[0] == "B" else f"{value:.1f} {units[0]}"


def page(kind: str, name: object, *parts: object) -> Markup:
    """The page of an object: its kind and name as title, then the parts."""
    title = element("div", element("strong", kind), " ", name, style="margin-bottom:2px")
    style = f"font-family:{FONT};font-size:13px;line-height:1.5;color:inherit;background:transparent;overflow-x:auto"
    return element("div", title, *parts, class_="anyaccel", style=style)


def line(*parts: object) -> Markup:
    """A paragraph of text."""
    return element("div", *map(prose, parts))


def guarded(obj: object, build: Callable[[], Markup]) -> str:
    """The markup that `build` makes, or a page with the error if it raises. Never raises."""
    try:
        return str(build())
    except Exception as error:  # objects are displayed when something is wrong: the display must not fail too
        reason = element("code", prose(f"{type(error).__name__}: {text(error, 500)}"))
        return str(page(type(obj).__name__, "", line("It cannot be shown: ", reason)))
