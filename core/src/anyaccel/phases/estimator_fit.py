"""Estimator fit: what a FitPhase fits and in which order, and how: to whole columns in host memory, then frozen."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator, Mapping, MutableSequence, Sequence

import numpy as np

from anyaccel import interrupts
from anyaccel.data import Reference, Rows
from anyaccel.data.roles import listed
from anyaccel.data.transforms.sklearn_calls import by_position, columns_by_name
from anyaccel.errors import EstimatorError, PhaseError
from anyaccel.estimators import Estimator
from anyaccel.graph import ModelGraph, ModelNode
from anyaccel.graph.topology import ancestors, unknown_node
from anyaccel.phases.estimator_inputs import estimators, inputs_of, targets_of
from anyaccel.phases.settings import PhaseSettings
from anyaccel.results.records import Fitted


def next_to_fit(phase: PhaseSettings, graph: ModelGraph, done: Collection[str] = ()) -> list[str]:
    """Labels of the nodes that a phase fits next: of those left, the ones that need none of the others.

    Args:
        phase: names the nodes, or means every estimator that has not been fitted.
        graph: where they are.
        done: labels of those that it has fitted already.

    Raises:
        PhaseError: there is none, one cannot be fitted, or it is not clear which.
        GraphError: a node that is not in the graph.
    """
    waiting = left_to_fit(phase, graph, done)
    if not waiting and not done:
        named = phase.nodes is not None
        raise PhaseError(
            f"phase {phase.label!r} has nothing to fit",
            cause="nodes=[] names none" if named else "no node has an estimator (fit, predict) that is not fitted yet",
            hint="name nodes=[...] to fit one again",
        )
    return [label for label in waiting if not (ancestors([label], graph.nodes) - {label}) & set(waiting)]


def left_to_fit(phase: PhaseSettings, graph: ModelGraph, done: Collection[str] = ()) -> list[str]:
    """Labels of all nodes that a phase has yet to fit; see `next_to_fit`."""
    models = estimators(graph)
    if phase.nodes is None:
        _check_unambiguous(phase, graph, models)
        labels = [label for label, model in models.items() if model.has_fit and not model.is_fitted]
    else:
        labels = list(dict.fromkeys(phase.nodes))
    for label in labels:
        _check_fittable(phase, label, graph, models)
    _check_ancestors_fitted(phase, labels, graph, models)
    _check_shared_inputs(phase, labels, graph, models)
    return [label for label in labels if label not in done]


def _check_fittable(phase: PhaseSettings, label: str, graph: ModelGraph, models: Mapping[str, Estimator]) -> None:
    if label not in graph.nodes:
        raise unknown_node(f"phase {phase.label!r} fits the node {label!r}", label, graph.nodes)
    if label not in models:
        raise PhaseError(f"node {label!r} is not an estimator", hint="train it in a TrainPhase")
    if not models[label].has_fit:
        raise PhaseError(
            f"phase {phase.label!r} fits {label!r}, and {models[label].name} has no fit",
            cause="it has partial_fit",
            hint="train it in a TrainPhase",
        )
    names, upstreams = columns_by_name(models[label].estimator), graph[label].upstreams
    if names:
        features = [name for part in upstreams if isinstance(part, Reference) for name in part.features]
        raise EstimatorError(
            f"{models[label].name} of node {label!r} chooses columns by name ({listed(names)}), and gets an array, "
            "which has none",
            hint=by_position(names, features) if features else "choose columns by their positions in the array",
        )


def _check_ancestors_fitted(
    phase: PhaseSettings, labels: Sequence[str], graph: ModelGraph, models: Mapping[str, Estimator]
) -> None:
    for label in labels:
        before = ancestors([label], graph.nodes)
        for other in (node for node in graph.shapes.order if node in before and node not in labels):
            if other in models and not models[other].is_fitted:
                named = f"name it too, nodes=[{other!r}, {label!r}]"
                raise PhaseError(
                    f"phase {phase.label!r} fits {label!r}, which needs {other!r}, an estimator that is not fitted",
                    hint=named if models[other].has_fit else "train it before",
                )


def _check_unambiguous(phase: PhaseSettings, graph: ModelGraph, models: Mapping[str, Estimator]) -> None:
    """Estimators that learned in a TrainPhase might be kept or be fitted anew: the user has to say which."""
    learned = [label for label, model in models.items() if model.partially_fitted and label not in graph.frozen]
    if learned:
        unfitted = [label for label, model in models.items() if not model.is_fitted]
        raise PhaseError(
            f"phase {phase.label!r} names no nodes, and {', '.join(map(repr, learned))} learned by partial_fit before",
            cause=f"not fitted: {', '.join(unfitted) or 'none'}",
            hint=f"name nodes=[...], or graph.freeze({learned[0]!r}) to keep it as it is",
        )


def _check_shared_inputs(
    phase: PhaseSettings, labels: Sequence[str], graph: ModelGraph, models: Mapping[str, Estimator]
) -> None:
    """Nodes may share an estimator, with different methods, say; what it is fitted to must be clear."""
    first: dict[int, str] = {}
    for label in labels:
        other = first.setdefault(id(models[label].estimator), label)
        if graph[other].upstreams != graph[label].upstreams:
            raise PhaseError(
                f"phase {phase.label!r} fits {other!r} and {label!r}, which share one estimator but not their inputs",
                hint=f"name the one to fit, nodes=[{other!r}], or give each an estimator of its own",
            )


@contextlib.contextmanager
def awaiting_fit(labels: Sequence[str], graph: ModelGraph) -> Iterator[None]:
    """While this lasts, what these estimators were fitted to before does not count, until each is fitted anew."""
    models = [model for label, model in estimators(graph).items() if label in labels]
    for model in models:
        model.awaits_fit = True
    try:
        yield
    finally:
        for model in models:
            model.awaits_fit = False


def fit(
    labels: Sequence[str],
    graph: ModelGraph,
    outputs: Mapping[str, np.ndarray],
    rows: Mapping[str, Rows],
    done: MutableSequence[Fitted],
) -> None:
    """Fit each node's estimator and freeze the node; from then on the graph knows its output.

    Args:
        labels: the nodes, none of which depends on another.
        graph: where they are.
        outputs: values of the nodes that feed them, by name.
        rows: the data in host memory, by feature set.
        done: receives what was fitted, node by node.
    """
    for label in labels:
        if label in [fitted.node for fitted in done]:
            continue
        node = graph[label]
        assert isinstance(node, ModelNode) and isinstance(node.model, Estimator)
        inputs, targets = inputs_of(label, graph, outputs, rows), targets_of(label, graph, rows)
        sharing = _sharing(node.model, graph)
        began = time.perf_counter()
        _fit(node, inputs, targets, sharing)
        seconds = time.perf_counter() - began
        for other in sharing:
            other.frozen = True
            other.model.mark_fitted(node.model)
            if other.label in labels:
                own_seconds = seconds if other.label == label else 0.0
                done.append(Fitted(other.label, node.model.name, len(inputs[0]), own_seconds))
        graph.build(force=True)


def _fit(
    node: ModelNode, inputs: Sequence[np.ndarray], targets: np.ndarray | None, sharing: Sequence[ModelNode]
) -> None:
    """Fit a node's estimator; if that fails, none of the nodes that share it counts as fitted."""
    try:
        with interrupts.allowed():
            node.model.fit(inputs, targets)
    except BaseException as error:
        for other in sharing:
            other.model.mark_failed()
        error.add_note(f"while node {node.label!r} was fitted to {len(inputs[0])} rows")
        raise


def _sharing(model: Estimator, graph: ModelGraph) -> list[ModelNode]:
    """The nodes that have the same estimator, whatever methods of it they call."""
    nodes = [node for node in graph.nodes.values() if isinstance(node, ModelNode)]
    return [node for node in nodes if isinstance(node.model, Estimator) and node.model.estimator is model.estimator]
