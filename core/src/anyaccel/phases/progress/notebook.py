"""Progress in a notebook: one output of HTML that is drawn anew in its place."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from anyaccel.markup import Markup, element, faint, joined, page, table
from anyaccel.phases.progress.drawn import DrawnProgress, Standing, duration


def in_notebook() -> bool:
    """Whether a kernel of Jupyter runs this; asks only if IPython is there already, and imports nothing."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    return getattr(shell, "kernel", None) is not None


class HTMLProgress(DrawnProgress):
    """A bar for the phase, one for the epoch, and the figures; drawn at most ten times a second, in one output."""

    def __init__(self) -> None:
        super().__init__()
        self._handle: Any = None
        self._loaded = ""

    def draw_loading(self, text: str) -> None:
        """The output to come, with this line alone."""
        self._loaded = text
        self._show(Shown(page("loading", "", element("div", faint(text))), text))

    def open(self) -> None:
        """The output, or what is in its place since something is loaded."""
        self.draw()

    def draw(self) -> None:
        """The output anew."""
        self._show(Shown(standing_html(self.standing, self._loaded), self._line()))

    def close(self) -> None:
        """The output for the last time; the next phase has one of its own."""
        self._show(Shown(standing_html(self.standing, self._loaded, ended=True), self._line()))
        self._handle, self._loaded = None, ""

    def _line(self) -> str:
        at = self.standing
        return f"{at.label}: {at.epochs_done}/{at.epochs} epochs, {at.rate:,.0f} steps/s  {at.shown_figures}"

    def _show(self, shown: Shown) -> None:
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


def standing_html(at: Standing, loaded: str = "", *, ended: bool = False) -> Markup:
    """Where a phase stands: its bars, rate and figures."""
    number = at.epochs_done if ended else at.epoch
    time = f"{duration(at.now - at.began)} in all" if ended else at.shown_left
    figures = {name: f"{value:.4g}" for name, value in at.figures.items() if "." not in name}
    return page(
        at.label,
        faint(f"epoch {number:,} of {at.epochs:,}"),
        element("div", faint(loaded)) if loaded else None,
        bar("epochs", at.done, at.total),
        None if ended else bar("steps of this epoch", at.in_epoch, at.steps),
        element("div", faint(f"{at.done:,} of {at.total:,} steps, {at.rate:,.0f} steps/s, {time}".removesuffix(", "))),
        table(list(figures), [list(figures.values())]) if figures else None,
    )


def bar(name: str, done: int, total: int) -> Markup:
    """A bar in the colour of the page's text, and the same in words for those who do not see it."""
    share = min(done / total, 1.0) if total else 1.0
    full = element("div", style=f"width:{share:.1%};height:100%;background:currentColor;opacity:.7;border-radius:3px")
    track = "width:min(100%,32em);height:6px;margin:4px 0;background:rgba(128,128,128,.3);border-radius:3px"
    return element(
        "div",
        joined([full]),
        style=track,
        role="progressbar",
        aria_label=name,
        aria_valuemin=0,
        aria_valuemax=100,
        aria_valuenow=round(100 * share),
    )
