"""HTML of results for notebooks: values, and the first rows of predictions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from anyaccel.data.display import first_values, number, sample
from anyaccel.html import Markup, cut, element, faint, guarded, line, page, prose, row, table
from anyaccel.results.formatting import error_text, is_part
from anyaccel.results.targets import matching_columns

_MAX_COLUMNS, _PREDICTION_ROWS, _LAST_EPOCHS, _MAX_EVENTS = 12, 5, 5, 8

# Results are annotated as Any: their classes call these functions and stand above this module.


def train_html(results: Any) -> str:
    """Return the values of each epoch. Never raises."""

    def build() -> Markup:
        names, hidden = results.figures[:_MAX_COLUMNS], len(results.figures[_MAX_COLUMNS:])
        texts = [f"{len(results.epochs):,} epochs", duration(results.seconds), results.stop_reason]
        texts += [f"and {hidden:,} more figures"] if hidden else []

        def epoch_row(epoch: Any) -> Markup:
            values = [number(float(epoch.figures[name])) if name in epoch.figures else "" for name in names]
            return row([epoch.number, epoch.steps, f"{epoch.seconds:.3g}", *values])

        epochs = table(("epoch", "steps", "seconds", *names), results.epochs, epoch_row, last=_LAST_EPOCHS)
        return page("TrainResults", results.label, facts(texts), *outcome(results), epochs)

    return guarded(results, build)


def eval_html(results: Any) -> str:
    """Return losses, metrics, and the first predictions with the targets and tags of their rows. Never raises."""

    def build() -> Markup:
        losses = {"loss": results.loss, **{f"loss.{name}": value for name, value in results.losses.items()}}
        values = {**(losses if results.losses else {}), **results.metrics}
        figures = [(name, number(float(value))) for name, value in values.items()]
        predictions = None
        if results.predictions:  # no rows but these are read
            columns: dict[str, list[str]] = {}
            for name, array in list(results.predictions.items())[:_MAX_COLUMNS]:
                first = range(min(len(array), _PREDICTION_ROWS))
                columns[f"prediction.{name}"] = [sample(array[i : i + 1]) for i in first]
            lengths = {len(array) for array in results.predictions.values()}
            for title, rows, name in matching_columns(results.rows, lengths, columns, _MAX_COLUMNS):
                columns[title] = first_values(rows, name, _PREDICTION_ROWS)
            lines = [
                [values[i] if i < len(values) else "" for values in columns.values()] for i in range(_PREDICTION_ROWS)
            ]
            count = max(lengths)
            more = line(faint(f"the first of {count:,} rows")) if count > _PREDICTION_ROWS else None
            predictions = element("div", table(list(columns), [cells for cells in lines if any(cells)]), more)
        shown = table(("figure", "value"), figures) if figures else None
        facts_of_run = facts([duration(results.seconds)])
        return page("EvalResults", results.label, facts_of_run, *outcome(results), shown, predictions)

    return guarded(results, build)


def runs_html(experiment: Any) -> str:
    """The runs of an experiment, one row each. Never raises."""

    def run_row(numbered: tuple[int, Any]) -> Markup:
        position, results = numbered
        epochs, loss = getattr(results, "epochs", ()), getattr(results, "loss", math.nan)
        values = {"loss": loss} if isinstance(loss, float) and not math.isnan(loss) else {}
        values = epochs[-1].figures if epochs else {**values, **getattr(results, "metrics", {})}
        text = ", ".join(f"{name} {value:.4g}" for name, value in values.items() if not is_part(name))
        ending = error_text(results.error) or getattr(results, "stop_reason", "")
        kind = type(results).__name__.removesuffix("Results").lower()
        kind = f"{kind}, {len(epochs):,} epochs" if epochs else kind
        return row([position, results.label, kind, prose(text), prose(ending)])

    def build() -> Markup:
        said = facts([f"{len(experiment.history):,} runs over {experiment.graph.label}"])
        history = list(enumerate(experiment.history))
        runs = table(("run", "phase", "kind", "results", ""), history, run_row, last=_LAST_EPOCHS)
        return page("Experiment", experiment.label, said, runs if history else None)

    return guarded(experiment, build)


def duration(seconds: float) -> str:
    """Return a duration as text; `""` where it is not known."""
    return "" if math.isnan(seconds) else f"{seconds:.3g} s"


def facts(parts: Iterable[str]) -> Markup:
    """Return a line of short texts."""
    return line(faint(", ".join(filter(None, parts))))


def outcome(results: Any) -> Iterator[Markup]:
    """Yield the reason for the end of the run, and its events."""
    if results.error is not None:
        yield line("ended with ", element("code", prose(error_text(results.error))))
    first, hidden, last = cut([event for event in results.events if not event.verbose], _MAX_EVENTS, last=3)
    yield from (line(faint(str(event))) for event in first)
    if hidden:
        yield line(faint(f"and {hidden:,} more events"))
    yield from (line(faint(str(event))) for event in last)
