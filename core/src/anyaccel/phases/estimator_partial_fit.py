"""Learners: estimators with `partial_fit` that are not frozen learn batch by batch while a TrainPhase is at work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from anyaccel.data import Reference, Rows, joined_array
from anyaccel.errors import EstimatorError, PhaseError
from anyaccel.graph import ModelGraph, input_columns, topology
from anyaccel.numpy_backend import Estimator
from anyaccel.numpy_backend.estimator import flat
from anyaccel.phases.estimator_fit import chosen_targets, estimators, inputs_of, sources
from anyaccel.phases.evaluation import Figures, Judgement, measured
from anyaccel.phases.kinds import TrainPhase
from anyaccel.phases.loading.epoch_batches import Lane, Spans
from anyaccel.phases.loading.sight import Sight
from anyaccel.phases.phase import Phase

ToHost = Callable[[str, Any], np.ndarray]


def learning(phase: Phase, graph: ModelGraph) -> list[str]:
    """Labels of the nodes that learn by `partial_fit` in a phase, in the order of computation.

    Raises:
        PhaseError: a loss on one of them, one that cannot learn yet, or one estimator that is to learn two things.
    """
    if not isinstance(phase, TrainPhase):
        return []
    found = estimators(graph)
    labels = [one for one in graph.shapes.order if one in found and found[one].has_partial_fit]
    labels = [one for one in labels if one not in graph.frozen]
    for loss in phase.losses:
        if loss.on in labels:
            raise PhaseError(
                f"phase {phase.label!r} has a loss on {loss.on!r}, which learns by partial_fit and by no loss",
                hint=f"judge it in the validation: EvalPhase(..., metrics=[Metric('mse', on={loss.on!r})]), "
                "or freeze it",
            )
    for label in labels:
        _check_order(phase, label, labels, graph, found)
        _check_shared(phase, label, graph, found)
    return labels


def _check_order(
    phase: Phase, label: str, labels: Sequence[str], graph: ModelGraph, found: Mapping[str, Estimator]
) -> None:
    before = topology.ancestors([label], graph.nodes) - {label}
    for other in labels:
        if other in before and not found[other].is_fitted:
            raise PhaseError(
                f"phase {phase.label!r}: {label!r} learns from what {other!r} gives, which has learnt nothing yet",
                hint=_first(label, other, found[other].has_fit),
            )


def _first(label: str, other: str, has_fit: bool) -> str:
    """What to do so that `other` has learnt before `label` learns from it."""
    alone = f"graph.freeze({label!r}), train {other!r} in a phase of its own"
    freeze = f"{alone}, then unfreeze the one and freeze the other"
    return f"run FitPhase('fit', data=..., nodes={other!r}) first, or {freeze}" if has_fit else freeze


def _check_shared(phase: Phase, label: str, graph: ModelGraph, found: Mapping[str, Estimator]) -> None:
    for other in _sharing(label, found):
        if graph[other].upstreams != graph[label].upstreams or other in graph.frozen:
            difference = "being frozen" if other in graph.frozen else "their inputs"
            raise PhaseError(
                f"phase {phase.label!r}: nodes {label!r} and {other!r} have one estimator, and differ in {difference}",
                hint="freeze both or none, and feed both the same, or give each an estimator of its own",
            )


def _sharing(label: str, found: Mapping[str, Estimator]) -> list[str]:
    """Labels of all nodes that have the same estimator as one."""
    return [other for other, model in found.items() if model.estimator is found[label].estimator]


@dataclass(frozen=True, slots=True)
class _Whole:
    """A column in host memory, [n, ...], and the lane that its rows are drawn from."""

    lane: Lane
    array: np.ndarray

    def at(self, orders: Mapping[Lane, np.ndarray], spans: Spans) -> np.ndarray | None:
        """The rows of a step; None where it has none of this feature set."""
        span = spans(self.lane[0])
        return None if span is None else self.array[orders[self.lane][slice(*span)]]


@dataclass(frozen=True, slots=True)
class _Learner:
    """One estimator, what it learns from (columns, or names of values), and the nodes that share it."""

    label: str
    models: tuple[Estimator, ...]
    inputs: tuple[_Whole | str, ...]
    targets: _Whole | None
    classes: Any

    def learn(
        self, values: Mapping[str, Any], orders: Mapping[Lane, np.ndarray], spans: Spans, to_host: ToHost
    ) -> None:
        """Learn from one step, if it has what is needed."""
        inputs = [self._given(one, values, orders, spans, to_host) for one in self.inputs]
        targets = None if self.targets is None else self.targets.at(orders, spans)
        if any(one is None for one in inputs) or (self.targets is not None and targets is None):
            return
        try:
            self.models[0].partial_fit([one for one in inputs if one is not None], targets, self.classes)
        except Exception as error:
            error.add_note(f"while node {self.label!r} learnt by partial_fit from a batch of {len(inputs[0])}")
            raise
        for model in self.models[1:]:
            model.in_parts = True
            model.mark_fitted()

    def _given(
        self,
        one: _Whole | str,
        values: Mapping[str, Any],
        orders: Mapping[Lane, np.ndarray],
        spans: Spans,
        to_host: ToHost,
    ) -> Any:
        if isinstance(one, _Whole):
            return one.at(orders, spans)
        return None if values[one] is None else np.asarray(to_host(one, values[one]))


class Learners:
    """The estimators that learn in one phase.

    Args:
        phase: the TrainPhase.
        graph: where they are.
        rows: the data of the phase, by feature set.
        streams: names of the streams of each feature set's sampler.

    Raises:
        PhaseError, SamplerError, EstimatorError: one that cannot learn from these data.
    """

    def __init__(
        self, phase: Phase, graph: ModelGraph, rows: Mapping[str, Rows], streams: Mapping[str, Sequence[str]]
    ) -> None:
        self._graph = graph
        self._models = estimators(graph)
        self.labels = tuple(learning(phase, graph))
        self.sources = tuple(sources(self.labels, graph))
        self._orders: Mapping[Lane, np.ndarray] = {}
        first = {id(self._models[label].estimator): label for label in reversed(self.labels)}
        mine = [label for label in self.labels if label in first.values()]
        self._learners = [self._learner(label, rows, streams) for label in mine]

    def __bool__(self) -> bool:
        return bool(self.labels)

    def _learner(self, label: str, rows: Mapping[str, Rows], streams: Mapping[str, Sequence[str]]) -> _Learner:
        def whole(chosen: input_columns.Chosen) -> _Whole:
            name = chosen.source.label
            input_columns.check_stream(chosen.stream or "", name, streams.get(name, ()))
            return _Whole((name, chosen.stream or ""), joined_array(rows[name], chosen.names))

        chosen = chosen_targets(label, self._graph)
        targets = None if chosen is None else whole(chosen)
        models = [
            self._models[label],
            *(self._models[other] for other in _sharing(label, self._models) if other != label),
        ]
        inputs: list[_Whole | str] = []
        for up in self._graph[label].upstreams:
            if isinstance(up, Reference):
                inputs.append(whole(input_columns.Chosen(up.feature_set, up.features, up.stream)))
            else:
                inputs += (up,) if "." in up else self._graph.shapes.outputs[up]
        return _Learner(label, tuple(models), tuple(inputs), targets, _classes(label, models[0], targets))

    # -- learning --------------------------------------------------------------------------------------------------

    def begin(self, orders: Mapping[Lane, np.ndarray]) -> None:
        """An epoch begins: the rows of these orders, in host memory, are taken from now on."""
        self._orders = orders

    def step(self, values: Mapping[str, Any], spans: Spans, to_host: ToHost) -> None:
        """A step is done: every estimator learns from its rows.

        Args:
            values: what the nodes gave in this step, by name, on their devices.
            spans: which rows of each feature set it took.
            to_host: brings a value to the host.
        """
        for one in self._learners:
            one.learn(values, self._orders, spans, to_host)

    def snapshot(self) -> list[Any]:
        """Copies of the estimators.

        Raises:
            EstimatorError: one cannot be copied.
        """
        return [one.models[0].snapshot() for one in self._learners]

    def restore(self, snapshot: Sequence[Any]) -> None:
        """Go back to a snapshot."""
        for one, kept in zip(self._learners, snapshot, strict=True):
            one.models[0].restore(kept)
            for model in one.models[1:]:
                model.estimator = one.models[0].estimator

    # -- judging ---------------------------------------------------------------------------------------------------

    def mine(self, judgements: Sequence[Judgement]) -> list[Judgement]:
        """Those that judge an estimator which learns: what it gives is computed on the host, as it is at the time."""
        return [one for one in judgements if one.node in self.labels]

    def judge(self, done: Figures, judgements: Sequence[Judgement], sight: Sight) -> Figures:
        """An evaluation completed by the metrics of those who learn, all in the order of `judgements`."""
        found = {one.label: measured(one, self._given(one.node, done, sight), sight) for one in self.mine(judgements)}
        every = {**done.metrics, **found}
        return replace(done, metrics={one.label: every[one.label] for one in judgements})

    def _given(self, label: str, done: Figures, sight: Sight) -> np.ndarray:
        inputs = inputs_of(label, self._graph, done.outputs, sight.rows)
        return self._models[label].compute(inputs)


def _classes(label: str, model: Estimator, targets: _Whole | None) -> Any:
    """All classes of the phase, for an estimator that wants to know them and does not yet.

    Raises:
        EstimatorError: it knows others.
    """
    if targets is None or not model.takes_classes:
        return None
    wanted = flat(targets.array)
    found = [np.unique(column) for column in wanted.T] if wanted.ndim > 1 else [np.unique(wanted)]
    known = getattr(model.estimator, "classes_", None)
    if known is None:
        return found if wanted.ndim > 1 else found[0]
    if wanted.ndim > 1:
        return None
    strange = [one for one in found[0].tolist() if one not in list(known)]
    if strange:
        raise EstimatorError(
            f"node {label!r}: {model.name} does not know the class {strange[0]!r}, which is in the targets",
            available=", ".join(map(str, known)),
            hint="fit it again from the start, with a new estimator or in a FitPhase over all classes",
        )
    return None
