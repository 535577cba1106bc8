"""Results of an EvalPhase: losses, metrics, and predictions with the data of their rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anyaccel.arguments import flag
from anyaccel.call_hints import class_hints
from anyaccel.data import Rows
from anyaccel.data.saved_rows import inverse_values, is_transformed, original_rows, original_values
from anyaccel.errors import ResultError, TransformError
from anyaccel.results import formatting
from anyaccel.results.base import PhaseResults, saved_as
from anyaccel.results.formatting import NamedValues
from anyaccel.results.notebook import eval_html
from anyaccel.results.records import Compared, EvaluationValues
from anyaccel.results.targets import (
    Target,
    class_count,
    find_target,
    fits,
    matching_columns,
    plain_column,
    prediction_table,
    target_of,
)


@class_hints
@saved_as("eval")
@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class EvalResults(PhaseResults):
    """Results of an EvalPhase. The other fields are the same as in PhaseResults.

    Attributes:
        loss: Weighted sum of `losses`; NaN without losses.
        losses: Mean loss by label.
        metrics: Metrics by label.
        predictions: Arrays [n, *shape] by node, or by `node.OUTPUT` for a node with several outputs.
        rows: The evaluated data by feature set; `FEATURE_SET@STREAM` for the other streams of a sampler.
        compared: Feature set and columns that each prediction is compared with.
        nodes: Labels of all nodes of the graph, computed or not.

    Example:
        >>> import anyaccel as aa, numpy as np
        >>> x = np.linspace(0, 1, 64, dtype="float32").reshape(64, 1)
        >>> data = aa.FeatureSet.from_dict("line", {"x": x, "y": 2 * x}, ["x"], ["y"])
        >>> graph = aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP([1]), data)], seed=0)
        >>> phase = aa.EvalPhase("eval", data=data, losses=aa.AppliedLoss("mse"), metrics=["r2"])
        >>> results = graph.run(phase, progress="none")
        >>> list(results.metrics), results.prediction("net").shape, results.to_arrow().column_names
        (['r2'], (64, 1), ['prediction.net', 'y'])
    """

    loss: float = math.nan
    losses: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    predictions: Mapping[str, np.ndarray] = field(default_factory=dict)
    rows: Mapping[str, Rows] = field(default_factory=dict)
    compared: Mapping[str, Compared] = field(default_factory=dict)
    nodes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        values = formatting.summary({**({"loss": self.loss} if self.losses else {}), **self.metrics})
        predictions = f", predictions of {', '.join(self.predictions)}" if self.predictions else ""
        return f"EvalResults({self.label!r}{values}{predictions}{formatting.ended(self.error, self.events)})"

    def _repr_html_(self) -> str:
        return eval_html(self)

    def prediction(self, name: str, undo: bool = False) -> np.ndarray:
        """Return the predictions of a node, [n, *shape], in the order of the data.

        Args:
            name: Label of the node, or `node.OUTPUT`.
            undo: Return them in original units: undo the transforms of the columns that the node is compared with (by a
                loss or metric of the phase, otherwise the targets of its data). `predictions`, losses and metrics stay
                in transformed units.

        Raises:
            ResultError: the run stored no predictions of it.
            TransformError: a transform has no inverse, or the columns that the node is compared with are unknown.
        """
        flag(ResultError, "prediction: ", "undo", undo)
        if not isinstance(name, str) or name not in self.predictions:
            raise self._no_prediction(name)
        values = self.predictions[name]
        if not undo:
            return values
        label, columns = self.compared.get(name, ("", ()))
        if label in self.rows:
            return inverse_values(self.rows[label], columns, values)
        if not any(map(is_transformed, self.rows.values())):
            return values
        raise TransformError(
            f"the transforms cannot be undone for predictions of {name!r}: no loss, metric or target shows which "
            "columns they belong to",
            hint=f"name the columns: feature_set.inverse(results.prediction({name!r}), columns=[...])",
        )

    def _no_prediction(self, name: Any) -> ResultError:
        label = str(name).partition(".")[0]
        problem, kept = f"run {self.label!r} has no predictions of {name!r}", tuple(self.predictions) or ("none",)
        outputs = [prediction for prediction in self.predictions if prediction.startswith(f"{name}.")]
        if outputs:
            return ResultError(f"{problem}, which has several outputs", available=", ".join(outputs), hint="name one")
        if self.error is not None:
            return ResultError(
                f"{problem}: it ended with {formatting.error_text(self.error)}", hint="run the phase again"
            )
        computed = self.plan is not None and label in [assignment.node for assignment in self.plan.assignments]
        if label in self.nodes and not (computed and "." in str(name)):
            reason = "which it computed but did not store" if computed else "which it did not compute"
            hint = f"name it in EvalPhase(outputs=[{label!r}])"
            return ResultError(f"{problem}, {reason}", available=", ".join(kept), hint=hint)
        if label not in self.nodes and self.nodes:
            return formatting.unknown_name(
                f"{problem}, which is not a node", name, self.nodes, "use one of these labels"
            )
        return formatting.unknown_name(problem, name, kept, "name the node in EvalPhase(outputs=[...])")

    def plot(self, name: str | None = None, ax: Any = None, *, targets: str | None = None, undo: bool = False) -> Any:
        """Plot predictions over targets, or a confusion matrix for class indices.

        Two outputs for more than two classes are not scores: they are plotted as points, colored by class.

        Args:
            name: Label of the node, or `node.OUTPUT`. You can leave it out if the run kept predictions of only one.
            ax: Matplotlib Axes to draw on; None creates a new figure.
            targets: `"COLUMN"` or `"FEATURE_SET.COLUMN"` to compare with. By default, the column that a loss or metric
                compares the node with, otherwise the target that fits.
            undo: Plot in original units; see `prediction`.

        Returns:
            The Axes.

        Raises:
            ResultError: it is not clear what to plot, or matplotlib is not installed.
        """
        from anyaccel.results import plots

        if name is None and len(self.predictions) != 1:
            raise ResultError(
                f"run {self.label!r} has predictions of {len(self.predictions) or 'no'} nodes",
                available=", ".join(self.predictions),
                hint="name one: plot('NODE')" if self.predictions else "name nodes in EvalPhase(outputs=[...])",
            )
        name = next(iter(self.predictions)) if name is None else name
        values = self.prediction(name, undo)
        label, columns = self.compared.get(name, ("", ()))
        target = target_of(label, columns, self.rows) if targets is None and label in self.rows else None
        if target is None or not fits(self.predictions[name], target.values):
            what = f"run {self.label!r}, predictions of {name!r}"
            target = find_target(self.predictions[name], self.rows, targets, what)
        if values is self.predictions[name] and self._is_embedding(name, target):
            labels = target.values.reshape(-1)
            return plots.labelled_points(values, labels, ax, title=self.label, name=name, legend=target.name)
        truth = target.values
        if undo:
            truth = original_values(self.rows[target.label], target.columns, truth)
        # In original units there are no scores of classes.
        is_original = values is not self.predictions[name]
        classes = plots.as_labels(truth, values) if is_original else plots.as_classes(truth, values)
        are_numbers = {truth.dtype.kind, values.dtype.kind} <= set("biuf")
        if classes is None and not (are_numbers and truth.size == values.size):
            raise ResultError(
                f"run {self.label!r}: predictions of {name!r} and their targets cannot be plotted in original units",
                cause=f"{values.dtype} {list(values.shape)} and {truth.dtype} {list(truth.shape)}",
                hint="leave undo out, or name a target with matching values: plot(targets='COLUMN')",
            )
        if classes is not None:
            title = f"{self.label}: accuracy {np.mean(classes[0] == classes[1]):.3g}"
            return plots.confusion(*classes, ax, title=title, xlabel=f"predicted by {name}", ylabel=target.name)
        flat = truth.reshape(len(values), -1), values.reshape(len(values), -1)
        return plots.scatter(*flat, ax, title=self.label, xlabel=target.name, ylabel=f"prediction of {name}")

    def _is_embedding(self, name: str, target: Target) -> bool:
        """Return whether predictions [n, 2] are coordinates for class labels rather than scores of the classes.

        Raises:
            ResultError: the number of outputs differs from the number of classes, and no metric treats them as scores.
        """
        values = self.predictions[name]
        if values.ndim != 2 or values.shape[1] < 2 or target.values.dtype.kind not in "iu" or target.values.ndim > 2:
            return False
        if target.values.size != len(values) or values.dtype.kind != "f":
            return False
        count = class_count(target, self.rows[target.label])
        if values.shape[1] == 2 and count > 2:
            return True
        if values.shape[1] == count or any("accuracy" in metric for metric in self.metrics):
            return False
        raise ResultError(
            f"run {self.label!r}: predictions of {name!r} have {values.shape[1]} outputs, but {target.name} has "
            f"{count} classes, so they may not be scores",
            available="a plot of an embedding with 2 outputs",
            hint="if they are scores, add a metric: EvalPhase(..., metrics=['accuracy'])",
        )

    def to_pandas(self, undo: bool = False) -> Any:
        """Return the table of `to_arrow` as a pandas DataFrame; samples with several axes are arrays in an object
        column.

        Raises:
            ResultError: no predictions were kept, or pandas is not installed.
            TransformError: see `prediction`.
        """
        return formatting.to_pandas(self.to_arrow(undo))

    def to_arrow(self, undo: bool = False) -> Any:
        """Return a table with a row per sample: predictions, and the targets and tags of the same rows.

        Columns of predictions are named `prediction.NAME`; targets and tags keep their names, with `@STREAM` appended
        for the other streams of a sampler. `undo` returns everything in original units; see `prediction`. Samples of
        shape [1] become plain numbers.

        Raises:
            ResultError: the run stored no predictions, or predictions of different numbers of rows.
            TransformError: see `prediction`.
        """
        import pyarrow as pa

        flag(ResultError, "to_arrow: ", "undo", undo)
        arrays = {f"prediction.{name}": self.prediction(name, undo) for name in self.predictions}
        if not arrays:
            raise ResultError(
                f"run {self.label!r} stored no predictions", hint="name nodes in EvalPhase(outputs=[...])"
            )
        lengths = {name: len(array) for name, array in self.predictions.items()}
        if len(set(lengths.values())) > 1:
            raise ResultError(
                f"run {self.label!r} has predictions with different numbers of rows, which do not fit into one table",
                cause=", ".join(f"{name}: {length}" for name, length in lengths.items()),
                hint="run an EvalPhase for each feature set, with outputs=[...] for its nodes",
            )
        table = prediction_table(arrays)
        rows = {label: original_rows(data) if undo else data for label, data in self.rows.items()}
        for title, data, name in matching_columns(rows, {table.num_rows}, table.column_names):
            column = plain_column(data, name)
            table = table.append_column(pa.field(title, column.type), column)
        return table

    def to_dict(self) -> dict[str, Any]:
        """Return losses and metrics as plain data, ready for JSON; values that are not finite are None."""
        return {
            "label": self.label,
            **formatting.finite({"loss": self.loss}),
            "losses": formatting.finite(self.losses),
            "metrics": formatting.finite(self.metrics),
            **self.run_record(),
        }


def eval_results(label: str, figures: EvaluationValues | None, **fields: Any) -> EvalResults:
    """Return the results of an EvalPhase, without values if it did not complete; `fields` are the fields of
    EvalResults.
    """
    if figures is None:
        return EvalResults(label=label, **fields)
    loss = figures.loss if figures.losses else math.nan
    losses, metrics = NamedValues("loss", figures.losses), NamedValues("metric", figures.metrics)
    values: dict[str, Any] = {"losses": losses, "metrics": metrics, "predictions": figures.outputs}
    return EvalResults(label=label, loss=loss, **values, **fields)
