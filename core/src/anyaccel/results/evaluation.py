"""What an EvalPhase gave: losses, metrics and predictions, joined with the data that they belong to."""

from __future__ import annotations

import itertools
import math
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np

from anyaccel import frames, plots, units
from anyaccel import targets as wanted
from anyaccel.data import Rows, joined_array
from anyaccel.errors import ResultError
from anyaccel.graph import Plan
from anyaccel.phases import Figures
from anyaccel.phases.comparing import Compared
from anyaccel.results.html import eval_html
from anyaccel.results.told import ended, finite, shown, told, when


@dataclass(frozen=True, slots=True, repr=False)
class EvalResults:
    """What an EvalPhase gave. Predictions are by node, or by `node.OUTPUT` where a node has several.

    `loss` is the weighted sum of `losses`, NaN where there are none. `error` is what ended the run, None if nothing.
    `nodes` has the labels of all nodes of the graph, whether they were computed or not. `number`, `started` and
    `seconds` are as in TrainResults.
    """

    label: str
    loss: float
    losses: Mapping[str, float]
    metrics: Mapping[str, float]
    predictions: Mapping[str, np.ndarray]
    plan: Plan | None
    rows: Mapping[str, Rows] = field(default_factory=dict, repr=False)
    error: BaseException | None = None
    compared: Mapping[str, Compared] = field(default_factory=dict, repr=False)
    nodes: tuple[str, ...] = ()
    number: int | None = None
    started: datetime | None = None
    seconds: float = math.nan

    def __repr__(self) -> str:
        losses = {"loss": self.loss} if self.losses else {}
        kept = f", predictions of {', '.join(self.predictions)}" if self.predictions else ""
        return f"EvalResults({self.label!r}{shown({**losses, **self.metrics})}{kept}{ended(self.error)})"

    def _repr_html_(self) -> str:
        return eval_html(self)

    def prediction(self, name: str, undo: bool = False) -> np.ndarray:
        """The predictions of a node, [n, *shape], in the order of the data.

        Args:
            name: of the node, or `node.OUTPUT`.
            undo: bring them back to the units before the transforms of the columns that the node is compared with (by
                a loss or metric of the phase, else the targets of its data), the last one first. The results stay as
                they are, so that asking twice gives the same. Losses and metrics are in transformed units.

        Raises:
            ResultError: none were kept for it.
            TransformError: a transform has no way back, or it is not clear what the node is compared with.
        """
        if name not in self.predictions:
            raise self._no_prediction(name)
        values = self.predictions[name]
        return units.original(name, values, self.rows, self.compared) if undo else values

    def _no_prediction(self, name: Any) -> ResultError:
        label = str(name).partition(".")[0]
        asked, there = f"run {self.label!r} has no predictions of {name!r}", tuple(self.predictions) or ("none",)
        several = [one for one in self.predictions if one.startswith(f"{name}.")]
        if several:
            return ResultError(f"{asked}, which has several outputs", there=", ".join(several), remedy="name one")
        if self.error is not None:
            return ResultError(f"{asked}: it was ended by {told(self.error)}", remedy="run the phase again")
        computed = label in [one.node for one in self.plan.assignments] if self.plan is not None else False
        if label in self.nodes and not (computed and "." in str(name)):
            why = "which it computed and did not keep" if computed else "which it did not compute"
            remedy = f"name it in EvalPhase(outputs=[{label!r}])"
            return ResultError(f"{asked}, {why}", there=", ".join(there), remedy=remedy)
        if label not in self.nodes and self.nodes:
            return frames.absent(f"{asked}, which is no node", name, self.nodes, "use one of these labels")
        return frames.absent(asked, name, there, "name the node in EvalPhase(outputs=[...])")

    def plot(self, name: str | None = None, ax: Any = None, *, targets: str | None = None, undo: bool = False) -> Any:
        """Draw predictions against targets, or for class indices how often each class was taken for each.

        Args:
            name: of the node, or `node.OUTPUT`; may be left out where predictions of one were kept.
            ax: matplotlib's Axes to draw on; a new figure if None.
            targets: `"COLUMN"` or `"FEATURE_SET.COLUMN"` to compare with; by default what a loss or metric compares the
                node with, else the target that fits.
            undo: in the units before the transforms of the data; see `prediction`.

        Returns:
            the Axes.

        Raises:
            ResultError: it is not clear what to draw, or matplotlib is not installed.
        """
        name = self._only() if name is None else name
        given, other = self.prediction(name, undo), self._wanted(name, targets, undo)
        classes = plots.as_classes(other.values, given)
        if classes is not None:
            title = f"{self.label}: accuracy {np.mean(classes[0] == classes[1]):.3g}"
            return plots.confusion(*classes, ax, title=title, xlabel=f"predicted by {name}", ylabel=other.name)
        n = len(given)
        there = other.values.reshape(n, -1), given.reshape(n, -1)
        return plots.against(*there, ax, title=self.label, xlabel=other.name, ylabel=f"prediction of {name}")

    def _only(self) -> str:
        if len(self.predictions) == 1:
            return next(iter(self.predictions))
        raise ResultError(
            f"run {self.label!r} has predictions of {len(self.predictions) or 'no'} nodes",
            there=", ".join(self.predictions),
            remedy="name one: plot('NODE')" if self.predictions else "name nodes in EvalPhase(outputs=[...])",
        )

    def _wanted(self, name: str, column: str | None, undo: bool) -> wanted.Wanted:
        rows = {label: units.original_rows(one) if undo else one for label, one in self.rows.items()}
        label, names = self.compared.get(name, ("", ()))
        given = self.predictions[name]
        if column is None and label in rows:
            found = wanted.Wanted(wanted.full_name(label, rows[label], names), joined_array(rows[label], names))
            if wanted.fits(given, found.values):
                return found
        return wanted.wanted_for(given, rows, column, f"run {self.label!r}, predictions of {name!r}")

    def to_pandas(self, undo: bool = False) -> Any:
        """The table of `to_arrow` as a pandas DataFrame; samples with axes are arrays in a column of objects.

        Raises:
            ResultError: no predictions were kept, or pandas is not installed.
            TransformError: as `prediction`.
        """
        return frames.to_pandas(self.to_arrow(undo))

    def to_arrow(self, undo: bool = False) -> Any:
        """A table with a row for each sample: the predictions, and the targets and tags that belong to them.

        Columns of predictions are called `prediction.NAME`, the others by their own name, with `@STREAM` where they
        belong to another stream of the phase's sampler than its first. With `undo`, all of them are
        as they were before the transforms of the data; see `prediction`.

        Raises:
            ResultError: no predictions were kept, or some of other numbers of rows.
            TransformError: as `prediction`.
        """
        import pyarrow as pa

        arrays = {f"prediction.{name}": self.prediction(name, undo) for name in self.predictions}
        if not arrays:
            raise ResultError(
                f"run {self.label!r} kept no predictions", remedy="name nodes in EvalPhase(outputs=[...])"
            )
        lengths = {name: len(array) for name, array in self.predictions.items()}
        if len(set(lengths.values())) > 1:
            raise ResultError(
                f"run {self.label!r} has predictions of different numbers of rows, which are no table",
                there=", ".join(f"{name}: {length}" for name, length in lengths.items()),
                remedy="run an EvalPhase for each feature set, with outputs=[...] of the nodes that it feeds",
            )
        table = units.prediction_table(arrays)
        for label, its in self.rows.items():
            if len(its) != table.num_rows:  # of a feature set that a metric alone needed
                continue
            rows, stream = units.original_rows(its) if undo else its, label.removeprefix(its.label)
            for name in (*rows.targets, *rows.tags):
                free = _free(f"{name}{stream}", rows.label, table.column_names)
                table = table.append_column(pa.field(free, rows.column(name).type), rows.column(name))
        return table

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain data, ready for JSON; what is not finite is None, predictions are left out."""
        return {
            "label": self.label,
            **finite({"loss": self.loss}),
            "losses": finite(self.losses),
            "metrics": finite(self.metrics),
            "error": told(self.error),
            **when(self.number, self.started, self.seconds),
        }


def _free(name: str, label: str, taken: Container[str]) -> str:
    """A name for a column that no other has: its own, else with the label of its feature set, else with a number."""
    full = f"{label}.{name}"
    counted = (f"{full}#{i}" for i in itertools.count(2))
    return next(one for one in itertools.chain((name, full), counted) if one not in taken)


def eval_results(
    label: str,
    figures: Figures | None,
    plan: Plan | None,
    rows: Mapping[str, Rows],
    error: BaseException | None,
    compared: Mapping[str, Compared] | None = None,
    **more: Any,
) -> EvalResults:
    """Results of an EvalPhase, empty if it did not get to its end; `more` are fields by name."""
    done = figures or Figures({}, math.nan, {}, {})
    loss = done.loss if done.losses else math.nan
    return EvalResults(label, loss, done.losses, done.metrics, done.outputs, plan, rows, error, compared or {}, **more)
