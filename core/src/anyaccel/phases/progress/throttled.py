"""ThrottledProgress: keeps the state of a run and limits how often and how long it is drawn."""

from __future__ import annotations

import copy
import math
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import ClassVar

from anyaccel.phases.progress.base import Progress
from anyaccel.phases.progress.state import ProgressState
from anyaccel.printable import printable
from anyaccel.results.events import Event
from anyaccel.user_level import user_level

LARGE_LOADING = 2**30
"""Bytes from which loading is drawn at once."""
MAX_EVENTS = 20
"""Events of a run that are drawn; the results have all of them."""

# Drawing takes at most a 400th of the time, and as much again for activities, which are drawn at once; these may use
# 5 ms in advance.
_COST_LIMIT = 400
_ADVANCE_SECONDS = 0.005


class ThrottledProgress(Progress):
    """Keeps the state of a run and draws it at most once in `interval` seconds; other calls only count.

    Slow drawing happens less often, so that it takes at most 0.5 % of the time. If drawing fails (the terminal was
    closed, the disk is full), the run goes on with a warning, and nothing more is drawn in this phase. An object in use
    by one run gives a second run a copy of itself.
    """

    interval: ClassVar[float] = 0.2
    prompt: ClassVar[bool] = True
    """Whether an activity such as `"compiling"` is drawn as soon as it starts."""

    def __init__(self) -> None:
        self._idle = threading.Lock()
        self.clear()

    def clear(self) -> None:
        """Forget the previous run. Subclasses that keep more about a run override this."""
        self.state = ProgressState("", 0, 0, 0.0, 0.0)
        self.events: list[Event] = []
        self._due = math.inf
        self._steps = 0
        self._took = self._extra = self._begun = 0.0
        self._is_open = self._gave_up = False

    # -- drawing, by subclasses ----------------------------------------------------------------------------------------

    def open(self) -> None:
        """Start to show a run; `draw` is called next."""

    def draw(self) -> None:
        """Show `self.state`."""

    def draw_event(self, event: Event) -> None:
        """Show an event, whether or not `open` was called."""

    def close(self) -> None:
        """Show the final state."""

    def give_up(self) -> None:
        """Clean up after drawing has failed."""

    # -- reports of the run --------------------------------------------------------------------------------------------

    def begin(self, label: str) -> ThrottledProgress:
        """This object, or a copy of it if it is in use by another run."""
        if self._idle.acquire(blocking=False):
            self.acquire(label, self._idle)
            return self
        other = copy.copy(self)
        other.acquire(label, threading.Lock())
        return other

    def acquire(self, label: str, lock: threading.Lock) -> None:
        """Show the run of the phase with this label; `lock` is held until `end`."""
        lock.acquire(blocking=False)
        self._idle = lock
        self.clear()
        self._reset_clock(label)

    def _reset_clock(self, label: str) -> None:
        now = time.perf_counter()
        self.state = ProgressState(label, 0, 0, now, now, looping=False)
        self._begun, self._due = now, now + self.interval

    def loading(self, what: str, nbytes: int) -> None:
        """Record what is loaded; draw at once if it is large."""
        if self._due == math.inf and not self._gave_up:  # begin() was not called
            self._reset_clock("")
        state = self.state
        state.loading, state.loaded, state.nbytes = what, 0, nbytes
        if nbytes >= LARGE_LOADING and self._due < math.inf:
            self._draw()

    def loaded(self, nbytes: int) -> None:
        """Count, and draw if due."""
        self.state.loaded += nbytes
        if time.perf_counter() >= self._due:
            self._draw()

    def start(self, label: str, epochs: int, steps: int | None) -> None:
        """Start to show the training loop."""
        now = time.perf_counter()
        self.state, self._steps = ProgressState(label, epochs, steps, now, now), 0
        self.state.update(now, 0)
        if not self._gave_up:
            self._begun, self._due = now, now + self.interval
            self._draw() if self.prompt else self._show()

    def advance(self, steps: int) -> None:
        """Count, and draw if due."""
        self._steps += steps
        if time.perf_counter() >= self._due:
            self._draw()

    def doing(self, text: str) -> None:
        """Record the activity; draw it at once, unless that happens too often."""
        self.state.doing = text
        if text and self.prompt and self._due < math.inf:
            began = time.perf_counter()
            if self._extra <= (began - self._begun) / _COST_LIMIT + _ADVANCE_SECONDS:
                self._draw()
                self._extra += self._took

    def epoch(self, figures: Mapping[str, float]) -> None:
        """Record losses and metrics, and draw if due."""
        state = self.state
        state.figures, state.epochs_done, state.before = figures, state.epochs_done + 1, self._steps
        if time.perf_counter() >= self._due:
            self._draw()

    def event(self, event: Event) -> None:
        """Show one of the first events; after these, say once where the others are."""
        self.events.append(event)
        if len(self.events) > MAX_EVENTS:
            event = replace(event, message="see the events of the results for this and all further events")
        if len(self.events) <= MAX_EVENTS + 1 and self._due < math.inf:
            self._try(lambda: self.draw_event(event))

    def stop(self) -> None:
        """Draw the final state; without effect before `start` and the second time."""
        if self._due < math.inf:
            self.state.update(time.perf_counter(), self._steps)
            if self._is_open:
                self._try(self.close)
        self._due = math.inf
        self._is_open = self._gave_up = False

    def end(self) -> None:
        """Close; the object is then free for another run."""
        self.stop()
        if self._idle.locked():
            self._idle.release()

    def _draw(self) -> None:
        """Draw, and compute when to draw next; a single slow drawing does not count."""
        self._show()
        if self._due == math.inf:
            return
        began = time.perf_counter()
        self.state.update(began, self._steps)
        self._try(self.draw)
        if self._due < math.inf:
            now = time.perf_counter()
            before, self._took = self._took, now - began
            self._due = now + max(self.interval, min(before, self._took) * _COST_LIMIT)

    def _show(self) -> None:
        if not self._is_open:
            self._is_open = True
            self._try(self.open)

    def _try(self, draw: Callable[[], None]) -> None:
        try:
            draw()
        except BaseException as error:
            self._due, self._is_open, self._gave_up = math.inf, False, True
            with suppress(Exception):
                self.give_up()
            if not isinstance(error, Exception):  # an interrupt; other errors must not end a run that may be hours old
                raise
            text = f"progress is no longer shown, the run goes on: {type(error).__name__}: {error}"
            with suppress(Exception):  # a filter makes it an error, or standard error cannot be written either
                warnings.warn(printable(text), RuntimeWarning, stacklevel=user_level())
