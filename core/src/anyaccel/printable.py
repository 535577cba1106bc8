"""Text for terminals and messages: what others wrote (names of columns, files, classes), made safe, and sizes."""

from __future__ import annotations

import re

# Characters that XML does not allow or that are invisible, and marks that change the direction of text.
UNSEEN = re.compile("[^\t\n\x20-\x7e\xa0-\u2027\u202f-\u2065\u206a-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def printable(text: str) -> str:
    """Return the text with escapes (`\\x1b`) for characters that could control a terminal; tabs and line ends stay."""
    return UNSEEN.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def size(nbytes: int) -> str:
    """Return a number of bytes with its unit, such as `1.5 MiB`."""
    value, units = float(nbytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.0f} B" if units[0] == "B" else f"{value:.1f} {units[0]}"
