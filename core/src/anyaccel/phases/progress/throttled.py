"""Progress that is drawn now and then: what every way of drawing shares."""

from __future__ import annotations

import copy
import math
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import ClassVar

from anyaccel.phases.events import Event
from anyaccel.phases.progress.base import Progress
from anyaccel.phases.progress.state import Standing

LONG_LOADING = 2**30
"""Bytes: to load so many takes long enough to be told at once."""
MOST_EVENTS = 20
"""Events of a run that are shown; the results have all of them."""

# Drawing takes a 400th of the time at most, and as much again for what cannot wait, which may have 5 ms in advance.
_SPARING = 400
_IN_ADVANCE = 0.005


class DrawnProgress(Progress):
    """Keeps where a phase stands, and draws it at most once in `interval` seconds; between, a call costs little.

    Where drawing is slow, it is drawn less often, so that it costs half a hundredth of the time at most. A drawing that
    fails (a terminal that was closed, say) does not end the run: it is not tried again in this phase. An object that is
    at work in one run hands a second one a copy of itself, so that each counts its own steps.
    """

    interval: ClassVar[float] = 0.2
    prompt: ClassVar[bool] = True
    """Whether what goes on now is drawn when it begins, and need not wait for its turn."""

    def __init__(self) -> None:
        self._idle = threading.Lock()
        self.clear()

    def clear(self) -> None:
        """Forget the run before. Who derives from this and keeps more of a run, forgets that, too."""
        self.standing = Standing("", 0, 0, 0.0, 0.0)
        self.events: list[Event] = []
        self._due = math.inf
        self._steps = 0
        self._took = self._extra = self._begun = 0.0
        self._is_open = self._gave_up = False

    # -- what a way of drawing does ------------------------------------------------------------------------------------

    def open(self) -> None:
        """Begin to show a run; `draw` comes next."""

    def draw(self) -> None:
        """Show where it stands."""

    def draw_event(self, event: Event) -> None:
        """Show an event, whether anything is open or not."""

    def close(self) -> None:
        """Show where it ended and leave it so, or nothing where there was no loop."""

    def give_up(self) -> None:
        """A drawing has failed: leave nothing open."""

    # -- what it hears -------------------------------------------------------------------------------------------------

    def begin(self, label: str) -> DrawnProgress:
        """This object, or a copy of it while it is at work in another run."""
        if self._idle.acquire(blocking=False):
            self.take(label, self._idle)
            return self
        other = copy.copy(self)
        other.take(label, threading.Lock())
        return other

    def take(self, label: str, lock: threading.Lock) -> None:
        """Show a run of a phase of this label from now on; `lock` is held as long."""
        lock.acquire(blocking=False)
        self._idle = lock
        self.clear()
        self._expect(label)

    def _expect(self, label: str) -> None:
        now = time.perf_counter()
        self.standing = Standing(label, 0, 0, now, now, looping=False)
        self._begun, self._due = now, now + self.interval

    def loading(self, what: str, nbytes: int) -> None:
        """LogEvent it, at once if there is much to load."""
        if self._due == math.inf and not self._gave_up:  # nobody said that a run begins
            self._expect("")
        at = self.standing
        at.loading, at.loaded, at.nbytes = what, 0, nbytes
        if nbytes >= LONG_LOADING and self._due < math.inf:
            self._draw()

    def loaded(self, nbytes: int) -> None:
        """Count, and draw if it is time."""
        self.standing.loaded += nbytes
        if time.perf_counter() >= self._due:
            self._draw()

    def start(self, label: str, epochs: int, steps: int | None) -> None:
        """Begin to show."""
        now = time.perf_counter()
        self.standing, self._steps = Standing(label, epochs, steps, now, now), 0
        self.standing.look(now, 0)
        if not self._gave_up:
            self._begun, self._due = now, now + self.interval
            self._draw() if self.prompt else self._show()

    def advance(self, steps: int) -> None:
        """Count, and draw if it is time."""
        self._steps += steps
        if time.perf_counter() >= self._due:
            self._draw()

    def doing(self, text: str) -> None:
        """Keep it, and draw at once what begins, unless that is done too often."""
        self.standing.doing = text
        if text and self.prompt and self._due < math.inf:
            began = time.perf_counter()
            if self._extra <= (began - self._begun) / _SPARING + _IN_ADVANCE:
                self._draw()
                self._extra += self._took

    def epoch(self, figures: Mapping[str, float]) -> None:
        """Take the figures, and draw if it is time."""
        standing = self.standing
        standing.figures, standing.epochs_done, standing.before = figures, standing.epochs_done + 1, self._steps
        if time.perf_counter() >= self._due:
            self._draw()

    def event(self, event: Event) -> None:
        """Show it, if it is one of the first; of the next, say where it is."""
        self.events.append(event)
        if len(self.events) > MOST_EVENTS:
            event = replace(event, message="the results have this and what else happens")
        if len(self.events) <= MOST_EVENTS + 1 and self._due < math.inf:
            self._try(lambda: self.draw_event(event))

    def stop(self) -> None:
        """Draw for the last time; does nothing before anything was told, and nothing twice."""
        if self._due < math.inf:
            self.standing.look(time.perf_counter(), self._steps)
            if self._is_open:
                self._try(self.close)
        self._due = math.inf
        self._is_open = self._gave_up = False

    def end(self) -> None:
        """Close what is open; from now on the object takes another run."""
        self.stop()
        if self._idle.locked():
            self._idle.release()

    def _draw(self) -> None:
        """Draw, and say when the next drawing is due: a time that was slow once only does not count."""
        self._show()
        if self._due == math.inf:
            return
        began = time.perf_counter()
        self.standing.look(began, self._steps)
        self._try(self.draw)
        if self._due < math.inf:
            now = time.perf_counter()
            before, self._took = self._took, now - began
            self._due = now + max(self.interval, min(before, self._took) * _SPARING)

    def _show(self) -> None:
        if not self._is_open:
            self._is_open = True
            self._try(self.open)

    def _try(self, act: Callable[[], None]) -> None:
        try:
            act()
        except BaseException as error:
            self._due, self._is_open, self._gave_up = math.inf, False, True
            with suppress(Exception):
                self.give_up()
            if not isinstance(error, Exception):  # others are of the drawing, not of the run, which may be hours old
                raise
