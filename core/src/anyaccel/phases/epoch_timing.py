"""EpochTiming: how many steps and samples of an epoch this process has done, and in how long."""

from __future__ import annotations

from dataclasses import dataclass


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
