"""Step pacing: how many steps one call takes, so that progress and Ctrl-C do not wait for long, and what calls did."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from anyaccel import interrupts
from anyaccel.phases.executor.cross_segment import Losses

# A call may last half a second; this is what is aimed at.
_AIM_SECONDS = 0.2
_POLL_SECONDS = 0.0005


class StepPacing:
    """How many steps one call should take: few at first, then as many as fit into the aimed time."""

    def __init__(self) -> None:
        self._n_steps = 1

    def next(self) -> int:
        """Steps for the next call."""
        return self._n_steps

    def record(self, n_steps: int, seconds: float) -> None:
        """Learn from a call. Grows by doubling only, as the first calls are slow and say little.

        Always a power of two, as some frameworks compile something small for every number that they see. A call of
        fewer steps, as at the end of an epoch, counts only if it was too slow.
        """
        if n_steps < self._n_steps and seconds <= _AIM_SECONDS:
            return
        fitting = int(n_steps * _AIM_SECONDS / max(seconds, 1e-9))
        self._n_steps = min(self._n_steps * 2, 1 << max(fitting.bit_length() - 1, 0))


class PendingCalls:
    """Calls that were launched and may still be computed: at most two.

    Nothing waits for a device: it is asked now and then whether a call is done, while the next one is queued there.
    """

    def __init__(self) -> None:
        self._calls: deque[tuple[Sequence[Losses], int, float]] = deque()
        self._finished_at = 0.0

    def launched(self, losses: Sequence[Losses], n_steps: int, began: float) -> Iterator[tuple[int, float]]:
        """Add a call of `n_steps` steps; yields the steps and seconds of each call that is done by now."""
        self._calls.append((losses, n_steps, began))
        while self._calls:
            while not all(pending.is_ready() for pending in self._calls[0][0]):
                if len(self._calls) < 2:
                    return
                time.sleep(_POLL_SECONDS)
                interrupts.check()
            yield self._finish()

    def finish(self) -> Iterator[tuple[int, float]]:
        """Like `launched`, for the calls that are left once all losses have been read."""
        while self._calls:
            yield self._finish()

    def _finish(self) -> tuple[int, float]:
        _, n_steps, began = self._calls.popleft()
        before, self._finished_at = self._finished_at, time.perf_counter()
        return n_steps, self._finished_at - max(began, before)

    def clear(self) -> None:
        """Drop calls that have failed."""
        self._calls.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochTiming:
    """An epoch, or the rest of one that goes on after a checkpoint, without its validation.

    Attributes:
        steps: optimizer steps.
        samples: rows that they took, of the feature set with the most; pairs and triplets count as one.
        seconds: their duration.
    """

    steps: int
    samples: int
    seconds: float


class SampleCount:
    """The samples of the steps of an epoch, of which some may be done again."""

    def __init__(self) -> None:
        self._calls: list[tuple[int, int, int]] = []

    def add(self, first: int, n_steps: int, n_samples: int) -> None:
        """Count steps from this number on, of so many samples each."""
        self._calls.append((first, n_steps, n_samples))

    def back_to(self, step: int) -> None:
        """Forget this step and those after it."""
        self._calls = [(first, min(n, step - first), size) for first, n, size in self._calls if first < step]

    @property
    def steps(self) -> int:
        """How many there are."""
        return sum(n_steps for _, n_steps, _ in self._calls)

    @property
    def samples(self) -> int:
        """Of all steps."""
        return sum(n_steps * size for _, n_steps, size in self._calls)
