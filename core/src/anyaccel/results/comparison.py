"""Comparison of runs: a table with a row per run and a column per value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anyaccel import html
from anyaccel.arguments import shown
from anyaccel.call_hints import call_hints, class_hints
from anyaccel.errors import ResultError
from anyaccel.metrics import is_higher_better
from anyaccel.results import formatting
from anyaccel.results.base import PhaseResults, kind_of
from anyaccel.results.evaluation import EvalResults
from anyaccel.results.saved_errors import class_name
from anyaccel.results.train import TrainResults

Results = TrainResults | EvalResults | Any
"""What a phase returns; kinds of phases of other distributions return other results, such as FitResults."""

_FACTS = ("run", "phase", "kind", "epochs", "seconds")


@class_hints
@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """A table of runs, one row each, in the order given; `compare` creates it.

    Each row is a mapping from column to value: `run` (its number or the name given), `phase`, `kind`, `epochs`,
    `seconds`, then the values of the run. For a TrainPhase, `NAME` is the value of the last epoch and `best NAME` the
    lowest loss or error, or the highest value of a metric such as accuracy. `columns` names the columns that any row
    has.

    Example:
        >>> import anyaccel as aa, numpy as np
        >>> data = aa.FeatureSet.from_dict("d", {"x": np.ones((8, 1), "f4"), "y": np.ones((8, 1), "f4")}, ["x"], ["y"])
        >>> graph = aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP([1]), data)], seed=0)
        >>> phase = aa.EvalPhase("eval", data=data, losses=aa.AppliedLoss("mse"))
        >>> runs = {name: graph.run(phase, progress="none") for name in ("first", "second")}
        >>> aa.compare(runs).column("run")
        ['first', 'second']
    """

    rows: tuple[Mapping[str, Any], ...]
    columns: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return formatting.text_table(self.columns, self._cells())

    def _repr_html_(self) -> str:
        cells = [[formatting.short(value) for value in row] for row in self._cells()]
        return html.guarded(self, lambda: html.page("Comparison", "", html.table(self.columns, cells)))

    def _cells(self) -> list[list[Any]]:
        return [[row.get(name) for name in self.columns] for row in self.rows]

    def column(self, name: str) -> list[Any]:
        """Return the values of one column; None for runs without it.

        Raises:
            ResultError: no run has it.
        """
        if name not in self.columns:
            problem = f"the comparison has no column {name!r}"
            raise formatting.unknown_name(problem, name, self.columns, "use one of these names")
        return [row.get(name) for row in self.rows]

    def to_arrow(self) -> Any:
        """Return a table with a row per run; null if a run lacks a value."""
        import pyarrow as pa

        return pa.table({name: pa.array(self.column(name)) for name in self.columns})

    def to_pandas(self) -> Any:
        """Return the table of `to_arrow` as a pandas DataFrame.

        Raises:
            ResultError: pandas is not installed.
        """
        return formatting.to_pandas(self.to_arrow())


@call_hints
def compare(*runs: Any, figures: str | Sequence[str] = ()) -> Comparison:
    """Compare runs in a table.

    Args:
        runs: Results of phases, models that `fit` returns, lists of them (such as `experiment.history`), or mappings
            from names that you choose to results: `{"narrow": a.last_run, "wide": b.last_run}`.
        figures: One name or several; by default every value except the losses of single nodes.

    Raises:
        ResultError: no runs, an object that is not a result, or a value that no run has.

    Example:
        >>> import anyaccel as aa, numpy as np
        >>> x = np.linspace(0, 1, 64, dtype="float32").reshape(64, 1)
        >>> data = aa.FeatureSet.from_dict("line", {"x": x, "y": 2 * x}, ["x"], ["y"])
        >>> runs = {}
        >>> for hidden in (4, 16):
        ...     net = aa.ModelNode("net", aa.SequentialMLP([1], hidden_dim=hidden), data)
        ...     phase = aa.TrainPhase("train", data=data, losses=aa.AppliedLoss("mse"))
        ...     runs[f"hidden {hidden}"] = aa.ModelGraph([net], "adam", seed=0).run(phase, progress="none")
        >>> aa.compare(runs, figures="loss").column("run")
        ['hidden 4', 'hidden 16']
    """
    figures = (figures,) if isinstance(figures, str) else figures
    if not isinstance(figures, Iterable):
        raise ResultError(f"figures={shown(figures)} are not names", hint="write figures=['loss']")
    figures = tuple(figures)
    named = list(_named(runs))
    if not named:
        raise ResultError("there is no run to compare", hint="run a phase first, or pass results")
    histories: list[tuple[str | None, PhaseResults, dict[str, np.ndarray]]] = []
    for name, run in named:
        values: dict[str, np.ndarray] = {}  # by figure, float64 [epochs]; an evaluation counts as one epoch
        if isinstance(run, TrainResults):
            values = {figure: run.figure(figure) for figure in run.figures}
        elif isinstance(run, EvalResults):
            losses = {"loss": run.loss, **{f"loss.{node}": loss for node, loss in run.losses.items()}}
            of_run = {**(losses if run.losses else {}), **run.metrics}
            values = {figure: np.array([value]) for figure, value in of_run.items()}
        histories.append((name, run, values))
    all_figures = list(dict.fromkeys(figure for _, _, values in histories for figure in values))
    for name in figures:
        if name not in all_figures:
            raise formatting.unknown_name(
                f"no run has the figure {name!r}", name, all_figures, "use one of these names"
            )
    selected = set(figures or (figure for figure in all_figures if not formatting.is_part(figure)))
    rows: list[dict[str, Any]] = []
    for name, run, values in histories:
        number, kind = "" if run.number is None else str(run.number), kind_of(run)
        row: dict[str, Any] = {
            "run": number if name is None else name,
            "phase": run.label,
            "kind": kind if run.error is None else f"{kind} ({class_name(run.error)})",
            "epochs": len(run.epochs) if isinstance(run, TrainResults) else None,
            "seconds": None if np.isnan(run.seconds) else run.seconds,
        }
        for figure, of_epochs in values.items():
            if figure not in selected:
                continue
            row[figure] = float(of_epochs[-1])
            higher, finite = is_higher_better(figure), of_epochs[np.isfinite(of_epochs)]
            if len(of_epochs) > 1 and finite.size and higher is not None:  # it is known which direction is better
                row[f"best {figure}"] = float(finite.max() if higher else finite.min())
        rows.append(row)
    order = [
        *_FACTS,
        *(column for figure in all_figures if figure in selected for column in (figure, f"best {figure}")),
    ]
    present = {column for row in rows for column, value in row.items() if value is not None}
    return Comparison(tuple(rows), tuple(column for column in order if column in present))


def _named(runs: Iterable[Any]) -> Iterator[tuple[str | None, PhaseResults]]:
    for run in runs:
        if isinstance(run, PhaseResults):
            yield None, run
        elif isinstance(getattr(run, "results", None), PhaseResults):  # what fit returns
            yield None, run.results
        elif isinstance(run, Mapping):
            for name, result in run.items():
                yield from ((str(name), nested) for _, nested in _named([result]))
        elif isinstance(run, (list, tuple)):
            yield from _named(run)
        else:
            raise ResultError(
                f"{shown(run)} is not the result of a phase",
                hint="pass the result of run_phase(...), or experiment.history",
            )
