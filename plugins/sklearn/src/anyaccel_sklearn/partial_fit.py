"""Estimator partial_fit: unfrozen estimators learn batch by batch during a TrainPhase, on the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anyaccel.data import Reference, Rows, joined_array
from anyaccel.errors import EstimatorError, PhaseError
from anyaccel.graph import ModelGraph, topology
from anyaccel.graph.applied_loss import AppliedLoss
from anyaccel.graph.nodes import ColumnSelection
from anyaccel.graph.resolve import check_stream
from anyaccel.phases.executor.pipeline import ChunkRunner
from anyaccel.phases.learners import Learners, Learning
from anyaccel.phases.loading.epoch_plan import RowOrders, RowSpan, StepRange, StreamKey
from anyaccel.phases.loading.loader import Chunk
from anyaccel_sklearn.estimator_inputs import chosen_targets, estimators, inputs_of
from anyaccel_sklearn.estimators import Estimator, flat

SpanOf = Callable[[str], RowSpan | None]
ToHost = Callable[[str, Any], np.ndarray]


def learning_nodes(phase_label: str, losses: Sequence[AppliedLoss], graph: ModelGraph) -> list[str]:
    """Return `Learning.nodes` of the estimators that have `partial_fit` and are not frozen."""
    models = estimators(graph)
    labels = [label for label in graph.shapes.order if label in models and models[label].has_partial_fit]
    labels = [label for label in labels if label not in graph.frozen]
    for loss in losses:
        if loss.on in labels:
            raise PhaseError(
                f"phase {phase_label!r} has a loss on {loss.on!r}, which learns by partial_fit, not from a loss",
                hint=f"measure it in the validation: EvalPhase(..., metrics=[Metric('mse', on={loss.on!r})]), "
                "or freeze it",
            )
    for label in labels:
        before = topology.ancestors([label], graph.nodes) - {label}
        for other in labels:
            if other in before and not models[other].is_fitted:
                alone = f"graph.freeze({label!r}), train {other!r} in a separate phase"
                freeze = f"{alone}, then unfreeze the first and freeze the second"
                fit = f"run FitPhase('fit', data=..., nodes={other!r}) first, or {freeze}"
                raise PhaseError(
                    f"phase {phase_label!r}: {label!r} learns from the output of {other!r}, which has not learned yet",
                    hint=fit if models[other].has_fit else freeze,
                )
        for twin in _sharing(label, models):
            if graph[twin].upstreams != graph[label].upstreams or twin in graph.frozen:
                difference = "only one of them is frozen" if twin in graph.frozen else "their inputs differ"
                raise PhaseError(
                    f"phase {phase_label!r}: nodes {label!r} and {twin!r} share one estimator, but {difference}",
                    hint="freeze both or neither, and use the same inputs for both, or use a separate estimator for "
                    "each",
                )
    return labels


def _sharing(label: str, models: Mapping[str, Estimator]) -> list[str]:
    """Return the labels of all nodes that share this node's estimator."""
    return [other for other, model in models.items() if model.estimator is models[label].estimator]


@dataclass(frozen=True, slots=True)
class _Step:
    """A training step: its values on devices, the row orders, its rows, and a function that copies to the host."""

    values: Mapping[str, Any]
    orders: RowOrders
    span_of: SpanOf
    to_host: ToHost


@dataclass(frozen=True, slots=True)
class _HostColumn:
    """A column in host memory, [n, ...], and the stream that its rows are drawn from."""

    stream: StreamKey
    array: np.ndarray

    def of(self, step: _Step) -> np.ndarray | None:
        """Return the rows of a step; None if it has no rows of this feature set."""
        span = step.span_of(self.stream[0])
        return None if span is None else self.array[step.orders[self.stream][slice(*span)]]


@dataclass(frozen=True, slots=True)
class _NodeOutput:
    """A value of a node before an estimator."""

    name: str

    def of(self, step: _Step) -> np.ndarray | None:
        """Return the node's output in a step; None if the step had no rows for the node."""
        value = step.values[self.name]
        return None if value is None else np.asarray(step.to_host(self.name, value))


@dataclass(frozen=True, slots=True)
class _Learner:
    """One estimator, its inputs, and the models that share it.

    `classes` are all classes of the phase, if the estimator requires them.
    """

    label: str
    models: tuple[Estimator, ...]
    inputs: tuple[_HostColumn | _NodeOutput, ...]
    targets: _HostColumn | None
    classes: Any

    def learn(self, step: _Step) -> None:
        """Train on a step, if it has the required values."""
        inputs = [array for source in self.inputs if (array := source.of(step)) is not None]
        targets = None if self.targets is None else self.targets.of(step)
        if len(inputs) < len(self.inputs) or (self.targets is not None and targets is None):
            return
        try:
            self.models[0].partial_fit(inputs, targets, self.classes)
        except Exception as error:
            error.add_note(f"while node {self.label!r} learned by partial_fit from a batch of {len(inputs[0])}")
            raise
        for model in self.models[1:]:
            model.partially_fitted = True
            model.mark_fitted(self.models[0])


class PartialFitEstimators(Learners):
    """The estimators that learn in one phase, all on the host.

    Args:
        labels: Labels of their nodes; see `learning_nodes`.
        graph: Graph of the nodes.
        rows: Data of the phase, by feature set.
        streams: Names of the streams of each feature set's sampler.

    Raises:
        SamplerError, EstimatorError: An estimator cannot learn from these data.
    """

    def __init__(
        self, labels: Sequence[str], graph: ModelGraph, rows: Mapping[str, Rows], streams: Mapping[str, Sequence[str]]
    ) -> None:
        self.labels = tuple(labels)
        self._graph = graph
        self._models = estimators(graph)
        self._orders: RowOrders = {}
        first = {id(self._models[label].estimator): label for label in reversed(self.labels)}
        self._learners = [self._learner(label, rows, streams) for label in self.labels if label in first.values()]

    @property
    def upstreams(self) -> list[str]:
        return topology.upstream_nodes(self.labels, self._graph.nodes)

    def _learner(self, label: str, rows: Mapping[str, Rows], streams: Mapping[str, Sequence[str]]) -> _Learner:
        def host_column(chosen: ColumnSelection) -> _HostColumn:
            name = chosen.feature_set.label
            check_stream(chosen.stream or "", name, streams.get(name, ()))
            return _HostColumn((name, chosen.stream or ""), joined_array(rows[name], chosen.names))

        chosen = chosen_targets(label, self._graph)
        targets = None if chosen is None else host_column(chosen)
        others = [self._models[other] for other in _sharing(label, self._models) if other != label]
        inputs: list[_HostColumn | _NodeOutput] = []
        for upstream in self._graph[label].upstreams:
            if isinstance(upstream, Reference):
                inputs.append(host_column(ColumnSelection(upstream.feature_set, upstream.features, upstream.stream)))
            else:
                names = (upstream,) if "." in upstream else self._graph.shapes.outputs[upstream]
                inputs += [_NodeOutput(name) for name in names]
        model = self._models[label]
        return _Learner(label, (model, *others), tuple(inputs), targets, _classes(label, model, targets))

    def before_steps(self, chunk: Chunk, runner: ChunkRunner, steps: StepRange) -> None:
        """Use the row orders of a chunk from now on, in host memory."""
        self._orders = chunk.host_orders

    def step(self, values: Mapping[str, Any], span_of: SpanOf, to_host: ToHost) -> None:
        step = _Step(values, self._orders, span_of, to_host)
        for learner in self._learners:
            learner.learn(step)

    def predict(self, label: str, outputs: Mapping[str, np.ndarray], rows: Mapping[str, Rows]) -> np.ndarray:
        return self._models[label].compute(inputs_of(label, self._graph, outputs, rows))

    def snapshot(self) -> list[Any]:
        """Return copies of the estimators.

        Raises:
            EstimatorError: An estimator cannot be copied.
        """
        return [learner.models[0].snapshot() for learner in self._learners]

    def restore(self, snapshot: Sequence[Any]) -> None:
        for learner, state in zip(self._learners, snapshot, strict=True):
            learner.models[0].restore(state)
            for model in learner.models[1:]:
                model.estimator = learner.models[0].estimator


def _classes(label: str, model: Estimator, targets: _HostColumn | None) -> Any:
    """Return all classes of the phase, for an estimator that requires them and does not know them yet.

    Raises:
        EstimatorError: The estimator knows other classes.
    """
    if targets is None or not model.takes_classes:
        return None
    values = flat(targets.array)
    classes = [np.unique(column) for column in values.T] if values.ndim > 1 else [np.unique(values)]
    fitted_classes = getattr(model.estimator, "classes_", None)
    if fitted_classes is None:
        return classes if values.ndim > 1 else classes[0]
    if values.ndim > 1:
        return None
    unknown = [value for value in classes[0].tolist() if value not in list(fitted_classes)]
    if unknown:
        raise EstimatorError(
            f"node {label!r}: {model.name} does not know the class {unknown[0]!r}, which is in the targets",
            available=", ".join(map(str, fitted_classes)),
            hint="fit it again from the start, with a new estimator or in a FitPhase over all classes",
        )
    return None


class _PartialFit(Learning):
    nodes = staticmethod(learning_nodes)
    learners = PartialFitEstimators


PARTIAL_FIT = _PartialFit()
"""Lets estimators learn by `partial_fit` in a TrainPhase."""
