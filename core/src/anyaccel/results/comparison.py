"""Runs side by side: a small table of their figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anyaccel import display
from anyaccel.errors import ResultError
from anyaccel.results import formatting
from anyaccel.results.evaluation import EvalResults
from anyaccel.results.fit import FitResults
from anyaccel.results.train import TrainResults

Results = TrainResults | EvalResults | FitResults

_KINDS = {TrainResults: "train", EvalResults: "eval", FitResults: "fit"}
_FACTS = ("run", "phase", "kind", "epochs", "seconds")
_LOW, _HIGH = ("loss", "mse", "rmse", "mae"), ("accuracy", "r2")


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """Runs side by side: a row for each, in the order given; made by `compare`.

    `rows` has what is known of each run by name of column: `run` (its number or the name given), `phase`, `kind`,
    `epochs`, `seconds`, then figures. Of a TrainPhase `NAME` is the figure at the last epoch, and `best NAME` the
    lowest of a loss or error, the highest of accuracy and r2. `columns` are the names of those that any row has.
    """

    rows: tuple[Mapping[str, Any], ...]
    columns: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return formatting.text_table(self.columns, self._cells())

    def _repr_html_(self) -> str:
        cells = [[formatting.short(value) for value in row] for row in self._cells()]
        return display.guarded(self, lambda: display.page("Comparison", "", display.table(self.columns, cells)))

    def _cells(self) -> list[list[Any]]:
        return [[row.get(name) for name in self.columns] for row in self.rows]

    def column(self, name: str) -> list[Any]:
        """The values of one column, a row each; None where a run does not have it.

        Raises:
            ResultError: no run has it.
        """
        if name not in self.columns:
            raise formatting.absent(
                f"the comparison has no column {name!r}", name, self.columns, "use one of these names"
            )
        return [row.get(name) for row in self.rows]

    def to_arrow(self) -> Any:
        """A table with a row for each run; null where a run does not have a figure."""
        import pyarrow as pa

        return pa.table({name: pa.array(self.column(name)) for name in self.columns})

    def to_pandas(self) -> Any:
        """The table of `to_arrow` as a pandas DataFrame.

        Raises:
            ResultError: pandas is not installed.
        """
        return formatting.to_pandas(self.to_arrow())


def compare(*runs: Any, figures: str | Sequence[str] = ()) -> Comparison:
    """Put runs side by side.

    Args:
        runs: results of phases, lists of them (an experiment's `history`), or mappings of names of your own to
            results, such as `{"narrow": a.last_run, "wide": b.last_run}`.
        figures: name of the one wanted, or several; by default all but the losses of single nodes.

    Raises:
        ResultError: there is nothing to compare, something is no result, or no run has a figure of this name.
    """
    figures = (figures,) if isinstance(figures, str) else tuple(figures)
    named = list(_named(runs))
    if not named:
        raise ResultError("there is no run to compare", hint="run a phase first, or give results")
    every = [(name, one, _figures(one)) for name, one in named]
    known = list(dict.fromkeys(figure for _, _, found in every for figure in found))
    for name in figures:
        if name not in known:
            raise formatting.absent(f"no run has the figure {name!r}", name, known, "use one of these names")
    wanted = set(figures or (figure for figure in known if not formatting.is_part(figure)))
    rows = tuple({**_facts(name, one), **_chosen(found, wanted)} for name, one, found in every)
    order = [*_FACTS, *(column for figure in known if figure in wanted for column in (figure, f"best {figure}"))]
    there = {column for row in rows for column, value in row.items() if value is not None}
    return Comparison(rows, tuple(column for column in order if column in there))


def _named(runs: Iterable[Any]) -> Iterable[tuple[str | None, Results]]:
    for one in runs:
        if isinstance(one, (TrainResults, EvalResults, FitResults)):
            yield None, one
        elif isinstance(one, Mapping):
            for name, result in one.items():
                yield from ((str(name), found) for _, found in _named([result]))
        elif isinstance(one, (list, tuple)):
            yield from _named(one)
        else:
            raise ResultError(
                f"{one!r} is no result of a phase", hint="give what run_phase(...) gave, or experiment.history"
            )


def _facts(name: str | None, one: Results) -> dict[str, Any]:
    number = "" if one.number is None else str(one.number)
    kind = next(kind for cls, kind in _KINDS.items() if isinstance(one, cls))
    epochs = len(one.epochs) if isinstance(one, TrainResults) else None
    seconds = None if np.isnan(one.seconds) else one.seconds
    return {
        "run": number if name is None else name,
        "phase": one.label,
        "kind": kind if one.error is None else f"{kind} ({type(one.error).__name__})",
        "epochs": epochs,
        "seconds": seconds,
    }


def _figures(one: Results) -> dict[str, np.ndarray]:
    """Every figure of a run over its epochs; of an evaluation over the one that there was."""
    if isinstance(one, TrainResults):
        return {name: one.figure(name) for name in one.figures}
    if isinstance(one, FitResults):
        return {}
    losses = {"loss": one.loss, **{f"loss.{name}": value for name, value in one.losses.items()}} if one.losses else {}
    return {name: np.array([value]) for name, value in {**losses, **one.metrics}.items()}


def _chosen(found: Mapping[str, np.ndarray], wanted: Iterable[str]) -> dict[str, float]:
    row: dict[str, float] = {}
    for name in wanted:
        if name in found:
            row[name] = float(found[name][-1])
            best = _best(name, found[name])
            if best is not None and len(found[name]) > 1:
                row[f"best {name}"] = best
    return row


def _best(name: str, values: np.ndarray) -> float | None:
    """The best of some values, None where it is not known which are good, or none is a number."""
    plain = name.removeprefix("val_")
    last = "loss" if plain.startswith("loss.") else plain.rpartition(".")[2]
    finite = values[np.isfinite(values)]
    if not finite.size or last not in (*_LOW, *_HIGH):
        return None
    return float(finite.max() if last in _HIGH else finite.min())
