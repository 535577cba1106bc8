"""FittedModel: the trained model that `fit` and `load` return, which predicts for new tables and can be saved."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from anyaccel import arguments, saved_folder
from anyaccel.arguments import shown
from anyaccel.attribute_hints import AttributeHints
from anyaccel.call_hints import call_hints, class_hints
from anyaccel.data import FeatureSet, FeatureSetView, as_source
from anyaccel.data.roles import listed
from anyaccel.distributions import SETTINGS
from anyaccel.distributions import load as load_setting
from anyaccel.errors import ArgumentError, ConfigError, DataError, NaNWarning, ResultError
from anyaccel.experiment import Experiment
from anyaccel.extensions import extensions
from anyaccel.fitting import fitted_view
from anyaccel.fitting.probabilities import CLASSES, YES_OR_NO, accuracy, class_probabilities
from anyaccel.fitting.table_columns import TableColumns
from anyaccel.fitting.tables import (
    Columns,
    class_labels,
    is_table,
    new_rows,
    readable,
    source_columns,
    transformed_like,
    treatment_of,
)
from anyaccel.fitting.written_code import Recipe, code_of_fit
from anyaccel.graph import AppliedLoss, ModelGraph, Plan
from anyaccel.graph.graph import load_to_predict
from anyaccel.graph.weight_loading import Change, Names
from anyaccel.html import Markup, guarded, line, page
from anyaccel.metrics.regression import r2
from anyaccel.phases import EvalPhase, TrainPhase
from anyaccel.phases.step_checks import warn_of_probabilities
from anyaccel.results import EvalResults, TrainResults
from anyaccel.results.base import read_results, results_parts
from anyaccel.specs import Loss
from anyaccel.suggestions import did_you_mean
from anyaccel.user_level import user_level

PART = "fit"


@class_hints
class FittedModel(AttributeHints):
    """A trained model with its graph and the transforms of its data. `fit` and `load` create it.

    >>> import numpy as np
    >>> from anyaccel import SequentialMLP, fit
    >>> x = np.linspace(-1, 1, 64, dtype="float32").reshape(-1, 1)
    >>> table = {"x": x, "y": np.where(x[:, 0] > 0, "high", "low")}
    >>> fitted = fit(SequentialMLP(2), table, target="y", epochs=2, progress="none")
    >>> fitted.classes_.tolist()
    ['high', 'low']
    >>> fitted.predict_proba({"x": x[:5]}).shape
    (5, 2)

    Args:
        experiment: Experiment over a graph with one output node and one feature set.
        loss: Named loss that the model was trained with, which defines the meaning of its outputs; None for any other
            loss.
        losses: Losses of a model with several outputs or targets, instead of `loss`.
        phase: Phase that trained the model; None for a loaded model.
        recipe: How the data were read, for `code`.
        columns: Role and dtype of the columns that features and targets were built from, before all transforms; None
            for the columns of the graph's data, whose rows are then available.

    Attributes:
        experiment: Experiment with the results of all runs.
        loss: Named loss of a model with a single loss, or None.
        losses: All losses.
    """

    attribute_hints: ClassVar[Mapping[str, str]] = {
        "history loss_curve_ evals_result": "see results.loss, and results.figure('val_loss')",
        "module module_ net network": "write fitted.model",
        "weights get_weights layers parameters state_dict": "the trained model has it: write fitted.model",
        "metrics accuracy": "write fitted.results.figure('val_accuracy')",
        "fit train partial_fit": "to continue training, write fitted.experiment.run_phase(fitted.phase)",
        "summary": "write fitted.graph.summary()",
        "save_model dump to_pickle save_params": "write save('FOLDER')",
    }

    def __init__(
        self,
        experiment: Experiment,
        loss: Loss | None = None,
        columns: Columns | None = None,
        *,
        losses: Sequence[AppliedLoss] = (),
        phase: TrainPhase | None = None,
        recipe: Recipe | None = None,
    ) -> None:
        if not isinstance(experiment, Experiment):
            problem = f"FittedModel: {shown(experiment)} is not an Experiment"
            raise ConfigError(problem, hint="write FittedModel(Experiment(graph), Loss('mse'))")
        graph = experiment.graph
        if len(graph.output_nodes) != 1 or len(graph.feature_sets) != 1:
            raise ConfigError(
                f"graph {graph.label!r} has {len(graph.output_nodes)} output nodes and {len(graph.feature_sets)} "
                "feature sets, but must have one of each",
                hint="use the graph itself: ModelGraph.load(folder), EvalPhase",
            )
        self.losses = tuple(losses) if loss is None else (AppliedLoss(loss),)
        only = self.losses[0].loss if len(self.losses) == 1 else None
        self.experiment, self.loss = experiment, None if only is None or only.own is not None else only
        self._phase, self._recipe = phase, recipe or Recipe()
        (self._node,), ((self._label, self._data),) = graph.output_nodes, graph.feature_sets.items()
        self._columns = source_columns(self._data) if columns is None else columns
        self._treatment = treatment_of(self._data)

    @property
    def model(self) -> Any:
        """The trained model itself: the object that `fit` received, unless its framework replaces models."""
        return self.graph.nodes[self._node].model  # type: ignore[union-attr]  # the node of a model

    def __repr__(self) -> str:
        """Return the figures of the last and the best epoch, the columns, the devices, and code for next steps."""
        if not any(isinstance(results, TrainResults) for results in self.experiment.history):
            return f"FittedModel({self.graph!r})"
        steps = fitted_view.next_steps(self._columns, self._phase is None)
        columns = fitted_view.columns_of(self._columns, is_treated=self._treatment is not None)
        return fitted_view.text_of(self.results, fitted_view.facts_of(self.results), columns, steps)

    def _repr_html_(self) -> str:
        if not any(isinstance(results, TrainResults) for results in self.experiment.history):
            return guarded(self, lambda: page("FittedModel", self.graph.label, line("not trained yet")))
        steps = fitted_view.next_steps(self._columns, self._phase is None)
        columns = fitted_view.columns_of(self._columns, is_treated=False)
        made_of = Markup(self.columns._repr_html_()) if self._treatment is not None else columns
        return fitted_view.html_of(self, self.results, fitted_view.facts_of(self.results), made_of, steps)

    @property
    def graph(self) -> ModelGraph:
        """Graph that has the model as its node."""
        return self.experiment.graph

    @property
    def columns(self) -> TableColumns:
        """Treatment of each column of the table: its kind, missing values and categories; prints as a table.

        Raises:
            ResultError: The model takes the columns as plain numbers.
        """
        if self._treatment is None:
            problem = f"the columns {listed(self._columns)} were not treated: the model uses them unchanged"
            raise ResultError(problem, hint="see graph for the data, and fit(..., preprocess=) for treatments")
        return TableColumns(self._treatment.columns)

    @property
    def phase(self) -> TrainPhase:
        """Phase that trained the model, with all settings of `fit`; run it again to continue training.

        Raises:
            ResultError: The model was loaded, so it was not trained here.
        """
        if self._phase is None:
            raise ResultError("this model was loaded without its phase", hint="run a phase: model.graph.run(...)")
        return self._phase

    def code(self) -> str:
        """Return code that builds and runs the same graph and phase without `fit`, as a start for your own code.

        The arguments of `fit` have their names in it: `data`, `model`, and any object without code, such as `callbacks`
        or a custom `loss`. With the same objects, the code computes the same losses. If `fit` treated a table, the code
        takes its features from the fitted model, as `fitted`.

        Raises:
            ResultError: The model was loaded, so it was not trained here.
        """
        return code_of_fit(self.graph, self.phase, self._recipe)

    @property
    def results(self) -> TrainResults:
        """Results of the training: `loss`, `figure("val_loss")`, `stop_reason`, ...

        Raises:
            ResultError: The model was saved before it was trained.
        """
        for results in reversed(self.experiment.history):
            if isinstance(results, TrainResults):
                return results
        raise ResultError("this model was not trained here", hint="run a phase: model.experiment.run_phase(...)")

    @property
    def plan(self) -> Plan | None:
        """Plan of the training: its devices, what was loaded on each, and the treatment of each table column.

        Raises:
            ResultError: The model was saved before it was trained.
        """
        plan, treatment = self.results.plan, self._treatment
        if plan is None or treatment is None:
            return plan
        made = (f"column {column.name!r}: {column.kind}, {column.treatment}" for column in treatment.columns)
        return replace(plan, notes=(*plan.notes, *made))

    def plot(self, *figures: str, ax: Any = None) -> Any:
        """Plot values over the epochs, by default the losses; see `TrainResults.plot`.

        Raises:
            ResultError: No epoch has a value with this name, or matplotlib is not installed.
        """
        names = [arguments.text(ResultError, "plot: ", "figure", figure, "a name", "'val_loss'") for figure in figures]
        return self.results.plot(*names, ax=ax)

    def predict(self, data: Any, *, outputs: bool = False) -> Any:
        """Return predictions for new rows, in their order.

        Args:
            data: Data as for `fit`; targets are optional.
            outputs: Whether to return the model's outputs (logits) without decoding.

        Returns:
            An array. For cross_entropy and binary_cross_entropy classes [n], as text if the targets were text;
            otherwise values [n, *shape] in the original units of the target. For a model with several outputs, a dict
            of arrays, each decoded according to the loss of this output.

        Raises:
            DataError, ColumnError: Feature columns are missing or have wrong types or shapes; or the targets were text,
                but the loss does not define the meaning of the outputs.
        """
        arguments.flag(DataError, "predict: ", "outputs", outputs)
        taken = [loss.inputs[0].partition(".")[2] for loss in self.losses] or [""]
        for output in () if outputs else taken:
            loss, targets = self._compared(output)
            labels = class_labels(self._data)
            encoded = [name for name in targets if labels.get(name)]
            if encoded and (loss is None or loss.name not in (CLASSES, YES_OR_NO)):
                raise DataError(
                    f"the target {encoded[0]!r} was text, but the meaning of outputs is known "
                    f"only for the losses {CLASSES!r} and {YES_OR_NO!r}",
                    available=f"its classes: {listed(labels[encoded[0]])}",
                    hint="write predict(data, outputs=True) for the outputs of the model",
                )
        results = self._run(EvalPhase("predict", data=self._rows(data, with_target=False), outputs=self._node))
        values = results.predictions
        if not outputs:
            compared = {name: self._compared(name.partition(".")[2]) for name in values}
            values = {name: self._decoded(array, *compared[name]) for name, array in values.items()}
        return values[self._node] if self._node in values else {name.partition(".")[2]: values[name] for name in values}

    @property
    def classes_(self) -> np.ndarray:
        """Classes in the order of the columns of `predict_proba`: text, booleans or numbers, as in the target.

        Raises:
            DataError: The outputs are not classes.
        """
        loss, targets = self._only_classes("classes_")
        n_classes = 2
        if loss.name != YES_OR_NO:
            (name,) = self.graph.shapes.outputs[self._node]
            shape = (0, *self.graph.shapes.specs[name].shape)
            n_classes = shape[loss.kwargs.get("class_axis", -1)]
        return self._named_classes(np.arange(n_classes), targets, loss)

    def predict_proba(self, data: Any) -> np.ndarray:
        """Return class probabilities for new rows in float64, [n, classes], with columns in the order of `classes_`.

        For cross_entropy, it is the softmax of the outputs along their class axis. For binary_cross_entropy, it is the
        sigmoid: two columns for one output, [n, k] for k outputs.

        Args:
            data: Data as for `fit`; targets are optional.

        Raises:
            DataError, ColumnError: The outputs are not classes; or feature columns are missing or have wrong types or
                shapes.
        """
        loss, _ = self._only_classes("predict_proba")
        results = self._run(EvalPhase("predict", data=self._rows(data, with_target=False), outputs=self._node))
        values = results.prediction(self._node)
        self._warn_of_nan(values, "predict_proba", "probabilities")
        if loss.name == CLASSES:
            self._warn_of_probabilities(values, loss)
        return class_probabilities(values, loss)

    def score(self, data: Any) -> float:
        """Return the score of predictions as scikit-learn defines it: accuracy for classes, R2 for numbers.

        Each row counts once, regardless of its weight in training.

        Args:
            data: Data as for `fit`, with the target.

        Raises:
            DataError, ColumnError: The model has several outputs, or its loss does not define the meaning of the
                outputs; or columns are missing or have wrong types or shapes.
        """
        loss, targets = self._compared("")
        is_classes = loss is not None and loss.name in (CLASSES, YES_OR_NO)
        has_probabilities = loss is not None and loss.name == CLASSES and self._are_floats(targets)
        if len(self.losses) != 1 or loss is None or has_probabilities or not targets:
            raise DataError(
                "score measures a model with one named loss and one output, with classes or numbers as its target",
                hint="write evaluate(data, metrics=['accuracy']) with the metrics of your choice",
            )
        rows = self._rows(data)
        if not isinstance(rows, (str, Mapping)):
            problem = f"score measures rows of a table, but {shown(data)} is read in batches"
            raise DataError(problem, hint="write evaluate(data, metrics=['accuracy'])")
        view = self._data.split(rows) if isinstance(rows, str) else rows[self._label].view()
        results = self._run(EvalPhase("predict", data=rows, outputs=self._node))
        predicted = self._decoded(results.prediction(self._node), loss, targets)
        columns = [view.array(name).reshape(len(view), -1) for name in targets]
        joined = columns[0] if len(columns) == 1 else np.concatenate(columns, axis=1)
        actual = self._named_classes(joined.reshape(predicted.shape), targets, loss)
        score = accuracy(actual, predicted) if is_classes else float(r2(predicted, actual))
        self._warn_of_missing_targets("score", rows, [score])
        return score

    def _only_classes(self, what: str) -> tuple[Loss, Sequence[str]]:
        """Return the loss and the targets of a model whose only output is classes."""
        loss, targets = self._compared("")
        if len(self.losses) == 1 and loss is not None and loss.name in (CLASSES, YES_OR_NO):
            return loss, targets
        losses = [applied.loss.name for applied in self.losses]
        raise DataError(
            f"{what} needs outputs that are classes, but this model was trained with {listed(losses) or 'no loss'}",
            available=f"losses {CLASSES!r} and {YES_OR_NO!r}",
            hint="write predict(data), or predict(data, outputs=True) for the outputs of the model",
        )

    def _are_floats(self, targets: Sequence[str]) -> bool:
        return any("float" in self._data.spec(target).dtype for target in targets)

    def _named_classes(self, values: np.ndarray, targets: Sequence[str], loss: Loss | None) -> np.ndarray:
        """Return class indices as the names of their classes, and all values in the target's units."""
        original = self._data.inverse(values, targets) if targets else values
        were_booleans = bool(targets) and all(self._columns.get(name, {}).get("boolean") for name in targets)
        if loss is not None and loss.name == YES_OR_NO and were_booleans and np.isin(original, (0, 1)).all():
            return original.astype(bool)  # which were cast to floats for this loss
        return np.array(original.tolist()) if original.dtype == np.object_ else original

    def evaluate(self, data: Any, metrics: Any = ()) -> EvalResults:
        """Compute the loss and metrics over rows with targets, and return the results of an EvalPhase.

        Args:
            data: Data as for `fit`, with the target.
            metrics: Metrics to compute; see `EvalPhase`.

        Raises:
            DataError, ColumnError: Columns are missing or have wrong types or shapes.
            ArgumentError: `metrics` is an array.
        """
        if hasattr(metrics, "shape"):
            raise ArgumentError("evaluate: the metrics are an array", hint="pass x and y as a pair: (x, y)")
        losses = [loss for loss in self.losses if loss.loss.own is None]
        if self._treatment is not None:
            metrics = load_setting(SETTINGS, "fit.preprocess").metrics_in_units(metrics, self._data, losses)
        rows = self._rows(data)
        results = self._run(EvalPhase("evaluate", data=rows, metrics=metrics, losses=losses))
        self._warn_of_missing_targets("evaluate", rows, [*results.losses.values(), *results.metrics.values()])
        return results

    def _run(self, phase: EvalPhase, graph: ModelGraph | None = None) -> EvalResults:
        quiet = Experiment(self.experiment.label, graph or self.graph, progress="none")
        results: EvalResults = quiet.run_phase(phase)
        return results

    def _compared(self, output: str) -> tuple[Loss | None, tuple[str, ...]]:
        """Return the named loss of an output, or None for any other loss, and the targets that it compares."""
        for applied in self.losses:
            taken, _, name = applied.inputs[0].partition(".")
            if taken == "outputs" and name in ("", output):
                columns = [column.partition(".")[2].partition("@")[0] for column in applied.inputs[1:]]
                targets = [column for column in columns if column in self._data.targets]
                named = None if applied.loss.own is not None else applied.loss
                return named, tuple(targets) if "targets" not in applied.inputs else self._data.targets
        return None, () if output and self.losses else self._data.targets

    def _decoded(self, values: np.ndarray, loss: Loss | None, targets: Sequence[str]) -> np.ndarray:
        """Return classes instead of scores, and all values in the units of the data before their transforms."""
        name = None if loss is None else loss.name
        if name in (CLASSES, YES_OR_NO):
            self._warn_of_nan(values, "predict", "classes")
        if loss is not None and name == CLASSES and values.ndim > 1:
            self._warn_of_probabilities(values, loss)
            values = values.argmax(axis=loss.kwargs.get("class_axis", -1))
            if self._are_floats(targets):  # one number per class
                return values
        elif name == YES_OR_NO:
            values = (values > 0).astype(np.int64)
        if all(self._data.spec(target).shape == () for target in targets) and values.size == len(values):
            values = values.reshape(len(values))
        return self._named_classes(values, targets, loss)

    def _warn_of_probabilities(self, outputs: np.ndarray, loss: Loss) -> None:
        """Warn of a model that ends in a softmax, because the loss and `predict_proba` compute another softmax."""
        warn_of_probabilities(self.model, AppliedLoss(loss, on=self._node), outputs)

    @staticmethod
    def _warn_of_nan(values: np.ndarray, call: str, what: str) -> None:
        """Warn of outputs that are NaN, which a decoded class would hide."""
        broken = np.isnan(values.reshape(len(values), -1)).any(axis=1)
        if broken.any():
            problem = f"{call}: the outputs are NaN in {int(broken.sum())} of {len(values)} rows, the first in row "
            problem += f"{int(broken.argmax())}; their {what} are meaningless. Hint: see predict(data, outputs=True)"
            warnings.warn(problem, NaNWarning, stacklevel=user_level())

    def _warn_of_missing_targets(self, call: str, rows: Any, figures: Sequence[float]) -> None:
        """Warn of targets that are NaN, if figures are NaN."""
        if not isinstance(rows, (str, Mapping)) or not np.isnan(figures).any():
            return
        view = self._data.split(rows) if isinstance(rows, str) else rows[self._label].view()
        for name in self._data.targets:
            values = view.array(name).reshape(len(view), -1)
            missing = np.isnan(values).any(axis=1) if values.dtype.kind == "f" else np.zeros(len(view), bool)
            if missing.any():
                problem = f"{call}: the target {name!r} is NaN in {int(missing.sum())} of {len(view)} rows, the first "
                problem += f"in row {int(missing.argmax())}, so its figures are NaN. Hint: leave these rows out "
                problem += f"(pandas: table.dropna(subset=[{name!r}]))"
                warnings.warn(problem, NaNWarning, stacklevel=user_level())

    # -- rows ------------------------------------------------------------------------------------------------------

    def _rows(self, data: Any, *, with_target: bool = True) -> Any:
        """Return new rows in the form that the graph takes."""
        if isinstance(data, str) and data in (*self._data.splits, "all"):
            return data
        data = readable(data)
        if isinstance(data, list) and data and isinstance(data[0], (list, Real)):
            inner = data[0]
            while isinstance(inner, list) and inner:
                inner = inner[0]
            if isinstance(inner, Real):  # otherwise batches
                try:
                    data = np.asarray(data)
                except ValueError as error:
                    problem = "the rows of a list differ in length"
                    raise DataError(problem, hint="pass rows with one number for each feature") from error
        check_named(data, self._data.splits)
        if not isinstance(data, (FeatureSet, FeatureSetView)):
            if not is_table(data) and not hasattr(data, "shape"):
                if self._treatment is not None and not with_target:
                    problem = (
                        f"the model was trained on a table with {listed(self._columns)}, but {shown(data)} is not a "
                        "table"
                    )
                    raise DataError(problem, hint="pass a data frame, a list of rows, or the path of a file")
                source = None if with_target else as_source(self._label, data, self._data, with_target=False)
                return data if source is None else {self._label: source}  # which a phase reads
            data = new_rows(data, self._columns, with_target=with_target)
        return {self._label: transformed_like(data, self._data)}

    # -- folders ---------------------------------------------------------------------------------------------------

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the model, all that predictions need, and the results of the training into a folder for `load`.

        Args:
            folder: Folder to write; see `ModelGraph.save`.

        Raises:
            ConfigError, StateError: See `ModelGraph.save`.
        """
        loss = None if self.loss is None else self.loss.get_config()
        runs = [run for run in self.experiment.history if isinstance(run, TrainResults)]
        results = [results_parts(run, {}) for run in runs]  # these have no arrays
        part = {"loss": loss, "columns": self._columns, "results": results}
        if len(self.losses) > 1 or any(applied.inputs != ("outputs", "targets") for applied in self.losses):
            part["losses"] = losses = []
            for applied in self.losses:
                values = {"loss": None, "on": applied.on or None, "inputs": list(applied.inputs)}
                values["label"] = applied.label or None
                losses.append(values if applied.loss.own is not None else applied.get_config())
        self.graph.save(folder, extra={PART: part})


def check_named(data: Any, splits: Iterable[str]) -> None:
    """Refuse a text that names neither a split nor a file.

    Raises:
        DataError: No such split or file exists.
    """
    is_name = isinstance(data, str) and not Path(data).suffix and not Path(data).expanduser().exists()
    if is_name and "://" not in data:
        raise DataError(
            f"{shown(data)} is neither a split of the data nor a file",
            available=listed(map(repr, (*splits, "all"))),
            hint=did_you_mean(data, (*splits, "all"), "pass a data frame, a list of rows, or the path of a file"),
        )


@call_hints
def load(
    folder: str | os.PathLike[str],
    *,
    models: Mapping[str, Any] | None = None,
    feature_sets: Iterable[Any] = (),
    optimizer: Any = None,
    allow: Iterable[type] = (),
    names: Names = None,
    change: Change | None = None,
    strict: bool = True,
) -> FittedModel:
    """Load the model that `FittedModel.save` wrote, ready to predict. No code of the folder is run.

    >>> import numpy as np
    >>> from anyaccel import SequentialMLP, fit, load
    >>> x = np.linspace(-1, 1, 64, dtype="float32").reshape(-1, 1)
    >>> fitted = fit(SequentialMLP(), {"x": x, "y": 3 * x[:, 0]}, target="y", epochs=2, progress="none")
    >>> fitted.save("line")
    >>> bool((load("line").predict({"x": x}) == fitted.predict({"x": x})).all())
    True

    Args:
        folder: Folder that `save` wrote, or its URL.
        models: `{"model": net}` with the model, built as for `fit`; not needed for a model with a registered name.
        feature_sets: FeatureSet that was passed to `fit`, if its transforms cannot be read; see `ModelGraph.load`.
        optimizer: Optimizer to continue training with. A framework's own optimizer is not saved: pass it again, or
            leave it out to predict only.
        allow: Additional classes of models and transforms that the folder may name; registered ones are always allowed.
        names, change, strict: Settings for a model of another framework, or one that has changed; see
            `ModelGraph.load`.

    Raises:
        ConfigError: The folder was not written by `save`, or the model must be passed.
        StateError: A file was changed or is incomplete, or the model is not like the saved one.
    """
    part = saved_folder.part(folder, PART)
    if not isinstance(part, Mapping) or not isinstance(part.get("columns"), Mapping):
        problem = f"{str(folder)!r} has {shown(part)} instead of the data of FittedModel.save"
        raise ConfigError(problem, hint="pass the folder that save() wrote")
    for kind, read in extensions("fitted_models"):
        if kind in part:
            fitted: FittedModel = read(
                folder, part, models=models, optimizer=optimizer, allow=allow, names=names, change=change, strict=strict
            )
            return fitted
    objects: dict[str, Any] = {"models": models, "feature_sets": feature_sets, "optimizer": optimizer, "allow": allow}
    graph = load_to_predict(folder, **objects, names=names, change=change, strict=strict)
    loss = None if part.get("loss") is None else Loss.from_config(part["loss"])
    experiment = Experiment("fit", graph)
    results = part.get("results", ())
    if not isinstance(results, (list, tuple)):
        problem = f"{str(folder)!r} has {shown(results)} instead of results"
        raise ConfigError(problem, hint="pass the folder that save() wrote")
    runs: Iterable[Any] = (read_results(run, {}) for run in results)
    experiment.history.extend(runs)

    def not_saved(*inputs: Any) -> Any:
        problem = "the loss was not saved because it has no name"
        raise ConfigError(problem, hint="pass the loss: AppliedLoss(LOSS, on='model')")

    losses = []
    for config in part.get("losses", ()):
        losses.append(
            AppliedLoss.from_config(config) if config["loss"] else AppliedLoss(**{**config, "loss": not_saved})
        )
    return FittedModel(experiment, None if losses else loss, part["columns"], losses=losses)
