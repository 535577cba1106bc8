"""Progress in a log: a line now and then, so that a long run shows life and a short one leaves no trace."""

from __future__ import annotations

import sys
from typing import ClassVar

from anyaccel.html import text
from anyaccel.phases.events import Event
from anyaccel.phases.progress.state import duration
from anyaccel.phases.progress.throttled import DrawnProgress

_LONGEST = 500  # characters of an event


class LineProgress(DrawnProgress):
    """A plain line at most every ten seconds, on standard error; one at the end only if there was any before.

    An event of memory is a line at once. What else was decided waits for the first line: a short run leaves no trace.
    """

    interval: ClassVar[float] = 10.0
    prompt: ClassVar[bool] = False

    def clear(self) -> None:
        """Forget the run before."""
        super().clear()
        self._written = False
        self._waiting: list[Event] = []

    def open(self) -> None:
        """Nothing yet."""
        self._written, self._waiting = False, []

    def draw(self) -> None:
        """A line."""
        at = self.standing
        steps = f"epoch {at.epoch}/{at.epochs}, step {at.shown_steps}" if at.looping else ""
        rest = self._rest(at.pace, at.shown_left) if at.looping else ()
        self._write(", ".join(filter(None, [steps, *rest, at.shown_now])))

    def draw_event(self, event: Event) -> None:
        """A line at once if memory was short, else before the first line of another kind."""
        self._waiting.append(event)
        if event.kind == "memory" or self._written:
            self._tell()

    def close(self) -> None:
        """The last line, if there was one before."""
        at = self.standing
        if self._written and at.looping:
            rest = self._rest(at.rate, f"{duration(at.elapsed)} in all")
            self._write(", ".join(filter(None, [f"{at.epochs_done}/{at.epochs} epochs", *rest])))

    def _rest(self, rate: float, time: str) -> tuple[str, str, str]:
        return f"{rate:,.0f} steps/s", self.standing.shown_figures.replace("  ", ", "), time

    def _write(self, line: str) -> None:
        self._written = True
        self._tell()
        self._print(line)

    def _tell(self) -> None:
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            self._print(text(event, _LONGEST))

    def _print(self, line: str) -> None:
        whole = f"{self.standing.label}: {line}" if self.standing.label else line
        plain = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in whole)
        if sys.stderr is not None:
            print(plain, file=sys.stderr, flush=True)
