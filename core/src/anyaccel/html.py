"""Markup for people: HTML and SVG in which whatever a user wrote is text and nothing else.

Text is escaped when it is put into an element, unless it is Markup already, and only this module and the drawings make
Markup. Styles stand in the elements, so that nothing leaks into the page around; colours are the page's own, but for
badges of devices, which bring text and background together.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

LONGEST = 80
"""Characters of a user's text that are shown; the rest is cut."""
ROWS = 20
"""Rows of a table that are shown; the rest is counted."""

FONT = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif"

# What XML cannot have or nobody can see, and marks that change the direction of the text behind a label.
_UNSEEN = re.compile("[^\x20-\x7e\xa0-\u2027\u202f-\u2065\u206a-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_SPACES = re.compile("[\t\n\v\f\r\x85\u2028\u2029]+")
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"})

# White text stands on each with a contrast of 4.5 and more. They are told apart with each of the three colour
# deficiencies, the first four and that of the CPU best; tests/core/values/test_markup.py says how well.
_CPU = "#566173"
_HUES = ("#0058FC", "#79540A", "#277F56", "#C924BC", "#1A1081", "#68210A", "#074F71")
_FIRST = {"gpu": 0, "mps": 0, "xpu": 1, "sim": 2}  # where a kind begins among the hues; others begin by their name


class Markup(str):
    """Text that is HTML or XML already: it is put into elements as it is, and a notebook shows it."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return str(self)


class Colours(NamedTuple):
    """A background and the text that can be read on it, as `#RRGGBB`."""

    fill: str
    ink: str


NOWHERE = Colours("#D5DAE1", "#29323F")
"""Of what has no device yet."""


def colours(device: str) -> Colours:
    """The colours of a device by its spelling, always the same; of `""` those of what has no device yet.

    There are seven besides that of the CPU, so that two devices may have the same: name the device, too.
    """
    kind, _, index = device.partition(":")
    if not kind:
        return NOWHERE
    if kind == "cpu":
        return Colours(_CPU, "#FFFFFF")
    first = _FIRST.get(kind, zlib.crc32(kind.encode("utf-8", "replace")))
    return Colours(_HUES[(first + int(index or 0)) % len(_HUES)], "#FFFFFF")


def text(value: object, longest: int = LONGEST) -> str:
    """A value as plain text in one line that XML can have, cut to `longest` characters.

    Control characters, lone surrogates, and marks that change the direction of what follows become U+FFFD.
    """
    try:
        whole = value if isinstance(value, str) else str(value)
    except Exception as error:  # a user's object: what it is, is told all the same
        whole = f"{type(value).__name__} ({type(error).__name__} when it is told as text)"
    shown = _UNSEEN.sub("\N{REPLACEMENT CHARACTER}", _SPACES.sub(" ", whole[: longest + 1]))
    return shown if len(whole) <= longest else f"{shown[: longest - 1]}\N{HORIZONTAL ELLIPSIS}"


def escaped(value: object, longest: int = LONGEST) -> Markup:
    """A value as it may stand in an element or in a quoted attribute; Markup as it is."""
    return value if isinstance(value, Markup) else Markup(text(value, longest).translate(_ENTITIES))


def prose(value: object) -> Markup:
    """A sentence, which may be longer than a name."""
    return escaped(value, 600)


def joined(parts: Iterable[object]) -> Markup:
    """Parts one after the other, each escaped unless it is Markup; None is left out."""
    return Markup("".join(escaped(part) for part in parts if part is not None))


def element(tag: str, *children: object, **attributes: object) -> Markup:
    """An element. An underscore in the name of an attribute stands for a hyphen; None leaves the attribute out."""
    told = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escaped(value, 2000)}"'
        for name, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{tag}{told}>{joined(children)}</{tag}>")


def cut(items: Sequence[Any], most: int = ROWS, last: int = 0) -> tuple[list[Any], int, list[Any]]:
    """The items to show, how many are left out behind them, and the `last` ones, shown behind these."""
    if len(items) <= most:
        return list(items), 0, []
    return list(items[: most - last]), len(items) - most, list(items[len(items) - last :])


def badge(device: str, shown: object = None) -> Markup:
    """The name of a device on its colour; `shown` in its place, such as what is said where there is no device."""
    fill, ink = colours(device)
    style = (
        f"background:{fill};color:{ink};border-radius:4px;padding:1px 7px;white-space:nowrap;font:600 12px/1.5 {FONT}"
    )
    return element("span", device if shown is None else shown, style=style, data_anyaccel_device=device or None)


def faint(value: object) -> Markup:
    """Text that stands back, still in the page's own colour."""
    return element("span", prose(value), style="opacity:.75")


def row(cells: Iterable[object], *, device: str = "", tag: str = "td") -> Markup:
    """A row of a table; `device` marks it as one of that device."""
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
    """A table with a row for each item; of long ones the first, how many more there are, and the `last`.

    Args:
        head: the titles of the columns.
        items: what there is; only what is shown is looked at.
        make: the row of an item, of the cells in it by default.
        most: rows that are shown.
        last: how many of these are from the end.
    """
    first, hidden, end = cut(items, most, last)
    made = [make(one) for one in first]
    if hidden:
        made.append(row([faint(f"and {hidden:,} more")]))
    made += [make(one) for one in end]
    return element(
        "table",
        element("thead", row(head, tag="th"), style="border-bottom:1px solid rgba(128,128,128,.6)"),
        element("tbody", *made),
        style="border-collapse:collapse;margin:6px 0;font-size:inherit;color:inherit;background:transparent",
    )


def listing(names: Sequence[object], most: int = 8) -> str:
    """Names with commas, and how many more there are."""
    first, hidden, _ = cut(names, most)
    return ", ".join([*(text(name, 40) for name in first), *([f"and {hidden:,} more"] if hidden else [])])


def size(nbytes: int) -> str:
    """Bytes for people."""
    value, units = float(nbytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.0f} B" if units[0] == "B" else f"{value:.1f} {units[0]}"


def page(kind: str, name: object, *parts: object) -> Markup:
    """What an object is, by its kind and name, and all that is told of it."""
    title = element("div", element("strong", kind), " ", name, style="margin-bottom:2px")
    style = f"font-family:{FONT};font-size:13px;line-height:1.5;color:inherit;background:transparent;overflow-x:auto"
    return element("div", title, *parts, class_="anyaccel", style=style)


def line(*parts: object) -> Markup:
    """A line of text, which may be longer than a name."""
    return element("div", *map(prose, parts))


def guarded(what: object, build: Callable[[], Markup]) -> str:
    """The markup that `build` makes, or, where it cannot be made, what the object is and why not. Never raises."""
    try:
        return str(build())
    except Exception as error:  # a picture is looked at when something is wrong: it must not be wrong itself
        reason = element("code", prose(f"{type(error).__name__}: {text(error, 500)}"))
        return str(page(type(what).__name__, "", line("It cannot be shown: ", reason)))
