"""Results as a notebook shows them: figures, and the first rows of predictions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from anyaccel.data.display import first_values, number, sample
from anyaccel.display import cut, guarded, line, page, prose, row, table
from anyaccel.html import Markup, element, faint
from anyaccel.phases.events import Event
from anyaccel.results.formatting import is_part, told
from anyaccel.results.prediction_columns import belonging

if TYPE_CHECKING:
    from anyaccel.results.evaluation import EvalResults
    from anyaccel.results.fit import FitResults
    from anyaccel.results.train import TrainResults

_FIGURES, _PREDICTED, _LAST = 12, 5, 5  # columns of figures; rows of predictions; epochs shown of the end
_EVENTS = 8


def train_html(results: TrainResults) -> str:
    """The figures of each epoch. Never raises."""
    return guarded(results, lambda: _train(results))


def _train(results: TrainResults) -> Markup:
    names, hidden = results.figures[:_FIGURES], len(results.figures[_FIGURES:])
    told_more = f"and {hidden:,} more figures" if hidden else ""
    said = [f"{len(results.epochs):,} epochs", _took(results.seconds), results.stop_reason, told_more]

    def epoch(one: Any) -> Markup:
        values = [number(float(one.figures[name])) if name in one.figures else "" for name in names]
        return row([one.number, one.steps, f"{one.seconds:.3g}", *values])

    figures = table(("epoch", "steps", "seconds", *names), results.epochs, epoch, last=_LAST)
    what = [*_error(results.error), *_events(results.events)]
    return page("TrainResults", results.label, line(faint(_told(said))), *what, figures)


def eval_html(results: EvalResults) -> str:
    """Losses and metrics, and the first predictions with what belongs to them. Never raises."""
    return guarded(results, lambda: _eval(results))


def _eval(results: EvalResults) -> Markup:
    losses = {"loss": results.loss, **{f"loss.{name}": value for name, value in results.losses.items()}}
    figures = {**(losses if results.losses else {}), **results.metrics}
    parts = [
        line(faint(_told([_took(results.seconds)]))),
        *_error(results.error),
        *_events(results.events),
        table(("figure", "value"), list(figures.items()), _figure) if figures else None,
        _predictions(results) if results.predictions else None,
    ]
    return page("EvalResults", results.label, *parts)


def _figure(one: tuple[str, float]) -> Markup:
    return row([one[0], number(float(one[1]))])


def _predictions(results: EvalResults) -> Markup:
    """The first rows of predictions, and of the targets and tags that belong to them; nothing else is read."""
    columns = {f"prediction.{name}": _samples(array) for name, array in list(results.predictions.items())[:_FIGURES]}
    lengths = {len(array) for array in results.predictions.values()}
    for title, rows, name in belonging(results.rows, lengths, columns, _FIGURES):
        columns[title] = first_values(rows, name, _PREDICTED)
    count = max(len(array) for array in results.predictions.values())
    lines = [[values[i] if i < len(values) else "" for values in columns.values()] for i in range(_PREDICTED)]
    more = line(faint(f"the first of {count:,} rows")) if count > _PREDICTED else None
    return element("div", table(list(columns), [one for one in lines if any(one)]), more)


def _samples(array: Any) -> list[str]:
    return [sample(array[i : i + 1]) for i in range(min(len(array), _PREDICTED))]


def fit_html(results: FitResults) -> str:
    """The nodes that were fitted. Never raises."""
    return guarded(results, lambda: _fit(results))


def _fit(results: FitResults) -> Markup:
    def node(one: Any) -> Markup:
        return row([one.node, one.estimator, f"{one.rows:,}", f"{one.seconds:.3g}"])

    nodes = table(("node", "estimator", "rows", "seconds"), results.fitted, node)
    what = [*_error(results.error), *_events(results.events)]
    return page("FitResults", results.label, line(faint(_told([_took(results.seconds)]))), *what, nodes)


def runs_html(experiment: Any) -> str:
    """The runs of an experiment, and what each gave. Never raises."""
    return guarded(experiment, lambda: _runs(experiment))


def _runs(experiment: Any) -> Markup:
    said = line(faint(f"{len(experiment.history):,} runs over {experiment.graph.label}"))
    runs = table(("run", "phase", "kind", "gave", ""), list(enumerate(experiment.history)), _run, last=_LAST)
    return page("Experiment", experiment.label, said, runs if experiment.history else None)


def _run(numbered: tuple[int, Any]) -> Markup:
    number_, one = numbered
    epochs = getattr(one, "epochs", ())
    figures = epochs[-1].figures if epochs else {**_loss(one), **getattr(one, "metrics", {})}
    gave = ", ".join(f"{name} {value:.4g}" for name, value in figures.items() if not is_part(name))
    ended = told(one.error) or getattr(one, "stop_reason", "")
    kind = type(one).__name__.removesuffix("Results").lower()
    return row([number_, one.label, f"{kind}, {len(epochs):,} epochs" if epochs else kind, prose(gave), prose(ended)])


def _loss(one: Any) -> Mapping[str, float]:
    loss = getattr(one, "loss", math.nan)
    return {"loss": loss} if isinstance(loss, float) and not math.isnan(loss) else {}


def _took(seconds: float) -> str:
    return "" if math.isnan(seconds) else f"{seconds:.3g} s"


def _told(parts: list[str]) -> str:
    return ", ".join(filter(None, parts))


def _error(error: BaseException | None) -> Iterator[Markup]:
    if error is not None:
        yield line("ended by ", element("code", prose(told(error))))


def _events(events: Sequence[Event]) -> Iterator[Markup]:
    """A line for each event that is not routine, in the middle of many how many more there are."""
    first, hidden, last = cut([event for event in events if not event.verbose], _EVENTS, last=3)
    yield from (line(faint(str(event))) for event in first)
    if hidden:
        yield line(faint(f"and {hidden:,} more events"))
    yield from (line(faint(str(event))) for event in last)
