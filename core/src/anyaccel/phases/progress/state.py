"""ProgressState: how far a run is, as numbers and as text."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

WINDOW = 30.0
"""Seconds over which the recent rate is measured."""


@dataclass(slots=True)
class ProgressState:
    """How far a run is.

    Attributes:
        label, epochs: of the phase.
        steps: steps per epoch, None if unknown.
        began, now: times in seconds.
        done: steps done in all; may decrease when steps are rolled back.
        epochs_done: completed epochs.
        figures: losses and metrics of the last epoch.
        before: `done` at the start of the current epoch.
        looping: whether the training loop has started.
        doing: activity other than training steps, such as `"compiling"`.
        loading: name of the data being loaded; `loaded` of `nbytes` bytes are.
        marks: (time, done) pairs of the recent past, oldest first.
    """

    label: str
    epochs: int
    steps: int | None
    began: float
    now: float
    done: int = 0
    epochs_done: int = 0
    figures: Mapping[str, float] = field(default_factory=dict)
    before: int = 0
    looping: bool = True
    doing: str = ""
    loading: str = ""
    loaded: int = 0
    nbytes: int = 0
    marks: deque[tuple[float, int]] = field(default_factory=deque)

    def update(self, now: float, done: int) -> None:
        """Set the current time and the number of steps done."""
        self.now, self.done = now, done
        marks = self.marks
        if not marks or now - marks[-1][0] >= 1.0:
            marks.append((now, done))
        while len(marks) > 1 and now - marks[1][0] >= WINDOW:
            marks.popleft()

    @property
    def total(self) -> int | None:
        """Steps of the whole phase, None if unknown."""
        return None if self.steps is None else self.epochs * self.steps

    @property
    def share(self) -> float:
        """Completed fraction of the phase, 0 to 1."""
        done, total = (self.done, self.total) if self.total is not None else (self.epochs_done, self.epochs)
        return share(done, total)

    @property
    def in_epoch(self) -> int:
        """Steps done in the current epoch, or in the last one."""
        if self.steps is None:
            return max(self.done - self.before, 0)
        return min(max(self.done - max(self.epoch - 1, 0) * self.steps, 0), self.steps)

    @property
    def epoch(self) -> int:
        """Number of the current epoch, from 1; of the last one when all are done."""
        full = 0 if self.steps is None else -(-self.done // max(self.steps, 1))
        return min(max(self.epochs_done + 1, full), self.epochs)

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return self.now - self.began

    @property
    def rate(self) -> float:
        """Steps per second since the start, including validation."""
        return self.done / max(self.elapsed, 1e-9)

    @property
    def recent_rate(self) -> float:
        """Steps per second over the last WINDOW seconds, including validation."""
        then, done = self.marks[0] if self.marks and self.marks[0][0] < self.now else (self.began, 0)
        return max(self.done - done, 0) / max(self.now - then, 1e-9)

    @property
    def left(self) -> float:
        """Seconds until the end at the recent rate, NaN if unknown."""
        return (
            max(self.total - self.done, 0) / self.recent_rate
            if self.total is not None and self.recent_rate
            else math.nan
        )

    @property
    def shown_figures(self) -> str:
        """Totals of the last epoch as text, without the losses of single nodes."""
        return "  ".join(f"{name} {value:.4g}" for name, value in self.figures.items() if "." not in name)

    @property
    def shown_left(self) -> str:
        """Remaining time as text, `""` if unknown."""
        return "" if math.isnan(self.left) else f"{duration(self.left)} left"

    @property
    def shown_steps(self) -> str:
        """Steps of the epoch as text: `12/40`, or `12` if the total is unknown."""
        return f"{self.in_epoch:,}" if self.steps is None else f"{self.in_epoch:,}/{self.steps:,}"

    @property
    def activity(self) -> str:
        """Activity other than steps, as text: `loading 1.2/3.4 GiB (data.x)`, `compiling`, or `""`."""
        if self.doing or not self.loading:
            return self.doing
        return f"loading {amount(self.loaded, self.nbytes)} ({self.loading})"


def share(done: int, total: int) -> float:
    """`done / total` within 0 and 1; 1 if `total` is 0."""
    return min(max(done / total, 0.0), 1.0) if total else 1.0


def amount(done: int, total: int) -> str:
    """Two numbers of bytes in the unit that suits the total: `1.2/3.4 GiB`."""
    power = min(max((total.bit_length() - 1) // 10, 0), 4)
    unit = ("B", "KiB", "MiB", "GiB", "TiB")[power]
    digits = 1 if power else 0
    return f"{done / 1024**power:.{digits}f}/{total / 1024**power:.{digits}f} {unit}"


def duration(seconds: float) -> str:
    """A duration as text: `42 s`, `3:05`, `2:03:05`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
