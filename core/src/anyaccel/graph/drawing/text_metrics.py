"""How much room text takes, where nothing can be measured: not less than in any common font without serifs."""

from __future__ import annotations

import unicodedata

_ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"

# Widths of characters in units of the font size; those of capitals and of all the rest are below.
_THIN = frozenset("ijlI|'.,:;!` ")
_SLIM = frozenset('ftrJ()[]{}-/\\"*^')
_BROAD = frozenset("mwMW@%#+<=>~\N{RIGHTWARDS ARROW}\N{HORIZONTAL ELLIPSIS}")
_BOLD = 1.12


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """The room that a text of a font size takes at most, in the unit of the size."""
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
    """The text, or as much of its beginning as there is room for, and an ellipsis."""
    if text_width(text, size, bold=bold) <= room:
        return text
    kept = text.removesuffix(_ELLIPSIS)
    while kept and text_width(f"{kept}{_ELLIPSIS}", size, bold=bold) > room:
        kept = kept[:-1]
    return f"{kept.rstrip()}{_ELLIPSIS}"
