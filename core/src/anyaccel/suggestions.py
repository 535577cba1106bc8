"""Suggestions for error messages: the closest known name to a misspelled one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(
    unknown: object, words: Iterable[object], otherwise: str = "use one of these names", *, cutoff: float = 0.6
) -> str:
    """Return a hint: `did you mean 'CLOSEST'?`, or `otherwise` if no word is similar; equal words have a similarity of
    1.
    """
    texts = [str(word) for word in words]
    same = [text for text in texts if text.casefold() == str(unknown).casefold()]
    close = same or difflib.get_close_matches(str(unknown), texts, n=1, cutoff=cutoff)
    return f"did you mean {close[0]!r}?" if close else otherwise


def kind_hint(kind: str, known: Iterable[str], otherwise: str) -> str:
    """Return a hint for a kind of device that nothing runs on: the one that was meant, or `otherwise`."""
    if kind in ("auto", "best", "any"):
        return "use anyaccel.best_device() for the best device of this machine"
    return did_you_mean(kind, {*known, "gpu", "mps", "cuda", "rocm"} - {kind}, otherwise, cutoff=0.7)
