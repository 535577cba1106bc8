"""Suggestions for error messages: the closest known name to a misspelt one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(
    given: object, words: Iterable[object], otherwise: str = "use one of these names", *, cutoff: float = 0.6
) -> str:
    """A hint: `did you mean 'CLOSEST'?`, or `otherwise` if no word is similar.

    Args:
        given: the unknown word.
        words: the known words.
        otherwise: the hint where no word is similar.
        cutoff: the least similarity, from 0 (any two words) to 1 (equal words).
    """
    close = difflib.get_close_matches(str(given), [str(word) for word in words], n=1, cutoff=cutoff)
    return f"did you mean {close[0]!r}?" if close else otherwise
