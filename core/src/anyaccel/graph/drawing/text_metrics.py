"""Widths of text without measuring fonts: upper bounds for common sans-serif fonts."""

from __future__ import annotations

import unicodedata

_ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"

# Groups of characters by width; widths in units of the font size are in `_advance`.
_THIN = frozenset("ijlI|'.,:;!` ")
_SLIM = frozenset('ftrJ()[]{}-/\\"*^')
_BROAD = frozenset("mwMW@%#+<=>~\N{RIGHTWARDS ARROW}\N{HORIZONTAL ELLIPSIS}")
_BOLD = 1.12


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Upper bound of the width of a text, in the unit of `size` (the font size)."""
    return sum(map(_advance, text)) * size * (_BOLD if bold else 1.0)


def _advance(char: str) -> float:
    if char in _THIN:
        return 0.4
    if char in _SLIM:
        return 0.46
    if char in _BROAD or unicodedata.east_asian_width(char) in "WF":
        return 1.0 if ord(char) < 0x1F000 else 1.4
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0.0
    if ord(char) < 128:
        return 0.79 if char.isupper() or char in "&$_" else 0.65
    return 0.95


def fitted(text: str, size: float, room: float, *, bold: bool = False) -> str:
    """The text, shortened with an ellipsis if it is wider than `room`."""
    if text_width(text, size, bold=bold) <= room:
        return text
    shortened = text.removesuffix(_ELLIPSIS)
    while shortened and text_width(f"{shortened}{_ELLIPSIS}", size, bold=bold) > room:
        shortened = shortened[:-1]
    return f"{shortened.rstrip()}{_ELLIPSIS}"
