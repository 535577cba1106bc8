"""Progress in a log: a plain line every ten seconds; short runs write nothing."""

from __future__ import annotations

import sys
from typing import ClassVar

from anyaccel.html import text
from anyaccel.phases.progress.throttled import ThrottledProgress, duration
from anyaccel.results.events import Event

_MAX_EVENT = 500  # characters


class LineProgress(ThrottledProgress):
    """Plain lines on standard error, at most one every ten seconds, and a last one if there was any before.

    Events of kind `memory` are written at once; other events wait for the first line, so that short runs write nothing.
    """

    interval: ClassVar[float] = 10.0
    prompt: ClassVar[bool] = False

    def clear(self) -> None:
        """Forget the previous run."""
        super().clear()
        self._written = False
        self._waiting: list[Event] = []

    def open(self) -> None:
        """Nothing is written yet."""
        self._written, self._waiting = False, []

    def draw(self) -> None:
        """Write a line."""
        state = self.state
        steps = f"epoch {state.epoch}/{state.epochs}, step {state.shown_steps}" if state.looping else ""
        details = self._details(state.recent_rate, state.shown_left) if state.looping else ()
        self._write(", ".join(filter(None, [steps, *details, state.activity])))

    def draw_event(self, event: Event) -> None:
        """Write it at once if memory ran out, otherwise before the next line."""
        self._waiting.append(event)
        if event.kind == "memory" or self._written:
            self._flush_events()

    def close(self) -> None:
        """Write the last line if there was one before."""
        state = self.state
        if self._written and state.looping:
            details = self._details(state.rate, f"{duration(state.elapsed)} in all")
            self._write(", ".join(filter(None, [f"{state.epochs_done}/{state.epochs} epochs", *details])))

    def _details(self, rate: float, time: str) -> tuple[str, str, str]:
        return f"{rate:,.0f} steps/s", self.state.shown_figures.replace("  ", ", "), time

    def _write(self, line: str) -> None:
        self._written = True
        self._flush_events()
        self._print(line)

    def _flush_events(self) -> None:
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            self._print(text(event, _MAX_EVENT))

    def _print(self, line: str) -> None:
        whole = f"{self.state.label}: {line}" if self.state.label else line
        plain = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in whole)
        if sys.stderr is not None:
            print(plain, file=sys.stderr, flush=True)
