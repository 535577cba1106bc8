"""FittedModel: what `fit` returns and `load` reads: predictions for new tables, and a folder."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from anyaccel import arguments
from anyaccel.arguments import shown
from anyaccel.data import FeatureSet, FeatureSetView
from anyaccel.errors import ConfigError, DataError, ResultError
from anyaccel.experiment import Experiment
from anyaccel.fitting.tables import columns_before_transforms, feature_set_of, is_table, transformed_like
from anyaccel.graph import AppliedLoss, ModelGraph, Plan, saved_folder
from anyaccel.phases import EvalPhase
from anyaccel.results import EvalResults, TrainResults
from anyaccel.specs import Loss

_PART = "fit"
_CLASSES, _YES_OR_NO = "cross_entropy", "binary_cross_entropy"


class FittedModel:
    """A trained model with its graph, which knows the transforms of its data. Made by `fit` and `load`.

    Args:
        experiment: over a graph with one output node and one feature set.
        loss: the named loss that it was trained with, which says what its outputs mean; None for another.
        columns: role and dtype of the columns that features and targets are made of, before all transforms; None for
            those of the graph's data, which then have their rows.

    Attributes:
        experiment: with the results of everything that was run.
        loss: as given.
    """

    def __init__(
        self, experiment: Experiment, loss: Loss | None = None, columns: Mapping[str, Mapping[str, Any]] | None = None
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
        self.experiment, self.loss = experiment, loss
        (self._node,), ((self._label, self._data),) = graph.output_nodes, graph.feature_sets.items()
        self._columns = columns_before_transforms(self._data) if columns is None else columns

    def __repr__(self) -> str:
        runs = [results for results in self.experiment.history if isinstance(results, TrainResults)]
        return f"FittedModel({runs[-1]!r})" if runs else f"FittedModel({self.graph!r})"

    @property
    def graph(self) -> ModelGraph:
        """The graph, with the model as its node."""
        return self.experiment.graph

    @property
    def results(self) -> TrainResults:
        """Results of the training: `loss`, `figure("val_loss")`, `stop_reason`, ...

        Raises:
            ResultError: it was loaded, and not trained since.
        """
        for results in reversed(self.experiment.history):
            if isinstance(results, TrainResults):
                return results
        raise ResultError("this model was not trained here", hint="results are of the process that trained it")

    @property
    def plan(self) -> Plan | None:
        """Where the training ran, and what was loaded there.

        Raises:
            ResultError: as `results`.
        """
        return self.results.plan

    def plot(self, *figures: str, ax: Any = None) -> Any:
        """Plot values over the epochs, by default the losses; see `TrainResults.plot`.

        Raises:
            ResultError: no epoch has a value of this name, or matplotlib is not installed.
        """
        names = [arguments.text(ResultError, "plot: ", "figure", figure, "a name", "'val_loss'") for figure in figures]
        return self.results.plot(*names, ax=ax)

    def predict(self, data: Any, *, outputs: bool = False) -> np.ndarray:
        """Predictions for new rows, in their order.

        Args:
            data: as for `fit`; targets need not be there.
            outputs: return what the model gives (logits), and nothing decoded.

        Returns:
            for cross_entropy and binary_cross_entropy classes [n], as text if the targets were; else values in the
            original units of the target, [n, *shape].

        Raises:
            DataError, ColumnError: columns of the features are missing, or do not fit.
        """
        arguments.flag(DataError, "predict: ", "outputs", outputs)
        results = self._run(EvalPhase("predict", data=self._rows(data, with_target=False), outputs=self._node))
        values: np.ndarray = results.prediction(self._node)
        return values if outputs else self._decoded(values)

    def evaluate(self, data: Any, metrics: Any = ()) -> EvalResults:
        """Loss and metrics over rows with targets, as results of an EvalPhase.

        Args:
            data: as for `fit`, with the target.
            metrics: as of an EvalPhase.

        Raises:
            DataError, ColumnError: columns are missing, or do not fit.
        """
        losses = [] if self.loss is None else [AppliedLoss(self.loss)]
        return self._run(EvalPhase("evaluate", data=self._rows(data), metrics=metrics, losses=losses))

    def _run(self, phase: EvalPhase) -> EvalResults:
        quiet = Experiment(self.experiment.label, self.graph, progress="none")
        results: EvalResults = quiet.run_phase(phase)
        return results

    def _decoded(self, values: np.ndarray) -> np.ndarray:
        """Classes in place of scores, and everything in the units of the data before their transforms."""
        name, targets = None if self.loss is None else self.loss.name, self._data.targets
        if name == _CLASSES and values.ndim > 1:
            values = values.argmax(axis=-1)
            if any("float" in self._data.spec(target).dtype for target in targets):  # one number for each class
                return values
        elif name == _YES_OR_NO:
            values = (values > 0).astype(np.int64)
        if all(self._data.spec(target).shape == () for target in targets) and values.size == len(values):
            values = values.reshape(len(values))
        original = self._data.inverse(values, targets) if targets else values
        return np.array(original.tolist()) if original.dtype == np.object_ else original

    # -- rows ------------------------------------------------------------------------------------------------------

    def _rows(self, data: Any, *, with_target: bool = True) -> Any:
        """New rows in the form in which the graph takes them."""
        if isinstance(data, str) and data in (*self._data.splits, "all"):
            return data
        base = data.feature_set if isinstance(data, FeatureSetView) else data
        if isinstance(base, FeatureSet) and (base.transforms or not self._data.transforms):
            return {self._label: data}
        if isinstance(data, FeatureSetView):
            data = FeatureSet.from_arrow(data.label, data.to_arrow())
        if not isinstance(data, FeatureSet):
            if not is_table(data) and not hasattr(data, "shape"):
                return data  # a source, which a phase reads
            data = self._feature_set(data, with_target)
        return {self._label: transformed_like(data, self._data)}

    def _feature_set(self, data: Any, with_target: bool) -> FeatureSet:
        columns = self._columns
        features = [name for name, column in columns.items() if column["role"] == "feature"]
        if hasattr(data, "shape") and not is_table(data):
            if len(features) != 1:
                raise DataError(
                    f"an array of shape {list(data.shape)} has no names",
                    available=", ".join(features),
                    hint="give a data frame or a dict of arrays with these columns",
                )
            data = {features[0]: data}
        others = {
            role: [name for name, column in columns.items() if column["role"] == role] for role in ("tag", "target")
        }
        if isinstance(data, tuple) and not with_target:
            data = data[0] if hasattr(data[0], "columns") else {features[0]: data[0]}
        table = feature_set_of(data, features, others["target"] if with_target else (), others["tag"])
        dtypes = {name: columns[name]["dtype"] for name in table.columns if columns[name].get("dtype")}
        return table.cast({name: dtype for name, dtype in dtypes.items() if table.spec(name).dtype != dtype})

    # -- folders ---------------------------------------------------------------------------------------------------

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write everything that predictions need into a folder, for `load`; see `ModelGraph.save`.

        Raises:
            ConfigError, StateError: as `ModelGraph.save`.
        """
        loss = None if self.loss is None else self.loss.get_config()
        self.graph.save(folder, extra={_PART: {"loss": loss, "columns": self._columns}})


def load(
    folder: str | os.PathLike[str],
    *,
    models: Mapping[str, Any] | None = None,
    optimizer: Any = None,
    allow: Iterable[type] = (),
) -> FittedModel:
    """The model that `FittedModel.save` wrote, ready to predict; runs no code of the folder.

    Args:
        folder: that `save` wrote.
        models: `{"model": net}` with the model, built as it was for `fit`; not needed for one with a registered name.
        optimizer: needed if the saved one was a framework's own.
        allow: classes of models and transforms that the folder may name besides those that are registered.

    Raises:
        ConfigError: not such a folder, or the model must be given.
        StateError: a file was changed or is incomplete, or the model is not like the saved one.
    """
    part = saved_folder.part(folder, _PART)
    if not isinstance(part, Mapping) or not isinstance(part.get("columns"), Mapping):
        problem = f"{str(folder)!r} holds {shown(part)} in place of what FittedModel.save wrote"
        raise ConfigError(problem, hint="give the folder that save() wrote")
    graph = ModelGraph.load(folder, models=models, optimizer=optimizer, allow=allow)
    loss = None if part.get("loss") is None else Loss.from_config(part["loss"])
    return FittedModel(Experiment("fit", graph), loss, part["columns"])
