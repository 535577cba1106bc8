"""HTML and SVG markup: elements that escape all text from users.

A value is escaped when it is put into an element, unless it is `Markup` already. Styles are inline, so that nothing
affects the surrounding page. Colors come from the page, except for the badges of devices.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from anyaccel.printable import UNSEEN

LONGEST = 80  # characters of a user's text that are shown
FONT = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif"
_BADGE_FONT = f"font:600 12px/1.5 {FONT}"
_SPACES = re.compile("[\t\n\v\f\r\x85\u2028\u2029]+")
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"})

# White text has a contrast of at least 4.5 on each. They differ under each of the three colour vision deficiencies, the
# first four and the CPU's most; tests/core/values/test_html.py measures it.
_CPU = "#566173"
_HUES = ("#0058FC", "#79540A", "#277F56", "#C924BC", "#1A1081", "#68210A", "#074F71")
_FIRST = {"gpu": 0, "mps": 0, "xpu": 1, "sim": 2}  # where a kind begins among the hues; others begin by their name


class Markup(str):
    """Text that is HTML or XML already: elements contain it unchanged, and a notebook shows it."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return str(self)


class Colours(NamedTuple):
    """A background and a readable text color, as `#RRGGBB`."""

    fill: str
    ink: str


NOWHERE = Colours("#D5DAE1", "#29323F")
"""The colours of what has no device yet."""


def colours(device: str) -> Colours:
    """Return the colors of a device, given as text; always the same. `""` stands for a node without a device.

    There are seven in addition to the CPU's, so two devices may have the same: show the name too.
    """
    kind, _, index = device.partition(":")
    if not kind:
        return NOWHERE
    if kind == "cpu":
        return Colours(_CPU, "#FFFFFF")
    first = _FIRST.get(kind, zlib.crc32(kind.encode("utf-8", "replace")))
    return Colours(_HUES[(first + int(index or 0)) % len(_HUES)], "#FFFFFF")


def text(value: object, longest: int = LONGEST) -> str:
    """Return a value as one line, cut to `longest` characters; characters invalid in XML or invisible become U+FFFD."""
    try:
        whole = value if isinstance(value, str) else str(value)
    except Exception as error:  # a user's object whose __str__ fails is still shown
        whole = f"{type(value).__name__} ({type(error).__name__} in str)"
    shown = UNSEEN.sub("\N{REPLACEMENT CHARACTER}", _SPACES.sub(" ", whole[: longest + 1]))
    return shown if len(whole) <= longest else f"{shown[: longest - 1]}\N{HORIZONTAL ELLIPSIS}"


def escaped(value: object, longest: int = LONGEST) -> Markup:
    """Return a value for an element's content or a quoted attribute; Markup is returned unchanged."""
    return value if isinstance(value, Markup) else Markup(text(value, longest).translate(_ENTITIES))


def joined(parts: Iterable[object]) -> Markup:
    """Concatenate parts; each is escaped unless it is Markup, and None is left out."""
    return Markup("".join(escaped(part) for part in parts if part is not None))


def element(tag: str, *children: object, **attributes: object) -> Markup:
    """Return an element. Underscores in attribute names become hyphens; an attribute that is None is left out."""
    present = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items() if value is not None}
    written = "".join(f' {name}="{escaped(value, 2000)}"' for name, value in present.items())
    return Markup(f"<{tag}{written}>{joined(children)}</{tag}>")


def badge(device: str, shown: object = None) -> Markup:
    """Return the name of a device on its color, or `shown` instead of the name, for example without a device."""
    fill, ink = colours(device)
    style = f"background:{fill};color:{ink};border-radius:4px;padding:1px 7px;white-space:nowrap;{_BADGE_FONT}"
    return element("span", device if shown is None else shown, style=style, data_anyaccel_device=device or None)


def faint(value: object) -> Markup:
    """Return a sentence in a fainter shade of the page's color."""
    return element("span", escaped(value, 600), style="opacity:.75")


# -- tables and pages for notebooks, and text in few words ------------------------------------------------------------

ROWS = 20
"""Rows of a table that are shown; the rest is counted."""


def prose(value: object) -> Markup:
    """Return a sentence, which may be longer than a name."""
    return escaped(value, 600)


def cut(items: Sequence[Any], most: int = ROWS, last: int = 0) -> tuple[list[Any], int, list[Any]]:
    """Return the first items to show, the number of items left out, and the `last` items, which come after these."""
    if len(items) <= most:
        return list(items), 0, []
    return list(items[: most - last]), len(items) - most, list(items[len(items) - last :])


def row(cells: Iterable[object], *, device: str = "", tag: str = "td") -> Markup:
    """Return a row of a table; `device` marks it as belonging to that device."""
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
    """Return a table with a row for each item. A long one has the first rows, the number of rows left out, and the
    last.

    Args:
        head: Titles of the columns.
        items: Items; only those that are shown are read.
        make: Function that makes the row of an item; by default the item is the cells.
        most: Maximum number of rows to show.
        last: Number of these rows that are from the end.
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
    """Return names with commas, and how many more there are."""
    first, hidden, _ = cut(names, most)
    return ", ".join([*(text(name, 40) for name in first), *([f"and {hidden:,} more"] if hidden else [])])


def page(kind: str, name: object, *parts: object) -> Markup:
    """Return the page of an object: its kind and name as title, then the parts."""
    title = element("div", element("strong", kind), " ", name, style="margin-bottom:2px")
    style = f"font-family:{FONT};font-size:13px;line-height:1.5;color:inherit;background:transparent;overflow-x:auto"
    return element("div", title, *parts, class_="anyaccel", style=style)


def line(*parts: object) -> Markup:
    """Return a paragraph of text."""
    return element("div", *map(prose, parts))


def guarded(obj: object, build: Callable[[], Markup]) -> str:
    """Return the markup that `build` makes, or a page with the error if it raises. Never raises."""
    try:
        return str(build())
    except Exception as error:  # objects are displayed when something is wrong: the display must not fail too
        reason = element("code", prose(f"{type(error).__name__}: {text(error, 500)}"))
        return str(page(type(obj).__name__, "", line("It cannot be shown: ", reason)))
