"""Progress in a notebook: one HTML output, updated in place."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from anyaccel.html import Markup, element, faint, joined, line, page, table
from anyaccel.phases.progress.throttled import MAX_EVENTS, ProgressState, ThrottledProgress, duration, share
from anyaccel.results.events import Event


def in_notebook() -> bool:
    """Whether a Jupyter kernel runs this process. Imports nothing."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    return getattr(shell, "kernel", None) is not None


class HTMLProgress(ThrottledProgress):
    """Bars for the phase and the epoch, activity, losses and metrics in one output, updated up to 5 times a second."""

    def clear(self) -> None:
        """Forget the previous run."""
        super().clear()
        self._handle: Any = None

    def draw(self) -> None:
        """Update the output."""
        self._display(ProgressOutput(state_html(self.state, self.events), self._line()))

    def draw_event(self, event: Event) -> None:
        """Update the output, which lists the events, if there is one."""
        if self._handle is not None:
            self.draw()

    def close(self) -> None:
        """Update the output for the last time."""
        self._display(ProgressOutput(state_html(self.state, self.events, ended=True), self._line()))
        self._handle = None

    def _line(self) -> str:
        state = self.state
        if not state.looping:
            return f"{state.label}: {state.activity}" if state.label else state.activity
        epochs = f"{state.epochs_done}/{state.epochs} epochs"
        return f"{state.label}: {epochs}, {state.rate:,.0f} steps/s  {state.shown_figures}"

    def _display(self, output: ProgressOutput) -> None:
        if self._handle is None:
            self._handle = import_module("IPython.display").display(output, display_id=True)
        else:
            self._handle.update(output)


class ProgressOutput:
    """HTML for notebooks, and one line of text for other front ends."""

    def __init__(self, markup: Markup, line: str) -> None:
        self._markup = markup
        self._line = line

    def __repr__(self) -> str:
        return self._line

    def _repr_html_(self) -> str:
        return str(self._markup)


def state_html(state: ProgressState, events: Sequence[Event] = (), *, ended: bool = False) -> Markup:
    """Bars, rate, losses, metrics and events of a run."""
    elapsed = duration(state.elapsed)
    parts: list[object]
    if state.looping:
        number = state.epochs_done if ended else state.epoch
        time = f"{elapsed} in all" if ended else ", ".join(filter(None, [elapsed, state.shown_left]))
        rate = f"{state.rate if ended else state.recent_rate:,.0f} steps/s"
        done = f"{state.done:,} steps" if state.total is None else f"{state.done:,} of {state.total:,} steps"
        inside = f"{state.in_epoch:,} of this epoch" if state.total is None and not ended else ""
        figures = {name: f"{value:.4g}" for name, value in state.figures.items() if "." not in name}
        parts = [
            faint(f"epoch {number:,} of {state.epochs:,}"),
            bar("epochs", state.share),
            None if ended or state.steps is None else bar("steps of this epoch", share(state.in_epoch, state.steps)),
            line(faint(", ".join(filter(None, [done, inside, rate, time])))),
            line(faint(state.activity)) if state.activity and not ended else None,
            table(list(figures), [list(figures.values())]) if figures else None,
        ]
    else:
        is_loading = state.loading and not state.doing and not ended
        loading = bar("bytes", share(state.loaded, state.nbytes)) if is_loading else None
        parts = ["", loading, line(faint(f"took {elapsed}" if ended else state.activity))]
    hidden = len(events) - MAX_EVENTS
    lines = [*events[:MAX_EVENTS], *([f"and {hidden:,} more events: see the results"] if hidden > 0 else [])]
    return page(state.label or "loading", *parts, *(line(faint(event)) for event in lines))


def bar(name: str, part: float) -> Markup:
    """Return a progress bar in the color of the text, readable by screen readers.

    Args:
        name: Accessible name of the bar.
        part: Completed fraction, 0 to 1.
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
