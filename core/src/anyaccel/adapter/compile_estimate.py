"""CompileEstimator: how long compiling a segment will take and how much faster its steps will be."""

from __future__ import annotations

from typing import Any

from anyaccel.backend import CompileEstimate

# Seconds to compile the smallest segment, and per array and operation; measured with XLA on a slow CPU.
_COMPILE_BASE, _COMPILE_PER_ITEM = 0.4, 0.05
# Seconds of overhead of a plain step per array and operation, and of a compiled call.
_OVERHEAD_PER_ITEM, _OVERHEAD_PER_CALL = 4e-4, 1e-3
_MIN_RATIO = 0.01


class CompileEstimator:
    """Estimates for one program, corrected by what this process has measured.

    Args:
        kind: programs of one kind share the measured compile times.
        size: number of arrays and operations to compile.
    """

    _compile_ratios: dict[Any, float] = {}  # noqa: RUF012
    """By kind, measured over estimated compile time: a moving average."""

    def __init__(self, kind: Any, size: int) -> None:
        self._kind, self._size = kind, size
        self._step_seconds: float | None = None

    def record_step(self, seconds: float) -> None:
        """Take in the time of a plain step; the shortest counts."""
        self._step_seconds = seconds if self._step_seconds is None else min(self._step_seconds, seconds)

    def record_compile(self, seconds: float) -> None:
        """Take in the time of a compilation."""
        ratio = seconds / self._usual_seconds()
        self._compile_ratios[self._kind] = (self._compile_ratios.get(self._kind, ratio) + ratio) / 2

    def estimate(self, max_steps: int) -> CompileEstimate:
        """For calls of at most `max_steps` steps."""
        seconds = self._usual_seconds() * self._compile_ratios.get(self._kind, 1.0)
        return CompileEstimate(seconds, self._step_ratio(max_steps))

    def _usual_seconds(self) -> float:
        return _COMPILE_BASE + _COMPILE_PER_ITEM * self._size

    def _step_ratio(self, max_steps: int) -> float:
        """What compiling leaves of a step: the arithmetic, and its share of one call for all steps."""
        if self._step_seconds is None:
            return _MIN_RATIO
        compiled = max(self._step_seconds - _OVERHEAD_PER_ITEM * self._size, 0.0)
        compiled += _OVERHEAD_PER_CALL / max(max_steps, 1)
        return min(max(compiled / self._step_seconds, _MIN_RATIO), 1.0)
