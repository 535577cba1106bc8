"""Progress that is drawn now and then: what every way of drawing shares."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar

from anyaccel.phases.progress.heard import Progress

LONG_LOADING = 2**30
"""Bytes: to load so many takes long enough to be told."""


@dataclass(slots=True)
class Standing:
    """How far a phase is."""

    label: str
    epochs: int
    steps: int
    began: float
    now: float
    done: int = 0
    epochs_done: int = 0
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Steps in all."""
        return self.epochs * self.steps

    @property
    def in_epoch(self) -> int:
        """Steps done of the epoch that is at work, or of the last one."""
        return min(max(self.done - max(self.epoch - 1, 0) * self.steps, 0), self.steps)

    @property
    def epoch(self) -> int:
        """The number of the epoch that is at work, from 1; that of the last one when all are done."""
        return min(max(self.epochs_done + 1, -(-self.done // max(self.steps, 1))), self.epochs)

    @property
    def rate(self) -> float:
        """Steps a second so far, validation included."""
        return self.done / max(self.now - self.began, 1e-9)

    @property
    def left(self) -> float:
        """Seconds until the end at this rate, NaN where it is not known."""
        return (self.total - self.done) / self.rate if self.done else math.nan

    @property
    def shown_figures(self) -> str:
        """The figures that sum up the last epoch, without those of each loss."""
        return "  ".join(f"{name} {value:.4g}" for name, value in self.figures.items() if "." not in name)

    @property
    def shown_left(self) -> str:
        """The time that is left, `""` where it is not known."""
        return "" if math.isnan(self.left) else f"{duration(self.left)} left"


def duration(seconds: float) -> str:
    """A time for people: `42 s`, `3:05`, `2:03:05`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class DrawnProgress(Progress):
    """Keeps where a phase stands, and draws it at most once in `interval` seconds; between, a call costs little.

    A drawing that fails (a terminal that was closed, say) does not end the run: it is not tried again in this phase.
    """

    interval: ClassVar[float] = 0.1

    def __init__(self) -> None:
        self.standing = Standing("", 0, 0, 0.0, 0.0)
        self._due = math.inf
        self._steps = 0

    # -- what a way of drawing does ------------------------------------------------------------------------------------

    def draw_loading(self, text: str) -> None:
        """Tell that something is loaded that takes long."""

    def open(self) -> None:
        """Begin to show a phase."""

    def draw(self) -> None:
        """Show where it stands."""

    def close(self) -> None:
        """Show where it ended, and leave it so."""

    def give_up(self) -> None:
        """A drawing has failed: leave nothing open."""

    # -- what it hears -------------------------------------------------------------------------------------------------

    def loading(self, what: str, nbytes: int) -> None:
        """Tell it, if there is much to load."""
        if nbytes >= LONG_LOADING:
            self._try(lambda: self.draw_loading(f"loading {what}, {nbytes / 2**30:.1f} GiB"))

    def start(self, label: str, epochs: int, steps: int) -> None:
        """Begin to show."""
        now = time.perf_counter()
        self.standing, self._steps = Standing(label, epochs, steps, now, now), 0
        self._due = now + self.interval
        self._try(self.open)

    def advance(self, steps: int) -> None:
        """Count, and draw if it is time."""
        self._steps += steps
        if time.perf_counter() >= self._due:
            self._draw()

    def epoch(self, figures: Mapping[str, float]) -> None:
        """Take the figures, and draw if it is time."""
        standing = self.standing
        standing.figures, standing.epochs_done = figures, standing.epochs_done + 1
        if time.perf_counter() >= self._due:
            self._draw()

    def stop(self) -> None:
        """Draw for the last time; does nothing before `start`, and nothing twice."""
        if self._due < math.inf:
            self._look()
            self._try(self.close)
        self._due = math.inf

    def _look(self) -> None:
        self.standing.done, self.standing.now = self._steps, time.perf_counter()

    def _draw(self) -> None:
        self._look()
        self._try(self.draw)
        if self._due < math.inf:
            self._due = time.perf_counter() + self.interval

    def _try(self, act: Callable[[], None]) -> None:
        try:
            act()
        except BaseException as error:
            self._due = math.inf
            with suppress(Exception):
                self.give_up()
            if not isinstance(error, Exception):  # others are of the drawing, not of the run, which may be hours old
                raise
