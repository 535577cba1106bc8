"""Progress on a terminal, by rich: one live region with a bar for the phase and one for the epoch."""

from __future__ import annotations

from typing import Any

from anyaccel.markup import text
from anyaccel.phases.progress.drawn import DrawnProgress

_LONGEST = 40  # characters of a label: more would leave no room for the bars


class RichProgress(DrawnProgress):
    """A bar of the epochs and one of the steps of an epoch, with rate and figures, on standard error.

    rich honours `NO_COLOR`, `TERM=dumb` and what is no terminal: there it shows the end alone, without colour.
    """

    def __init__(self) -> None:
        super().__init__()
        self._bar: Any = None
        self._phase: Any = None
        self._epoch: Any = None

    def draw_loading(self, text: str) -> None:
        """A line above the bars to come."""
        from rich.console import Console

        Console(stderr=True).print(_text(text), highlight=False)

    def open(self) -> None:
        """Show the bars."""
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        label, rate, told = (TextColumn(f"{{task.{name}}}") for name in ("description", "fields[rate]", "fields[told]"))
        self._bar = Bar(label, BarColumn(), rate, told, console=Console(stderr=True), auto_refresh=False)
        self._phase = self._bar.add_task("", total=self.standing.total, rate="", told="")
        self._epoch = self._bar.add_task("", total=self.standing.steps, rate="", told="")
        self._bar.start()
        self.draw()

    def draw(self) -> None:
        """Move the bars."""
        at = self.standing
        self._bar.update(
            self._phase,
            description=_text(text(at.label, _LONGEST)),
            completed=at.done,
            rate=f"epoch {at.epoch}/{at.epochs}",
            told=_text(at.shown_figures),
        )
        self._bar.update(
            self._epoch,
            description="  steps",
            completed=at.in_epoch,
            rate=f"{at.in_epoch:,}/{at.steps:,}",
            told=f"{at.rate:,.0f} steps/s  {at.shown_left}",
        )
        self._bar.refresh()

    def close(self) -> None:
        """Leave the bar of the phase as it is, and take that of the epoch away."""
        self.draw()
        at = self.standing
        self._bar.update(self._epoch, visible=False)
        self._bar.update(self._phase, rate=f"epoch {at.epochs_done}/{at.epochs}  {at.rate:,.0f} steps/s")
        self._bar.stop()

    def give_up(self) -> None:
        """The terminal gets its cursor back, if it can be had."""
        if self._bar is not None:
            self._bar.stop()


def _text(text: str) -> str:
    """Names that users gave, as they stand: neither markup nor commands to the terminal."""
    from rich.markup import escape

    return escape(_printable(text))


def _printable(text: str) -> str:
    """Text without what would steer a terminal."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
