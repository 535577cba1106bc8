"""Progress bars on a terminal, by `rich.progress`. rich is imported when something is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from anyaccel.html import text
from anyaccel.phases.progress.throttled import ThrottledProgress, duration
from anyaccel.results.events import Event

if TYPE_CHECKING:
    from anyaccel.phases.progress.rich_display import SharedDisplay

_MAX_LABEL, _MAX_EVENT, _MAX_ACTIVITY = 40, 500, 200  # characters


class RichProgress(ThrottledProgress):
    """A bar for the phase and one for the steps of its epoch, on standard error; one line stays when a run ends.

    Concurrent runs share one live display. rich respects `NO_COLOR`, `TERM=dumb` and streams that are not a terminal.
    """

    def clear(self) -> None:
        """Forget the previous run."""
        super().clear()
        self._display: SharedDisplay | None = None
        self._bars: tuple[Any, Any] | None = None

    def open(self) -> None:
        """Add the bars of this run to the display."""
        self._display = _shared_display()
        self._bars = self._display.add_bars()

    def draw(self) -> None:
        """Update the bars."""
        assert self._display is not None and self._bars is not None
        state, (phase, steps) = self.state, self._bars
        update = self._display.bars.update
        if state.looping:
            times = ", ".join(filter(None, [duration(state.elapsed), state.shown_left]))
            line = "  ".join(
                filter(None, [f"epoch {state.epoch}/{state.epochs}", times, _printable(state.shown_figures)])
            )
            update(phase, description=self._label(), completed=state.share, total=1.0, line=line, visible=True)
            done, total = state.in_epoch, state.steps
            activity = _printable(text(state.activity, _MAX_ACTIVITY))
            line = "  ".join(filter(None, [state.shown_steps, f"{state.recent_rate:,.0f} steps/s", activity]))
            update(steps, description="  steps", completed=done, total=total, line=line, visible=True)
        else:
            total = state.nbytes if state.loading else None
            line = _printable(text(state.activity, _MAX_ACTIVITY))
            update(phase, description=self._label(), completed=state.loaded, total=total, line=line, visible=True)
        self._display.bars.refresh()

    def draw_event(self, event: Event) -> None:
        """Print a line above the bars."""
        style = "logging.level.warning" if event.kind == "memory" else "dim"
        line = " ".join(filter(None, [self._label(), _printable(text(event, _MAX_EVENT))]))
        (self._display or _shared_display()).print(line, style)

    def close(self) -> None:
        """Remove the bars; of a training loop, one line stays."""
        if self._display is not None and self._bars is not None:
            state, last = self.state, ""
            if state.looping:
                epochs, rate = f"epoch {state.epochs_done}/{state.epochs}", f"{state.rate:,.0f} steps/s"
                parts = (self._label(), epochs, rate, duration(state.elapsed), _printable(state.shown_figures))
                last = "  ".join(parts).rstrip()
            self._display.remove_bars(self._bars, last)
        self._display = self._bars = None

    def give_up(self) -> None:
        """Remove the bars after drawing has failed, and give the terminal its cursor back."""
        display, bars = self._display, self._bars
        self._display = self._bars = None
        if display is not None:
            display.abandon(bars)

    def _label(self) -> str:
        return _printable(text(self.state.label, _MAX_LABEL))


def _shared_display() -> SharedDisplay:
    from anyaccel.phases.progress.rich_display import shared_display

    return shared_display()


def _printable(shown: str) -> str:
    """Return text without terminal control characters."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in shown)
