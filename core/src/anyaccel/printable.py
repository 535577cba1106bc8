"""Text that others wrote (names of columns, files, classes), made safe for terminals and messages."""

from __future__ import annotations

import re

# Characters that XML does not allow or that are invisible, and marks that change the direction of text.
UNSEEN = re.compile("[^\t\n\x20-\x7e\xa0-\u2027\u202f-\u2065\u206a-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def printable(text: str) -> str:
    """Return the text with escapes (`\\x1b`) for characters that could control a terminal; tabs and line ends stay."""
    return UNSEEN.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)
