"""Progress of a phase on a terminal: one live line by rich, and nothing where nobody looks."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

from anyaccel.errors import PhaseError


class Progress:
    """Hears of the progress of a run; this one says nothing. Derive from it to tell it elsewhere."""

    def start(self, label: str, epochs: int, steps: int) -> None:
        """A phase of so many epochs, of so many steps each, begins its loop."""

    def advance(self, steps: int) -> None:
        """So many steps are done (on some devices: asked for)."""

    def epoch(self, figures: Mapping[str, float]) -> None:
        """An epoch is done, with these figures."""

    def stop(self) -> None:
        """The loop has ended, well or not."""


class RichProgress(Progress):
    """A bar with epoch, steps per second and figures; drawn at most ten times a second, on standard error."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._task: Any = None
        self._epochs, self._steps, self._done, self._began = 0, 0, 0, 0.0

    def start(self, label: str, epochs: int, steps: int) -> None:
        """Show the bar."""
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = (
            "[progress.description]{task.description}",
            "{task.fields[epoch]}",
            "{task.fields[rate]}",
            "{task.fields[figures]}",
        )
        texts = [TextColumn(column) for column in columns]
        self._bar = Bar(texts[0], BarColumn(), *texts[1:], TimeRemainingColumn(), console=Console(stderr=True))
        self._epochs, self._steps, self._done, self._began = epochs, steps, 0, time.perf_counter()
        self._task = self._bar.add_task(
            _text(label), total=epochs * steps, epoch=f"epoch 0/{epochs}", rate="", figures=""
        )
        self._bar.start()

    def advance(self, steps: int) -> None:
        """Move the bar."""
        self._done += steps
        rate = self._done / max(time.perf_counter() - self._began, 1e-9)
        self._bar.update(self._task, completed=self._done, rate=f"{rate:,.0f} steps/s")

    def epoch(self, figures: Mapping[str, float]) -> None:
        """Show the figures."""
        shown = _text("  ".join(f"{name} {value:.4g}" for name, value in figures.items() if "." not in name))
        number = -(-self._done // max(self._steps, 1))
        self._bar.update(self._task, epoch=f"epoch {number}/{self._epochs}", figures=shown)

    def stop(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._bar.stop()


def _text(text: str) -> str:
    """Names that users gave, as they stand: neither markup nor commands to the terminal."""
    from rich.markup import escape

    return escape("".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text))


def progress_for(choice: Any) -> Progress:
    """A Progress by choice: `"auto"` (a bar if standard error is a terminal), `"rich"`, `"none"`, or an object.

    Raises:
        PhaseError: none of these.
    """
    if isinstance(choice, Progress):
        return choice
    if choice == "auto":
        return RichProgress() if sys.stderr is not None and sys.stderr.isatty() else Progress()
    if choice in ("rich", "none"):
        return RichProgress() if choice == "rich" else Progress()
    raise PhaseError(f"progress={choice!r}", there="'auto', 'rich', 'none', or a Progress object")
