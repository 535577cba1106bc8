"""What an EvalPhase gave: losses, metrics and predictions, joined with the data that they belong to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np

from anyaccel.data import Rows
from anyaccel.errors import ResultError
from anyaccel.graph import Plan
from anyaccel.phases import Figures
from anyaccel.phases.evaluation import Compared
from anyaccel.phases.events import Event
from anyaccel.results import formatting, inverse_transform, plots
from anyaccel.results import prediction_columns as wanted
from anyaccel.results.formatting import ended, finite, shown, told, when
from anyaccel.results.notebook import eval_html
from anyaccel.results.prediction_columns import belonging


@dataclass(frozen=True, slots=True, repr=False)
class EvalResults:
    """What an EvalPhase gave. Predictions are by node, or by `node.OUTPUT` where a node has several.

    `loss` is the weighted sum of `losses`, NaN where there are none. `error` is what ended the run, None if nothing.
    `nodes` has the labels of all nodes of the graph, whether they were computed or not. `number`, `started`,
    `seconds` and `events` are as in TrainResults.
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
    events: tuple[Event, ...] = ()

    def __repr__(self) -> str:
        losses = {"loss": self.loss} if self.losses else {}
        kept = f", predictions of {', '.join(self.predictions)}" if self.predictions else ""
        return f"EvalResults({self.label!r}{shown({**losses, **self.metrics})}{kept}{ended(self.error, self.events)})"

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
        return inverse_transform.original(name, values, self.rows, self.compared) if undo else values

    def _no_prediction(self, name: Any) -> ResultError:
        label = str(name).partition(".")[0]
        asked, there = f"run {self.label!r} has no predictions of {name!r}", tuple(self.predictions) or ("none",)
        several = [one for one in self.predictions if one.startswith(f"{name}.")]
        if several:
            return ResultError(f"{asked}, which has several outputs", available=", ".join(several), hint="name one")
        if self.error is not None:
            return ResultError(f"{asked}: it was ended by {told(self.error)}", hint="run the phase again")
        computed = label in [one.node for one in self.plan.assignments] if self.plan is not None else False
        if label in self.nodes and not (computed and "." in str(name)):
            why = "which it computed and did not keep" if computed else "which it did not compute"
            remedy = f"name it in EvalPhase(outputs=[{label!r}])"
            return ResultError(f"{asked}, {why}", available=", ".join(there), hint=remedy)
        if label not in self.nodes and self.nodes:
            return formatting.absent(f"{asked}, which is no node", name, self.nodes, "use one of these labels")
        return formatting.absent(asked, name, there, "name the node in EvalPhase(outputs=[...])")

    def plot(self, name: str | None = None, ax: Any = None, *, targets: str | None = None, undo: bool = False) -> Any:
        """Draw predictions against targets, or for class indices how often each class was taken for each.

        Two outputs that are no scores of the classes (there are more than two of these) are points, coloured by class.

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
        given, other = self.prediction(name, undo), self._wanted(name, targets)
        if given is self.predictions[name] and self._is_embedding(name, other):
            return plots.labelled(given, other.values.reshape(-1), ax, title=self.label, name=name, legend=other.name)
        found = (
            inverse_transform.original_values(self.rows[other.label], other.columns, other.values)
            if undo
            else other.values
        )
        classes = self._classes(name, found, given)
        if classes is not None:
            title = f"{self.label}: accuracy {np.mean(classes[0] == classes[1]):.3g}"
            return plots.confusion(*classes, ax, title=title, xlabel=f"predicted by {name}", ylabel=other.name)
        n = len(given)
        there = found.reshape(n, -1), given.reshape(n, -1)
        return plots.against(*there, ax, title=self.label, xlabel=other.name, ylabel=f"prediction of {name}")

    def _is_embedding(self, name: str, other: wanted.Wanted) -> bool:
        """Whether predictions [n, 2] are points beside class labels, and no scores of the classes.

        Raises:
            ResultError: they have another number of outputs than there are classes, and no metric says that they are
                scores.
        """
        given = self.predictions[name]
        if given.ndim != 2 or given.shape[1] < 2 or other.values.dtype.kind not in "iu" or other.values.ndim > 2:
            return False
        if other.values.size != len(given) or given.dtype.kind != "f":
            return False
        count = wanted.class_count(other, self.rows[other.label])
        if given.shape[1] == 2 and count > 2:
            return True
        if given.shape[1] == count or any("accuracy" in one for one in self.metrics):
            return False
        raise ResultError(
            f"run {self.label!r}: predictions of {name!r} have {given.shape[1]} outputs, and {other.name} has {count} "
            "classes: they may be no scores of these",
            available="an embedding can be drawn where it has 2 outputs",
            hint="if they are scores, judge them: EvalPhase(..., metrics=['accuracy'])",
        )

    def _classes(self, name: str, targets: np.ndarray, given: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Classes of targets and predictions, None where they are numbers; what was brought back has no scores."""
        brought_back = given is not self.predictions[name]
        classes = plots.as_labels(targets, given) if brought_back else plots.as_classes(targets, given)
        numbers = {targets.dtype.kind, given.dtype.kind} <= set("biuf")
        if classes is None and not (numbers and targets.size == given.size):
            raise ResultError(
                f"run {self.label!r}: predictions of {name!r} and their targets cannot be drawn in their own units",
                available=f"{given.dtype} {list(given.shape)} and {targets.dtype} {list(targets.shape)}",
                hint="leave undo out, or name a target whose values are alike: plot(targets='COLUMN')",
            )
        return classes

    def _only(self) -> str:
        if len(self.predictions) == 1:
            return next(iter(self.predictions))
        raise ResultError(
            f"run {self.label!r} has predictions of {len(self.predictions) or 'no'} nodes",
            available=", ".join(self.predictions),
            hint="name one: plot('NODE')" if self.predictions else "name nodes in EvalPhase(outputs=[...])",
        )

    def _wanted(self, name: str, column: str | None) -> wanted.Wanted:
        """The targets to compare with, as they are in the data, for the predictions as they were made."""
        label, names = self.compared.get(name, ("", ()))
        given = self.predictions[name]
        if column is None and label in self.rows:
            found = wanted.wanted(label, names, self.rows)
            if wanted.fits(given, found.values):
                return found
        return wanted.wanted_for(given, self.rows, column, f"run {self.label!r}, predictions of {name!r}")

    def to_pandas(self, undo: bool = False) -> Any:
        """The table of `to_arrow` as a pandas DataFrame; samples with axes are arrays in a column of objects.

        Raises:
            ResultError: no predictions were kept, or pandas is not installed.
            TransformError: as `prediction`.
        """
        return formatting.to_pandas(self.to_arrow(undo))

    def to_arrow(self, undo: bool = False) -> Any:
        """A table with a row for each sample: the predictions, and the targets and tags that belong to them.

        Columns of predictions are called `prediction.NAME`, the others by their own name, with `@STREAM` where they
        belong to another stream of the phase's sampler than its first. With `undo`, all of them are
        as they were before the transforms of the data; see `prediction`. Samples of one value, [1], are plain numbers.

        Raises:
            ResultError: no predictions were kept, or some of other numbers of rows.
            TransformError: as `prediction`.
        """
        import pyarrow as pa

        arrays = {f"prediction.{name}": self.prediction(name, undo) for name in self.predictions}
        if not arrays:
            raise ResultError(f"run {self.label!r} kept no predictions", hint="name nodes in EvalPhase(outputs=[...])")
        lengths = {name: len(array) for name, array in self.predictions.items()}
        if len(set(lengths.values())) > 1:
            raise ResultError(
                f"run {self.label!r} has predictions of different numbers of rows, which are no table",
                available=", ".join(f"{name}: {length}" for name, length in lengths.items()),
                hint="run an EvalPhase for each feature set, with outputs=[...] of the nodes that it feeds",
            )
        table = inverse_transform.prediction_table(arrays)
        rows = {label: inverse_transform.original_rows(its) if undo else its for label, its in self.rows.items()}
        for title, its, name in belonging(rows, {table.num_rows}, table.column_names):
            column = inverse_transform.plain_column(its, name)
            table = table.append_column(pa.field(title, column.type), column)
        return table

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain data, ready for JSON; what is not finite is None, predictions are left out."""
        return {
            "label": self.label,
            **finite({"loss": self.loss}),
            "losses": finite(self.losses),
            "metrics": finite(self.metrics),
            "error": told(self.error),
            "events": [event.to_dict() for event in self.events],
            **when(self.number, self.started, self.seconds),
        }


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
