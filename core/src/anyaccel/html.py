"""HTML and SVG markup: elements in which everything that a user wrote is escaped.

A value is escaped when it is put into an element, unless it is `Markup` already. Styles are inline, so that nothing
affects the page around; colours are the page's own, except for the badges of devices.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from typing import NamedTuple

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
    """Text that is HTML or XML already: elements contain it as it is, and a notebook shows it."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return str(self)


class Colours(NamedTuple):
    """A background and a readable text colour, as `#RRGGBB`."""

    fill: str
    ink: str


NOWHERE = Colours("#D5DAE1", "#29323F")
"""The colours of what has no device yet."""


def colours(device: str) -> Colours:
    """The colours of a device, given as text; always the same. For `""` those of what has no device yet.

    There are seven besides the CPU's, so two devices may share one: show the name too.
    """
    kind, _, index = device.partition(":")
    if not kind:
        return NOWHERE
    if kind == "cpu":
        return Colours(_CPU, "#FFFFFF")
    first = _FIRST.get(kind, zlib.crc32(kind.encode("utf-8", "replace")))
    return Colours(_HUES[(first + int(index or 0)) % len(_HUES)], "#FFFFFF")


def text(value: object, longest: int = LONGEST) -> str:
    """A value as one line, cut to `longest` characters; what XML does not allow or is invisible becomes U+FFFD."""
    try:
        whole = value if isinstance(value, str) else str(value)
    except Exception as error:  # a user's object whose __str__ fails is still shown
        whole = f"{type(value).__name__} ({type(error).__name__} in str)"
    shown = UNSEEN.sub("\N{REPLACEMENT CHARACTER}", _SPACES.sub(" ", whole[: longest + 1]))
    return shown if len(whole) <= longest else f"{shown[: longest - 1]}\N{HORIZONTAL ELLIPSIS}"


def escaped(value: object, longest: int = LONGEST) -> Markup:
    """A value for an element's content or a quoted attribute; Markup is returned as it is."""
    return value if isinstance(value, Markup) else Markup(text(value, longest).translate(_ENTITIES))


def joined(parts: Iterable[object]) -> Markup:
    """Parts, concatenated; each is escaped unless it is Markup, and None is left out."""
    return Markup("".join(escaped(part) for part in parts if part is not None))


def element(tag: str, *children: object, **attributes: object) -> Markup:
    """An element. Underscores in attribute names stand for hyphens; an attribute that is None is left out."""
    given = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items() if value is not None}
    written = "".join(f' {name}="{escaped(value, 2000)}"' for name, value in given.items())
    return Markup(f"<{tag}{written}>{joined(children)}</{tag}>")


def badge(device: str, shown: object = None) -> Markup:
    """The name of a device on its colour; `shown` instead of the name, for example where there is no device."""
    fill, ink = colours(device)
    style = f"background:{fill};color:{ink};border-radius:4px;padding:1px 7px;white-space:nowrap;{_BADGE_FONT}"
    return element("span", device if shown is None else shown, style=style, data_anyaccel_device=device or None)


def faint(value: object) -> Markup:
    """A sentence in a fainter shade of the page's own colour."""
    return element("span", escaped(value, 600), style="opacity:.75")
