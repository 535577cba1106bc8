"""Progress on a terminal, by rich: the phase, the epoch, and what goes on now, in one live region."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from anyaccel.html import text
from anyaccel.phases.events import Event
from anyaccel.phases.progress.state import duration, share
from anyaccel.phases.progress.throttled import DrawnProgress

if TYPE_CHECKING:
    from anyaccel.phases.progress.region import Line, Piece, Region

_LONGEST, _EVENT = 40, 500  # characters of a label, as more would leave no room for the bars, and of an event
_STEPS = "  steps"
_TURNS, _PLAIN_TURNS = "⠋⠙⠸⠴⠦⠇", "-\\|/"


class RichProgress(DrawnProgress):
    """A line for the phase, one for the steps of its epoch, and one for what goes on beside steps, on standard error.

    Runs at the same time share the region; a run that has ended leaves a line. rich honours `NO_COLOR`, `TERM=dumb` and
    what is no terminal: there it shows the end alone, without colour.
    """

    def clear(self) -> None:
        """Forget the run before."""
        super().clear()
        self.lines: Sequence[Line] = ()
        self._region: Region | None = None
        self._drawn = 0

    def open(self) -> None:
        """Take a place in the region."""
        self._region = _region()
        self._region.join(self)

    def draw(self) -> None:
        """The lines as they are now."""
        assert self._region is not None
        self._drawn += 1
        self.lines = self._loop_lines() if self.standing.looping else [self._now_line(self._name())]
        self._region.refresh()

    def draw_event(self, event: Event) -> None:
        """A line above the region."""
        label = self._name()
        region = self._region or _region()
        region.write([[(f"{label} " if label else "", ""), (_printable(text(event, _EVENT)), _event_style(event))]])

    def close(self) -> None:
        """One line stays of a loop, and nothing of what had none."""
        if self._region is not None:
            self._region.leave(self, [self._last_line()] if self.standing.looping else [])
        self._region = None

    def give_up(self) -> None:
        """The terminal gets its cursor back, if it can be had."""
        region, self._region = self._region, None
        if region is not None:
            region.give_up(self)

    def _name(self) -> str:
        return _printable(text(self.standing.label, _LONGEST))

    def _loop_lines(self) -> list[Line]:
        at, label = self.standing, self._name()
        room = max(_cells(label), len(_STEPS))
        times = ", ".join(filter(None, [duration(at.elapsed), at.shown_left]))
        phase = [*self._phase(label, room, at.epoch), (f"  {times}", "progress.remaining")]
        inside = self._turn() if at.steps is None else self._bar(share(at.in_epoch, at.steps))
        rate = (f"  {at.pace:,.0f} steps/s", "progress.data.speed")
        steps = [(_STEPS.ljust(room + 1), ""), *inside, (f" {at.shown_steps}", "progress.download"), rate]
        return [*self._with_figures(phase), steps, *([self._now_line(" ")] if at.shown_now else [])]

    def _with_figures(self, phase: list[Piece]) -> list[Line]:
        """The figures behind the phase, or in a line of their own where they find no room."""
        assert self._region is not None
        figures = self._figures()
        fits = sum(_cells(shown) for shown, _ in (*phase, figures)) <= self._region.console.width
        return [[*phase, figures]] if fits else [phase, [figures]]

    def _last_line(self) -> Line:
        at, label = self.standing, self._name()
        rate = (f"  {at.rate:,.0f} steps/s  {duration(at.elapsed)}", "progress.data.speed")
        return [*self._phase(label, _cells(label), at.epochs_done), rate, self._figures()]

    def _phase(self, label: str, room: int, epoch: int) -> list[Piece]:
        at, pad = self.standing, " " * (room - _cells(label) + 1)
        told = (f" epoch {epoch}/{at.epochs}", "progress.percentage")
        return [(label + pad, "progress.description"), *self._bar(at.share), told]

    def _figures(self) -> Piece:
        figures = _printable(self.standing.shown_figures)
        return (f"  {figures}" if figures else "", "")

    def _now_line(self, before: str) -> Line:
        at = self.standing
        bar = [*self._bar(share(at.loaded, at.nbytes)), (" ", "")] if at.loading and not at.doing else []
        return [(f"{before} ", "progress.description"), *bar, (_printable(text(at.shown_now, 200)), "")]

    def _bar(self, part: float) -> list[Piece]:
        assert self._region is not None
        room = 30 if self._region.console.width >= 100 else 12
        full = int(part * room)
        one, rest = ("#", "-") if self._region.is_plain else ("━", "━")
        if not self._region.has_colours and rest == one:
            rest = " "
        return [(one * full, "bar.finished" if part >= 1.0 else "bar.complete"), (rest * (room - full), "bar.back")]

    def _turn(self) -> list[Piece]:
        """What turns where nobody knows how much there is to do."""
        assert self._region is not None
        turns = _PLAIN_TURNS if self._region.is_plain else _TURNS
        return [(turns[self._drawn % len(turns)], "progress.spinner")]


def _region() -> Region:
    from anyaccel.phases.progress.region import region  # rich is imported when it is needed

    return region()


def _cells(label: str) -> int:
    from rich.cells import cell_len

    return cell_len(label)


def _event_style(event: Event) -> str:
    return "logging.level.warning" if event.kind == "memory" else "dim"


def _printable(shown: str) -> str:
    """Text without what would steer a terminal."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in shown)
