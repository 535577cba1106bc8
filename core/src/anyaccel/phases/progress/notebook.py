"""Progress in a notebook: one output of HTML that is drawn anew in its place."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from anyaccel.display import line, page, table
from anyaccel.html import Markup, element, faint, joined
from anyaccel.phases.events import Event
from anyaccel.phases.progress.state import Standing, duration, share
from anyaccel.phases.progress.throttled import MOST_EVENTS, DrawnProgress


def in_notebook() -> bool:
    """Whether a kernel of Jupyter runs this; asks only if IPython is there already, and imports nothing."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    return getattr(shell, "kernel", None) is not None


class HTMLProgress(DrawnProgress):
    """A bar for the phase, one for the epoch, what goes on now, and the figures, in one output.

    It is drawn at most five times a second.
    """

    def clear(self) -> None:
        """Forget the run before."""
        super().clear()
        self._handle: Any = None

    def draw(self) -> None:
        """The output anew."""
        self._show_it(Shown(standing_html(self.standing, self.events), self._line()))

    def draw_event(self, event: Event) -> None:
        """A line of the output, as soon as it is drawn."""
        if self._handle is not None:
            self.draw()

    def close(self) -> None:
        """The output for the last time; the next phase has one of its own."""
        self._show_it(Shown(standing_html(self.standing, self.events, ended=True), self._line()))
        self._handle = None

    def _line(self) -> str:
        at = self.standing
        if not at.looping:
            return f"{at.label}: {at.shown_now}" if at.label else at.shown_now
        return f"{at.label}: {at.epochs_done}/{at.epochs} epochs, {at.rate:,.0f} steps/s  {at.shown_figures}"

    def _show_it(self, shown: Shown) -> None:
        if self._handle is None:
            display = import_module("IPython.display").display
            self._handle = display(shown, display_id=True)
        else:
            self._handle.update(shown)


class Shown:
    """HTML for those who show it, and a line of text for the others."""

    def __init__(self, markup: Markup, line: str) -> None:
        self._markup = markup
        self._line = line

    def __repr__(self) -> str:
        return self._line

    def _repr_html_(self) -> str:
        return str(self._markup)


def standing_html(at: Standing, events: Sequence[Event] = (), *, ended: bool = False) -> Markup:
    """Where a phase stands: its bars, rate, figures and events."""
    parts = _loop(at, ended=ended) if at.looping else _before(at, ended=ended)
    hidden = len(events) - MOST_EVENTS
    said = [*events[:MOST_EVENTS], *([f"and {hidden:,} more events, which the results have"] if hidden > 0 else [])]
    return page(at.label or "loading", *parts, *(line(faint(one)) for one in said))


def _before(at: Standing, *, ended: bool) -> list[object]:
    loading = bar("bytes", share(at.loaded, at.nbytes)) if at.loading and not at.doing and not ended else None
    return ["", loading, line(faint(f"took {duration(at.elapsed)}" if ended else at.shown_now))]


def _loop(at: Standing, *, ended: bool) -> list[object]:
    number = at.epochs_done if ended else at.epoch
    time = f"{duration(at.elapsed)} in all" if ended else ", ".join(filter(None, [duration(at.elapsed), at.shown_left]))
    rate = f"{at.rate if ended else at.pace:,.0f} steps/s"
    done = f"{at.done:,} steps" if at.total is None else f"{at.done:,} of {at.total:,} steps"
    inside = f"{at.in_epoch:,} of this epoch" if at.total is None and not ended else ""
    figures = {name: f"{value:.4g}" for name, value in at.figures.items() if "." not in name}
    return [
        faint(f"epoch {number:,} of {at.epochs:,}"),
        bar("epochs", at.share),
        None if ended or at.steps is None else bar("steps of this epoch", share(at.in_epoch, at.steps)),
        line(faint(", ".join(filter(None, [done, inside, rate, time])))),
        line(faint(at.shown_now)) if at.shown_now and not ended else None,
        table(list(figures), [list(figures.values())]) if figures else None,
    ]


def bar(name: str, part: float) -> Markup:
    """A bar in the colour of the page's text, and the same in words for those who do not see it.

    Args:
        name: of what.
        part: how much of it is done, 0 to 1.
    """
    full = element("div", style=f"width:{part:.1%};height:100%;background:currentColor;opacity:.7;border-radius:3px")
    track = "width:min(100%,32em);height:6px;margin:4px 0;background:rgba(128,128,128,.3);border-radius:3px"
    return element(
        "div",
        joined([full]),
        style=track,
        role="progressbar",
        aria_label=name,
        aria_valuemin=0,
        aria_valuemax=100,
        aria_valuenow=round(100 * part),
    )
