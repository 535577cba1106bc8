"""Progress in a log: a line now and then, so that a long run shows life and a short one leaves no trace."""

from __future__ import annotations

import sys
from typing import ClassVar

from anyaccel.phases.progress.drawn import DrawnProgress


class LineProgress(DrawnProgress):
    """A plain line at most every ten seconds, on standard error; one at the end only if there was any before."""

    interval: ClassVar[float] = 10.0

    def __init__(self) -> None:
        super().__init__()
        self._written = False

    def draw_loading(self, text: str) -> None:
        """A line that says so."""
        self._write(text)

    def open(self) -> None:
        """Nothing yet."""
        self._written = False

    def draw(self) -> None:
        """A line."""
        at = self.standing
        where = f"epoch {at.epoch}/{at.epochs}, step {at.in_epoch:,}/{at.steps:,}"
        self._write(", ".join(filter(None, [f"{at.label}: {where}", *self._rest(at.shown_left)])))

    def close(self) -> None:
        """The last line, if there was one before."""
        at = self.standing
        if self._written:
            self._write(", ".join(filter(None, [f"{at.label}: {at.epochs_done}/{at.epochs} epochs", *self._rest("")])))

    def _rest(self, left: str) -> tuple[str, str, str]:
        at = self.standing
        return f"{at.rate:,.0f} steps/s", at.shown_figures.replace("  ", ", "), left

    def _write(self, line: str) -> None:
        self._written = True
        plain = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in line)
        if sys.stderr is not None:
            print(plain, file=sys.stderr, flush=True)
