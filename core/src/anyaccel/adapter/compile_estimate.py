"""Guess: what compiling a segment will take and bring, from what this process has seen so far."""

from __future__ import annotations

from typing import Any

from anyaccel.backend import CompileEstimate

# Seconds to compile a segment of the smallest size, and more for each array and operation; of XLA on a slow CPU.
_LEAST, _EACH = 0.4, 0.05
# Seconds that one operation by itself takes beside its arithmetic, for each array and operation; and those of a call.
_BESIDE, _CALL = 4e-4, 1e-3
_LEAST_RATIO = 0.01


class Guess:
    """For one program.

    Args:
        kind: of programs that take alike.
        size: how much there is to compile.
    """

    _seen: dict[Any, float] = {}  # noqa: RUF012
    """By kind, how many times as long as was guessed it took, on average of late."""

    def __init__(self, kind: Any, size: int) -> None:
        self._kind, self._size = kind, size
        self._each: float | None = None

    def plain(self, seconds: float) -> None:
        """A step took so long, one by one; the fastest says what steps take."""
        self._each = seconds if self._each is None else min(self._each, seconds)

    def took(self, seconds: float) -> None:
        """Compiling took so long."""
        ratio = seconds / self._usual()
        self._seen[self._kind] = (self._seen.get(self._kind, ratio) + ratio) / 2

    def offer(self, most: int) -> CompileEstimate:
        """For calls of at most `most` steps."""
        seconds = self._usual() * self._seen.get(self._kind, 1.0)
        return CompileEstimate(seconds, self._ratio(most))

    def _usual(self) -> float:
        return _LEAST + _EACH * self._size

    def _ratio(self, most: int) -> float:
        """Arithmetic stays, and one call for all steps; what operations take beside it goes."""
        if self._each is None:
            return _LEAST_RATIO
        rest = max(self._each - _BESIDE * self._size, 0.0) + _CALL / max(most, 1)
        return min(max(rest / self._each, _LEAST_RATIO), 1.0)
