"""FittedModelLoss: the result of `fit` for a model that computes its own loss."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from anyaccel import arguments
from anyaccel.arguments import shown
from anyaccel.call_hints import class_hints
from anyaccel.data import FeatureSet
from anyaccel.data.roles import listed
from anyaccel.distributions import MODEL_LIBRARIES, load
from anyaccel.errors import ConfigError, DataError
from anyaccel.experiment import Experiment
from anyaccel.extensions import extend
from anyaccel.fitting.fitted_model import PART, FittedModel, check_named
from anyaccel.fitting.labelled_data import InputColumns, rows_for
from anyaccel.fitting.model_loss import ModelLoss, library_of
from anyaccel.fitting.probabilities import accuracy, class_probabilities
from anyaccel.fitting.table_columns import TableColumn, TableColumns
from anyaccel.graph import ModelGraph, ModelNode
from anyaccel.graph.graph import load_to_predict
from anyaccel.phases import EvalPhase, TrainPhase
from anyaccel.results import EvalResults, TrainResults
from anyaccel.results.base import read_results, results_parts
from anyaccel.specs import Loss


@class_hints
class FittedModelLoss(FittedModel):
    """A trained model that computes its own loss, with its graph. `fit` and `load` create it.

    Args:
        experiment: Experiment over a graph with one node and one feature set.
        rules: How to train and evaluate such a model.
        phase: Phase that trained the model; None for a loaded model.
        inputs: Column of each argument of the model.

    Attributes:
        experiment: Experiment with the results of all runs.
        inputs: Column of each argument of the model.
    """

    attribute_hints: ClassVar[Mapping[str, str]] = {
        **FittedModel.attribute_hints,
        "save_pretrained push_to_hub": "write fitted.model.save_pretrained('FOLDER')",
    }

    def __init__(
        self, experiment: Experiment, rules: ModelLoss, inputs: InputColumns, phase: TrainPhase | None = None
    ) -> None:
        roles = {name: {"role": "feature"} for name in inputs.inputs.values()}
        roles |= {name: {"role": "target"} for name in inputs.labels.values()}
        super().__init__(experiment, None, roles, phase=phase)
        self._rules, self.inputs = rules, inputs

    @property
    def model(self) -> Any:
        """The trained model itself."""
        return self._rules.model

    @property
    def columns(self) -> TableColumns:
        """Input that the model receives from each column, and the padding value of shorter rows."""
        arguments = [(argument, name, "label") for argument, name in self.inputs.labels.items()]
        arguments = [*((argument, name, "input") for argument, name in self.inputs.inputs.items()), *arguments]
        columns = []
        for argument, name, kind in arguments:
            treatment = f"given as {argument!r}"
            if argument in self._rules.pads:
                treatment += f", {self._rules.pads[argument]} after the shorter rows of a batch"
            columns.append(TableColumn(name, kind, treatment))
        return TableColumns(columns)

    @property
    def classes_(self) -> np.ndarray:
        """Classes of a classifier, as returned by `predict`, in the order of `predict_proba`.

        Raises:
            PhaseError: The model does not declare itself a classifier.
        """
        return self._rules.classes()

    def predict_proba(self, data: Any) -> np.ndarray:
        """Return class probabilities of a classifier for new rows, [n, classes].

        Args:
            data: Data as for `predict`.

        Raises:
            PhaseError: The model does not declare itself a classifier.
            DataError, ColumnError: See `predict`.
        """
        self._rules.classes()
        return class_probabilities(self.predict(data, outputs=True), Loss("cross_entropy"))

    def score(self, data: Any) -> float:
        """Return the accuracy of a classifier.

        Args:
            data: Data as for `fit`, with labels; not a source of batches.

        Raises:
            PhaseError: The model does not declare itself a classifier.
            DataError, ColumnError: See `predict`.
        """
        classes = self._rules.classes()
        rows, _, _ = rows_for(self._rules, self.inputs, self._chosen(data), self._node, with_labels=True)
        if not isinstance(rows, FeatureSet):
            problem = f"score measures rows of a table, but {shown(data)} is read in batches"
            raise DataError(problem, hint="write evaluate(data, metrics=['accuracy'])")
        labels = rows.array(next(iter(self.inputs.labels)))
        return accuracy(classes[labels.reshape(-1)], self.predict(data))

    def predict(self, data: Any, *, outputs: bool = False) -> Any:
        """Return predictions for new rows, in their order; labels are optional.

        Args:
            data: Data as for `fit`.
            outputs: Whether to return the model's outputs (logits) without decoding.

        Returns:
            For a classifier, class names or numbers [n], if its library defines the meaning of its outputs. Otherwise
            the model's output [n, *shape], or a dict of outputs by name if it returns several arrays. Rows that are
            shorter than others are padded with NaN.

        Raises:
            DataError, ColumnError: Input columns are missing or have wrong types or shapes.
        """
        arguments.flag(DataError, "predict: ", "outputs", outputs)
        self._rules.check_prediction()
        rows, references, _ = rows_for(self._rules, self.inputs, self._chosen(data), self._node, with_labels=False)
        graph = ModelGraph([ModelNode(self._node, self.model, references)])
        results = self._run(EvalPhase("predict", data=self._data_of(rows), outputs=self._node), graph)
        values = self._rules.outputs(results, graph.shapes.outputs[self._node])
        values = _without_padding(values, rows)
        return values if outputs else self._rules.decoded(values)

    def evaluate(self, data: Any, metrics: Any = ()) -> EvalResults:
        """Compute the model's loss and metrics over rows with labels, and return the results of an EvalPhase.

        The loss is the mean over all labels that count, or over all rows, regardless of the batches.

        Args:
            data: Data as for `fit`, with labels.
            metrics: Metrics to compute; see `EvalPhase`.

        Raises:
            DataError, ColumnError: Columns are missing or have wrong types or shapes.
            PhaseError: Metrics compare other labels than the loss does.
        """
        self._rules.check_metrics(metrics)
        rows, references, loss = rows_for(self._rules, self.inputs, self._chosen(data), self._node, with_labels=True)
        graph = ModelGraph([ModelNode(self._node, self.model, references)])
        phase = EvalPhase("evaluate", data=self._data_of(rows), metrics=metrics, losses=[loss])
        return self._run(phase, graph)

    def _chosen(self, data: Any) -> Any:
        """Return the rows of a split by its name; anything else unchanged."""
        if isinstance(data, str) and data in (*self._data.splits, "all"):
            return self._data if data == "all" else self._data[data]
        if isinstance(data, str) and data not in self._data.splits and " " in data:
            columns = [*self.inputs.inputs.values()]
            raise DataError(
                f"{shown(data)} is text, but {self._rules.name} takes {listed(map(repr, columns))}",
                hint=f"pass the numbers of its tokenizer by column: {{{columns[0]!r}: [...]}}",
            )
        check_named(data, self._data.splits)
        return data

    @staticmethod
    def _data_of(rows: Any) -> Any:
        return "all" if isinstance(rows, FeatureSet) else rows

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the model, all that predictions need, and the results of the training into a folder for `load`.

        Args:
            folder: Folder to write; see `ModelGraph.save`.

        Raises:
            ConfigError, StateError: See `ModelGraph.save`.
        """
        runs = [run for run in self.experiment.history if isinstance(run, TrainResults)]
        package, _ = library_of(self.model)
        part = {
            "inputs": dict(self.inputs.inputs),
            "labels": dict(self.inputs.labels),
            "package": package,
            "model": self._rules.get_config(),
        }
        results = [results_parts(run, {}) for run in runs]  # these have no arrays
        self.graph.save(folder, extra={PART: {"model_loss": part, "columns": {}, "results": results}})


def load_model_loss(folder: Any, part: Mapping[str, Any], *, models: Any, **settings: Any) -> FittedModelLoss:
    """Load the model that `FittedModelLoss.save` wrote; see `load`.

    Raises:
        ConfigError, StateError: See `load`.
    """
    saved = part["model_loss"]
    config = saved.get("model", {})
    if models is None and config:
        library = load(MODEL_LIBRARIES, saved["package"])
        if library is None:
            raise ConfigError(
                f"{str(folder)!r} contains a model of {saved['package']}, but no installed distribution supports it",
                hint="pass the model: load(folder, models={'model': model})",
            )
        models = {"model": library.built(config)}
    graph = load_to_predict(folder, models=models, **settings)
    (node,) = graph.output_nodes
    model = graph.nodes[node].model  # type: ignore[union-attr]  # the node of a model
    _, library = library_of(model)
    experiment = Experiment("fit", graph)
    experiment.history.extend(read_results(run, {}) for run in part.get("results", ()))
    inputs = InputColumns(saved["inputs"], saved["labels"])
    return FittedModelLoss(experiment, (library or ModelLoss)(model), inputs)


extend("fitted_models", ("model_loss", load_model_loss))


def _without_padding(values: Any, rows: Any) -> Any:
    """Return outputs with NaN in the padding of each row, if their length equals the longest row."""
    if not isinstance(rows, FeatureSet):
        return values
    if isinstance(values, dict):
        return {name: _without_padding(value, rows) for name, value in values.items()}
    ragged = [column for name in rows.features if (column := rows.ragged_column(name)) is not None]
    if ragged and values.ndim > 1 and values.dtype.kind == "f" and values.shape[1] == ragged[0].lengths.max():
        behind = np.arange(values.shape[1]) >= ragged[0].lengths[:, None]
        values = values.copy()
        values[behind] = np.nan
    return values
