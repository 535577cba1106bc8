"""FittedModel: what `fit` returns and `load` reads: predictions for new tables, and a folder."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from anyaccel import arguments, saved_folder
from anyaccel.arguments import shown
from anyaccel.call_hints import call_hints, class_hints
from anyaccel.data import FeatureSet, FeatureSetView
from anyaccel.data.roles import listed
from anyaccel.errors import ConfigError, DataError, NaNWarning, ResultError
from anyaccel.experiment import Experiment
from anyaccel.extensions import extensions
from anyaccel.fitting import fitted_view
from anyaccel.fitting.probabilities import CLASSES, YES_OR_NO, accuracy, class_probabilities, r2
from anyaccel.fitting.scaled_targets import metrics_in_units
from anyaccel.fitting.table_columns import TableColumns
from anyaccel.fitting.tables import (
    Columns,
    columns_before_transforms,
    is_table,
    new_rows,
    transformed_like,
    treatment_in,
)
from anyaccel.fitting.written_code import Recipe, code_of_fit
from anyaccel.graph import AppliedLoss, ModelGraph, Plan
from anyaccel.graph.weight_loading import Change, Names
from anyaccel.html import Markup, guarded, line, page
from anyaccel.phases import EvalPhase, TrainPhase
from anyaccel.results import EvalResults, TrainResults
from anyaccel.results.base import read_results, results_parts
from anyaccel.specs import Loss
from anyaccel.user_level import user_level

PART = "fit"


@class_hints
class FittedModel:
    """A trained model with its graph, which knows the transforms of its data. Made by `fit` and `load`.

    Args:
        experiment: over a graph with one output node and one feature set.
        loss: the named loss that it was trained with, which says what its outputs mean; None for another.
        losses: in place of it, those of a model with several outputs or targets.
        phase: that trained it; None for one that was loaded.
        recipe: how its data were read, for `code`.
        columns: role and dtype of the columns that features and targets are made of, before all transforms; None for
            those of the graph's data, which then have their rows.

    Attributes:
        experiment: with the results of everything that was run.
        loss: the named loss of a model with one; else None.
        losses: all that were given.
    """

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
                "feature sets, and not one of each",
                hint="use the graph itself: ModelGraph.load(folder), EvalPhase",
            )
        self.losses = tuple(losses) if loss is None else (AppliedLoss(loss),)
        only = self.losses[0].loss if len(self.losses) == 1 else None
        self.experiment, self.loss = experiment, None if only is None or only.own is not None else only
        self._phase, self._recipe = phase, recipe or Recipe()
        (self._node,), ((self._label, self._data),) = graph.output_nodes, graph.feature_sets.items()
        self._columns = columns_before_transforms(self._data) if columns is None else columns

    def __repr__(self) -> str:
        """Figures of the last and the best epoch, columns, devices, and code to go on with."""
        if not any(isinstance(results, TrainResults) for results in self.experiment.history):
            return f"FittedModel({self.graph!r})"
        steps = fitted_view.next_steps(self._columns, self._phase is None)
        columns = fitted_view.columns_of(self._columns, self._is_treated)
        return fitted_view.text_of(self.results, fitted_view.facts_of(self.results), columns, steps)

    def _repr_html_(self) -> str:
        if not any(isinstance(results, TrainResults) for results in self.experiment.history):
            return guarded(self, lambda: page("FittedModel", self.graph.label, line("not trained yet")))
        steps = fitted_view.next_steps(self._columns, self._phase is None)
        columns = fitted_view.columns_of(self._columns, is_treated=False)
        made_of = Markup(self.columns._repr_html_()) if self._is_treated else columns
        return fitted_view.html_of(self, self.results, fitted_view.facts_of(self.results), made_of, steps)

    @property
    def _is_treated(self) -> bool:
        return any(treatment_in(fitted) is not None for fitted in self._data.transforms)

    @property
    def graph(self) -> ModelGraph:
        """The graph, with the model as its node."""
        return self.experiment.graph

    @property
    def columns(self) -> TableColumns:
        """What became of each column of the table: its kind, its treatment, gaps and categories; it prints as a table.

        Raises:
            ResultError: the columns are numbers that the model takes as they are.
        """
        treatments = [made for made in map(treatment_in, self._data.transforms) if made is not None]
        if not treatments:
            problem = f"the columns {listed(self._columns)} were not treated: the model takes them as they are"
            raise ResultError(problem, hint="see graph for the data, and fit(..., preprocess=) for treatments")
        return TableColumns(treatments[-1].columns)

    @property
    def phase(self) -> TrainPhase:
        """The phase that trained it, with every setting that `fit` was given; run it again to train on.

        Raises:
            ResultError: the model was loaded, and not trained here.
        """
        if self._phase is None:
            raise ResultError("this model was loaded, and its phase was not", hint="run a phase: model.graph.run(...)")
        return self._phase

    def code(self) -> str:
        """The code that makes the same graph and phase by hand, and runs it: a way from `fit` to what lies behind it.

        What was given to `fit` is in it under its name: `data`, `model`, and whatever has no code, such as `callbacks`
        or a `loss` of your own. With the same of these it gives the same losses. The features of a table that `fit`
        treated are taken from the fitted model, as `fitted`.

        Raises:
            ResultError: the model was loaded, and not trained here.
        """
        return code_of_fit(self.graph, self.phase, self._recipe)

    @property
    def results(self) -> TrainResults:
        """Results of the training: `loss`, `figure("val_loss")`, `stop_reason`, ...

        Raises:
            ResultError: it was saved before it was trained.
        """
        for results in reversed(self.experiment.history):
            if isinstance(results, TrainResults):
                return results
        raise ResultError("this model was not trained here", hint="run a phase: model.experiment.run_phase(...)")

    @property
    def plan(self) -> Plan | None:
        """Where the training ran, what was loaded there, and what was made of each column of a table.

        Raises:
            ResultError: as `results`.
        """
        plan = self.results.plan
        treatments = [made for made in map(treatment_in, self._data.transforms) if made is not None]
        if plan is None or not treatments:
            return plan
        made = (f"column {column.name!r}: {column.kind}, {column.treatment}" for column in treatments[-1].columns)
        return replace(plan, notes=(*plan.notes, *made))

    def plot(self, *figures: str, ax: Any = None) -> Any:
        """Plot values over the epochs, by default the losses; see `TrainResults.plot`.

        Raises:
            ResultError: no epoch has a value of this name, or matplotlib is not installed.
        """
        names = [arguments.text(ResultError, "plot: ", "figure", figure, "a name", "'val_loss'") for figure in figures]
        return self.results.plot(*names, ax=ax)

    def predict(self, data: Any, *, outputs: bool = False) -> Any:
        """Predictions for new rows, in their order.

        Args:
            data: as for `fit`; targets need not be there.
            outputs: return what the model gives (logits), and nothing decoded.

        Returns:
            an array: for cross_entropy and binary_cross_entropy classes [n], as text if the targets were; else values
            in the original units of the target, [n, *shape]. A dict of arrays for a model with several outputs, each
            as the loss that takes it says.

        Raises:
            DataError, ColumnError: columns of the features are missing, or do not fit; or the targets were text and
                the loss is another one, whose outputs may mean anything.
        """
        arguments.flag(DataError, "predict: ", "outputs", outputs)
        for output in () if outputs else self._decoded_outputs():
            self._check_decodable(*self._compared(output))
        results = self._run(EvalPhase("predict", data=self._rows(data, with_target=False), outputs=self._node))
        values = results.predictions
        if not outputs:
            compared = {name: self._compared(name.partition(".")[2]) for name in values}
            values = {name: self._decoded(array, *compared[name]) for name, array in values.items()}
        return values[self._node] if self._node in values else {name.partition(".")[2]: values[name] for name in values}

    @property
    def classes_(self) -> np.ndarray:
        """The classes, in the order of the columns of `predict_proba`: text, booleans or numbers, as in the target.

        Raises:
            DataError: its outputs are no classes.
        """
        loss, targets = self._only_classes("classes_")
        return self._named_classes(np.arange(self._n_classes(loss)), targets)

    def predict_proba(self, data: Any) -> np.ndarray:
        """Probabilities of the classes for new rows, [n, classes], in float64; columns in the order of `classes_`.

        The softmax of the outputs for cross_entropy, along its axis of classes. For binary_cross_entropy the sigmoid,
        with two columns for one output, and [n, k] for k outputs.

        Args:
            data: as for `fit`; targets need not be there.

        Raises:
            DataError, ColumnError: its outputs are no classes; columns of the features are missing, or do not fit.
        """
        loss, _ = self._only_classes("predict_proba")
        results = self._run(EvalPhase("predict", data=self._rows(data, with_target=False), outputs=self._node))
        values = results.prediction(self._node)
        self._warn_of_nan(values, "predict_proba", "probabilities")
        return class_probabilities(values, loss)

    def score(self, data: Any) -> float:
        """How good predictions are for rows with their target: accuracy for classes, R2 for numbers, as scikit-learn.

        Each row counts once, whatever its weight in training.

        Args:
            data: as for `fit`, with the target.

        Raises:
            DataError, ColumnError: it has several outputs, or a loss of which it is not known what its outputs mean;
                columns are missing, or do not fit.
        """
        loss, targets = self._compared("")
        is_classes = loss is not None and loss.name in (CLASSES, YES_OR_NO)
        has_probabilities = loss is not None and loss.name == CLASSES and self._are_floats(targets)
        if len(self.losses) != 1 or loss is None or has_probabilities or not targets:
            raise DataError(
                "score measures a model with one named loss and one output, with classes or numbers as its target",
                hint="write evaluate(data, metrics=['accuracy']) with the metrics that you mean",
            )
        rows = self._rows(data)
        if not isinstance(rows, (str, Mapping)):
            problem = f"score measures rows of a table, and {shown(data)} is read in batches"
            raise DataError(problem, hint="write evaluate(data, metrics=['accuracy'])")
        view = self._data.split(rows) if isinstance(rows, str) else rows[self._label].view()
        results = self._run(EvalPhase("predict", data=rows, outputs=self._node))
        predicted = self._decoded(results.prediction(self._node), loss, targets)
        columns = [view.array(name).reshape(len(view), -1) for name in targets]
        joined = columns[0] if len(columns) == 1 else np.concatenate(columns, axis=1)
        actual = self._named_classes(joined.reshape(predicted.shape), targets)
        return accuracy(actual, predicted) if is_classes else r2(actual, predicted)

    def _only_classes(self, what: str) -> tuple[Loss, Sequence[str]]:
        """The loss and the targets of a model whose only output is classes."""
        loss, targets = self._compared("")
        if len(self.losses) == 1 and loss is not None and loss.name in (CLASSES, YES_OR_NO):
            return loss, targets
        losses = [applied.loss.name for applied in self.losses]
        raise DataError(
            f"{what} needs outputs that are classes, and this model was trained with {listed(losses) or 'no loss'}",
            available=f"losses {CLASSES!r} and {YES_OR_NO!r}",
            hint="write predict(data), or predict(data, outputs=True) for what the model gives",
        )

    def _n_classes(self, loss: Loss) -> int:
        if loss.name == YES_OR_NO:
            return 2
        (name,) = self.graph.shapes.outputs[self._node]
        shape = (0, *self.graph.shapes.specs[name].shape)
        return int(shape[loss.kwargs.get("class_axis", -1)])

    def _are_floats(self, targets: Sequence[str]) -> bool:
        return any("float" in self._data.spec(target).dtype for target in targets)

    def _named_classes(self, values: np.ndarray, targets: Sequence[str]) -> np.ndarray:
        """Numbers of classes by their names in the target, and everything in its units."""
        original = self._data.inverse(values, targets) if targets else values
        return np.array(original.tolist()) if original.dtype == np.object_ else original

    def evaluate(self, data: Any, metrics: Any = ()) -> EvalResults:
        """Loss and metrics over rows with targets, as results of an EvalPhase.

        Args:
            data: as for `fit`, with the target.
            metrics: as of an EvalPhase.

        Raises:
            DataError, ColumnError: columns are missing, or do not fit.
        """
        losses = [loss for loss in self.losses if loss.loss.own is None]
        measured = metrics_in_units(metrics, self._data)
        return self._run(EvalPhase("evaluate", data=self._rows(data), metrics=measured, losses=losses))

    def _run(self, phase: EvalPhase) -> EvalResults:
        quiet = Experiment(self.experiment.label, self.graph, progress="none")
        results: EvalResults = quiet.run_phase(phase)
        return results

    def _decoded_outputs(self) -> list[str]:
        """The outputs that losses take, `""` for the only one."""
        return [loss.inputs[0].partition(".")[2] for loss in self.losses] or [""]

    def _compared(self, output: str) -> tuple[Loss | None, tuple[str, ...]]:
        """The named loss that takes an output, None for another, and the targets with which it compares it."""
        for applied in self.losses:
            taken, _, name = applied.inputs[0].partition(".")
            if taken == "outputs" and name in ("", output):
                columns = [column.partition(".")[2].partition("@")[0] for column in applied.inputs[1:]]
                targets = [column for column in columns if column in self._data.targets]
                named = None if applied.loss.own is not None else applied.loss
                return named, tuple(targets) if "targets" not in applied.inputs else self._data.targets
        return None, () if output and self.losses else self._data.targets

    def _check_decodable(self, loss: Loss | None, targets: Sequence[str]) -> None:
        """Refuse outputs for a target that was text, where the loss does not say what they mean.

        Raises:
            DataError: such an output.
        """
        encoded = [it for it in self._data.transforms if it.class_labels and set(it.results) & set(targets)]
        if encoded and (loss is None or loss.name not in (CLASSES, YES_OR_NO)):
            raise DataError(
                f"the target {encoded[0].results[0]!r} was text, and what outputs mean is known of the losses "
                f"{CLASSES!r} and {YES_OR_NO!r} only",
                available=f"its classes: {listed(encoded[0].class_labels)}",
                hint="write predict(data, outputs=True) for what the model gives",
            )

    def _decoded(self, values: np.ndarray, loss: Loss | None, targets: Sequence[str]) -> np.ndarray:
        """Classes in place of scores, and everything in the units of the data before their transforms."""
        name = None if loss is None else loss.name
        if name in (CLASSES, YES_OR_NO):
            self._warn_of_nan(values, "predict", "classes")
        if loss is not None and name == CLASSES and values.ndim > 1:
            values = values.argmax(axis=loss.kwargs.get("class_axis", -1))
            if any("float" in self._data.spec(target).dtype for target in targets):  # one number for each class
                return values
        elif name == YES_OR_NO:
            values = (values > 0).astype(np.int64)
        if all(self._data.spec(target).shape == () for target in targets) and values.size == len(values):
            values = values.reshape(len(values))
        return self._named_classes(values, targets)

    @staticmethod
    def _warn_of_nan(values: np.ndarray, call: str, what: str) -> None:
        """Warn of outputs that are NaN: of a class one would not see that it was made of it."""
        broken = np.isnan(values.reshape(len(values), -1)).any(axis=1)
        if broken.any():
            problem = f"{call}: the outputs are NaN in {int(broken.sum())} of {len(values)} rows, the first in row "
            problem += f"{int(broken.argmax())}; {what} there mean nothing. Hint: see predict(data, outputs=True)"
            warnings.warn(problem, NaNWarning, stacklevel=user_level())

    # -- rows ------------------------------------------------------------------------------------------------------

    def _rows(self, data: Any, *, with_target: bool = True) -> Any:
        """New rows in the form in which the graph takes them."""
        if isinstance(data, str) and data in (*self._data.splits, "all"):
            return data
        if not isinstance(data, (FeatureSet, FeatureSetView)):
            if not is_table(data) and not hasattr(data, "shape"):
                return data  # a source, which a phase reads
            data = new_rows(data, self._columns, with_target=with_target)
        return {self._label: transformed_like(data, self._data)}

    # -- folders ---------------------------------------------------------------------------------------------------

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write everything that predictions need, and results of the training, into a folder for `load`.

        Args:
            folder: as of `ModelGraph.save`.

        Raises:
            ConfigError, StateError: as `ModelGraph.save`.
        """
        loss = None if self.loss is None else self.loss.get_config()
        runs = [run for run in self.experiment.history if isinstance(run, TrainResults)]
        results = [results_parts(run, {}) for run in runs]  # these have no arrays
        part = {"loss": loss, "columns": self._columns, "results": results}
        if len(self.losses) > 1 or any(applied.inputs != ("outputs", "targets") for applied in self.losses):
            part["losses"] = [_loss_config(applied) for applied in self.losses]
        self.graph.save(folder, extra={PART: part})


def _loss_config(applied: AppliedLoss) -> dict[str, Any]:
    """An applied loss as plain data; of a loss that has no name, what it compares."""
    if applied.loss.own is None:
        return applied.get_config()
    return {"loss": None, "on": applied.on or None, "inputs": list(applied.inputs), "label": applied.label or None}


def _read_loss(config: Mapping[str, Any]) -> AppliedLoss:
    return AppliedLoss.from_config(config) if config["loss"] else AppliedLoss(**{**config, "loss": _not_saved})


def _not_saved(*inputs: Any) -> Any:
    """Stands for a loss of the user's own in a model that was loaded.

    Raises:
        ConfigError: always.
    """
    raise ConfigError("the loss was not saved, it has no name", hint="give the loss: AppliedLoss(LOSS, on='model')")


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
    """The model that `FittedModel.save` wrote, ready to predict; runs no code of the folder.

    Args:
        folder: that `save` wrote, or its URL.
        models: `{"model": net}` with the model, built as it was for `fit`; not needed for one with a registered name.
        feature_sets: the FeatureSet that `fit` was given, for one whose transforms cannot be read; see
            `ModelGraph.load`.
        optimizer: needed if the saved one was a framework's own.
        allow: classes of models and transforms that the folder may name besides those that are registered.
        names, change, strict: for a model of another framework, or one that has changed; see `ModelGraph.load`.

    Raises:
        ConfigError: not such a folder, or the model must be given.
        StateError: a file was changed or is incomplete, or the model is not like the saved one.
    """
    part = saved_folder.part(folder, PART)
    if not isinstance(part, Mapping) or not isinstance(part.get("columns"), Mapping):
        problem = f"{str(folder)!r} holds {shown(part)} in place of what FittedModel.save wrote"
        raise ConfigError(problem, hint="give the folder that save() wrote")
    for kind, read in extensions("fitted_models"):
        if kind in part:
            fitted: FittedModel = read(
                folder, part, models=models, optimizer=optimizer, allow=allow, names=names, change=change, strict=strict
            )
            return fitted
    given: dict[str, Any] = {"models": models, "feature_sets": feature_sets, "optimizer": optimizer, "allow": allow}
    graph = ModelGraph.load(folder, **given, names=names, change=change, strict=strict)
    loss = None if part.get("loss") is None else Loss.from_config(part["loss"])
    experiment = Experiment("fit", graph)
    results = part.get("results", ())
    if not isinstance(results, (list, tuple)):
        problem = f"{str(folder)!r} holds {shown(results)} in place of results"
        raise ConfigError(problem, hint="give the folder that save() wrote")
    runs: Iterable[Any] = (read_results(run, {}) for run in results)
    experiment.history.extend(runs)
    losses = [_read_loss(config) for config in part.get("losses", ())]
    return FittedModel(experiment, None if losses else loss, part["columns"], losses=losses)
