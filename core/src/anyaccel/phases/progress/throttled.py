"""ThrottledProgress: keeps the state of a run and limits how often and how long it is drawn."""

from __future__ import annotations

import copy
import math
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import ClassVar

from anyaccel.phases.executor.cross_segment import Losses
from anyaccel.phases.loading.loader import LoadedRows
from anyaccel.phases.loop_extension import Call, LoopExtension
from anyaccel.phases.progress.base import Progress
from anyaccel.phases.run import Run
from anyaccel.printable import printable
from anyaccel.results.events import Event
from anyaccel.results.records import Epoch
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
    """Store the state of a run, and draw it at most once in `interval` seconds; other calls only count.

    Slow displays are drawn less often, to take at most 0.5 % of the time. If drawing fails (the terminal was
    closed, the disk is full), the run continues with a warning, and nothing more is drawn in this phase. If an object
    is in use by one run, a second run gets a copy of it.
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
        """Return this object, or a copy of it if another run uses it."""
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
        """Record the data to load; draw immediately if they are large."""
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
            event = replace(event, message="see the events of the results for this and all later events")
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
            text = f"progress is no longer shown; the run continues: {type(error).__name__}: {error}"
            with suppress(Exception):  # a filter makes it an error, or standard error cannot be written either
                warnings.warn(printable(text), RuntimeWarning, stacklevel=user_level())


# -- Progress reports: what a training loop tells a Progress -----------------------------------------------------------


class ProgressReports(LoopExtension):
    """Report the progress of a training.

    Args:
        run: The training.
        progress: Progress that receives the reports.
        rows: Rows of the training.
        history, step: Epochs of an earlier run, and steps that it has done of the next one.
    """

    def __init__(
        self, run: Run, progress: Progress, rows: LoadedRows, history: Sequence[Epoch] = (), step: int = 0
    ) -> None:
        self._run, self._progress, self._rows = run, progress, rows
        self._history, self._step = history, step

    def run_begins(self) -> None:
        """Report the steps of an earlier run, too."""
        self._progress.start(self._run.phase.label, self._run.phase.epochs, self._rows.loader.n_steps)
        for epoch in self._history:
            self._progress.advance(epoch.steps)
            self._progress.epoch(epoch.figures)
        if self._step:
            self._progress.advance(self._step)

    def call_done(self, call: Call, first: int, step_losses: list[Losses]) -> None:
        if not call.n_counted:
            self._progress.advance(call.n_steps)

    def went_back(self, n_steps: int) -> None:
        self._progress.advance(-n_steps)

    def epoch_ends(self) -> None:
        self._progress.epoch(self._run.history[-1].figures)

    def ended(self) -> None:
        self._progress.stop()


# -- ProgressState: how far a run is, as numbers and as text -----------------------------------------------------------


WINDOW = 30.0
"""Seconds over which the recent rate is measured."""


@dataclass(slots=True)
class ProgressState:
    """The progress of a run.

    Attributes:
        label, epochs: Label and number of epochs of the phase.
        steps: Steps per epoch, None if unknown.
        began, now: Times in seconds.
        done: Steps done in all; may decrease when steps are rolled back.
        epochs_done: Completed epochs.
        figures: Losses and metrics of the last epoch.
        before: `done` at the start of the current epoch.
        looping: Whether the training loop has started.
        doing: Activity other than training steps, such as `"compiling"`.
        loading: Name of the data being loaded; `loaded` of `nbytes` bytes are.
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
    """Return `done / total` within 0 and 1; 1 if `total` is 0."""
    return min(max(done / total, 0.0), 1.0) if total else 1.0


def amount(done: int, total: int) -> str:
    """Return two numbers of bytes in the unit that suits the total: `1.2/3.4 GiB`."""
    power = min(max((total.bit_length() - 1) // 10, 0), 4)
    unit = ("B", "KiB", "MiB", "GiB", "TiB")[power]
    digits = 1 if power else 0
    return f"{done / 1024**power:.{digits}f}/{total / 1024**power:.{digits}f} {unit}"


def duration(seconds: float) -> str:
    """Return a duration as text: `42 s`, `3:05`, `2:03:05`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
