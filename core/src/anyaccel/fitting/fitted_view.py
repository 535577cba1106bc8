"""The view of a fitted model in terminals and notebooks: figures, curves, columns, devices, next steps."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from anyaccel.graph.plan_entries import where_text
from anyaccel.html import Markup, element, faint, guarded, line, listing, page, row, table
from anyaccel.printable import printable
from anyaccel.results import TrainResults, compare
from anyaccel.results.formatting import is_part, short, text_table
from anyaccel.results.notebook import duration, facts, outcome

_HEIGHTS = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
_WIDTH, _MAX_FIGURES = 24, 12
NEXT_STEPS = (
    ("print(fitted.code())", "the graph and the phase behind it"),
    ("fitted.save('model')", "a folder, for anyaccel.load('model')"),
    ("fitted.plot()", "the losses over the epochs"),
)


class Figure(NamedTuple):
    """A value of a training: in its last epoch, at its best if that is known, and over the epochs."""

    name: str
    last: float
    best: float | None
    best_epoch: int | None
    values: np.ndarray


def figures_of(results: TrainResults) -> list[Figure]:
    """Return the values of a training; parts of a total loss are included if there is room."""
    (facts_of_run,) = compare(results).rows
    names = [name for name in results.figures if not is_part(name)] or list(results.figures)
    figures = []
    for name in names[:_MAX_FIGURES]:
        values, best = results.figure(name), facts_of_run.get(f"best {name}")
        places = np.flatnonzero(np.full(len(values), False) if best is None else values == best)
        epoch = results.epochs[int(places[0])].number if len(places) else None
        figures.append(Figure(name, float(values[-1]), best if len(places) else None, epoch, values))
    return figures


def next_steps(columns: Mapping[str, Mapping[str, Any]], is_loaded: bool) -> list[tuple[str, str]]:
    """Return lines of code for next steps, each with its description, for a model called `fitted`.

    Args:
        columns: Columns of new data by name, with their `role`.
        is_loaded: Whether the model was loaded, and has no rows.
    """
    needed = [name for name, column in columns.items() if column["role"] != "target"]
    rows = "rows" if is_loaded else "'all'"
    first = (f"fitted.predict({rows})", f"{'rows' if is_loaded else 'or new rows'} with {listing(needed, 4)}")
    steps = [step for step in NEXT_STEPS if not is_loaded or "code" not in step[0]]
    return [first, *steps]


def columns_of(columns: Mapping[str, Mapping[str, Any]], is_treated: bool) -> str:
    """Return the columns of a table that the model predicts from, and those that it predicts."""
    features = listing([name for name, column in columns.items() if column["role"] != "target"], 4)
    targets = listing([name for name, column in columns.items() if column["role"] == "target"], 4)
    return f"{features}{f' -> {targets}' if targets else ''}{'; treated, see fitted.columns' if is_treated else ''}"


def text_of(results: TrainResults, facts_: Sequence[str], made_of: str, steps: Sequence[tuple[str, str]]) -> str:
    """Return the view for a terminal, some lines of text."""
    head = f"FittedModel: {', '.join(filter(None, facts_))}"
    figures = figures_of(results) if results.epochs else []
    cells = [
        [it.name, short(it.last), short(it.best), "" if it.best_epoch is None else str(it.best_epoch), _sparkline(it)]
        for it in figures
    ]
    lines = [head]
    if cells:
        lines += ["", text_table(("figure", "last", "best", "in epoch", "curve"), cells)]
    width = max(len(code) for code, _ in steps)
    lines += ["", f"columns: {made_of}", "next:", *(f"  {code.ljust(width)}  # {what}" for code, what in steps)]
    return printable("\n".join(lines))


def _sparkline(figure: Figure) -> str:
    """Return the values as a row of bars; `""` if the terminal cannot write them."""
    values = figure.values[np.isfinite(figure.values)]
    if len(values) < 2:
        return ""
    if len(values) > _WIDTH:
        values = np.array([part.mean() for part in np.array_split(values, _WIDTH)])
    low, span = values.min(), np.ptp(values)
    levels = np.zeros(len(values), int) if span == 0 else ((values - low) / span * (len(_HEIGHTS) - 1)).round()
    bars = "".join(_HEIGHTS[int(level)] for level in levels)
    try:
        bars.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return ""
    return bars


def html_of(
    fitted: Any, results: TrainResults, facts_: Sequence[str], made_of: Any, steps: Sequence[tuple[str, str]]
) -> str:
    """Return the view for a notebook. Never raises."""

    def build() -> Markup:
        def figure_row(it: Figure) -> Markup:
            epoch = "" if it.best_epoch is None else it.best_epoch
            return row([it.name, short(it.last), short(it.best), epoch, _svg(it)])

        figures = figures_of(results) if results.epochs else []
        shown = table(("figure", "last", "best", "in epoch", "curve"), figures, figure_row) if figures else None
        code = "\n".join(f"{code}  # {what}" for code, what in steps)
        lines: list[Any] = []  # each escaped, with breaks between
        for text in code.split("\n"):
            lines += [text, Markup("\n")]
        pre = element("pre", Markup(element("code", *lines[:-1])), style="margin:6px 0;background:transparent")
        columns = made_of if isinstance(made_of, Markup) else line("columns: ", made_of)
        return page("FittedModel", "", facts(list(facts_)), *outcome(results), shown, columns, line(faint("next")), pre)

    return guarded(fitted, build)


def _svg(figure: Figure) -> Markup:
    """Return the values as a small curve; `""` for fewer than two."""
    is_finite = np.isfinite(figure.values)
    values, places = figure.values[is_finite], np.flatnonzero(is_finite)
    if len(values) < 2:
        return Markup("")
    x = 2 + 156 * (places - places[0]) / (places[-1] - places[0])
    span = np.ptp(values) or 1.0
    y = 30 - 28 * (values - values.min()) / span
    points = " ".join(f"{left:.1f},{top:.1f}" for left, top in zip(x, y, strict=True))
    drawn = element("polyline", points=Markup(points), fill="none", stroke="currentColor", stroke_width="1.5")
    label = f"{figure.name}: {short(float(values[0]))} to {short(float(values[-1]))}"
    return element("svg", drawn, width="160", height="32", viewBox="0 0 160 32", role="img", aria_label=label)


def facts_of(results: TrainResults) -> list[str]:
    """Return how long the training took, where it ran, and why it ended."""
    epochs = f"{len(results.epochs):,} epoch{'' if len(results.epochs) == 1 else 's'}"
    epochs += "" if results.epochs else ", not trained"
    where = () if results.plan is None else map(where_text, results.plan.assignments)
    return [epochs, *where, duration(results.seconds), results.stop_reason]
