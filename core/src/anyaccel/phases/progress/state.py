"""Where a phase stands, and that in words."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

WINDOW = 30.0
"""Seconds over which the present rate is measured: what was slow or fast before says nothing of what is left."""


@dataclass(slots=True)
class Standing:
    """How far a phase is. `steps` are those of an epoch, None if nobody knows; `looping` is false before the loop.

    `done` may go back. `loading` names what is being loaded, `loaded` of `nbytes`; `doing` is what goes on beside
    steps. `marks` are times and steps done then, the oldest first.
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
    """Steps that were done when the epoch at work began."""
    looping: bool = True
    doing: str = ""
    loading: str = ""
    loaded: int = 0
    nbytes: int = 0
    marks: deque[tuple[float, int]] = field(default_factory=deque)

    def look(self, now: float, done: int) -> None:
        """It is now so late, and so many steps are done."""
        self.now, self.done = now, done
        marks = self.marks
        if not marks or now - marks[-1][0] >= 1.0:
            marks.append((now, done))
        while len(marks) > 1 and now - marks[1][0] >= WINDOW:
            marks.popleft()

    @property
    def total(self) -> int | None:
        """Steps in all."""
        return None if self.steps is None else self.epochs * self.steps

    @property
    def share(self) -> float:
        """How much of the phase is done, 0 to 1."""
        done, total = (self.done, self.total) if self.total is not None else (self.epochs_done, self.epochs)
        return share(done, total)

    @property
    def in_epoch(self) -> int:
        """Steps done of the epoch that is at work, or of the last one."""
        if self.steps is None:
            return max(self.done - self.before, 0)
        return min(max(self.done - max(self.epoch - 1, 0) * self.steps, 0), self.steps)

    @property
    def epoch(self) -> int:
        """The number of the epoch that is at work, from 1; that of the last one when all are done."""
        full = 0 if self.steps is None else -(-self.done // max(self.steps, 1))
        return min(max(self.epochs_done + 1, full), self.epochs)

    @property
    def elapsed(self) -> float:
        """Seconds since it began."""
        return self.now - self.began

    @property
    def rate(self) -> float:
        """Steps a second so far, validation included."""
        return self.done / max(self.elapsed, 1e-9)

    @property
    def pace(self) -> float:
        """Steps a second of late, validation included."""
        then, done = self.marks[0] if self.marks and self.marks[0][0] < self.now else (self.began, 0)
        return max(self.done - done, 0) / max(self.now - then, 1e-9)

    @property
    def left(self) -> float:
        """Seconds until the end at the present pace, NaN where it is not known."""
        return max(self.total - self.done, 0) / self.pace if self.total is not None and self.pace else math.nan

    @property
    def shown_figures(self) -> str:
        """The figures that sum up the last epoch, without those of each loss."""
        return "  ".join(f"{name} {value:.4g}" for name, value in self.figures.items() if "." not in name)

    @property
    def shown_left(self) -> str:
        """The time that is left, `""` where it is not known."""
        return "" if math.isnan(self.left) else f"{duration(self.left)} left"

    @property
    def shown_steps(self) -> str:
        """The steps of the epoch: `12/40`, or `12` where nobody knows how many there are."""
        return f"{self.in_epoch:,}" if self.steps is None else f"{self.in_epoch:,}/{self.steps:,}"

    @property
    def shown_now(self) -> str:
        """What goes on beside steps: `loading 1.2/3.4 GiB (data.x)`, `compiling`; `""` if nothing does."""
        if self.doing or not self.loading:
            return self.doing
        return f"loading {amount(self.loaded, self.nbytes)} ({self.loading})"


def share(done: int, total: int) -> float:
    """A part of all, 0 to 1; of nothing all is done."""
    return min(max(done / total, 0.0), 1.0) if total else 1.0


def amount(done: int, total: int) -> str:
    """Bytes done of all, both in the unit that suits all: `1.2/3.4 GiB`."""
    power = min(max((total.bit_length() - 1) // 10, 0), 4)
    unit = ("B", "KiB", "MiB", "GiB", "TiB")[power]
    digits = 1 if power else 0
    return f"{done / 1024**power:.{digits}f}/{total / 1024**power:.{digits}f} {unit}"


def duration(seconds: float) -> str:
    """A time for people: `42 s`, `3:05`, `2:03:05`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
