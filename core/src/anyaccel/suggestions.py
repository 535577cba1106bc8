"""Spelling: the word that was meant, for errors about one that is not there."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(
    given: object, words: Iterable[object], otherwise: str = "use one of these names", *, cutoff: float = 0.6
) -> str:
    """The remedy for a word that is none of those there are: the closest of them, or `otherwise` if none is close.

    Args:
        given: the word.
        words: those there are.
        otherwise: the remedy where no word is close.
        cutoff: how alike two words are that are close, from 0 (any two) to 1 (the same).
    """
    close = difflib.get_close_matches(str(given), [str(word) for word in words], n=1, cutoff=cutoff)
    return f"did you mean {close[0]!r}?" if close else otherwise
