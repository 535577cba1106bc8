"""Fitting: estimators are fitted to whole columns, one after the other, and frozen."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass, replace

import numpy as np

from anyaccel.data import Reference, Rows, joined_array
from anyaccel.errors import ColumnError, PhaseError
from anyaccel.graph import ModelGraph, ModelNode, Plan, input_columns
from anyaccel.graph.topology import ancestors, unknown_node
from anyaccel.numpy_backend import Estimator
from anyaccel.phases.kinds import FitPhase
from anyaccel.phases.phase import Phase
from anyaccel.specs import AppliedLoss


@dataclass(frozen=True, slots=True)
class Fitted:
    """One node that a FitPhase fitted: the class of its estimator, to how many rows, and how long that took."""

    node: str
    estimator: str
    rows: int
    seconds: float


def estimators(graph: ModelGraph) -> dict[str, Estimator]:
    """The estimators of a graph by label. Builds the graph."""
    graph.build()
    models = {label: getattr(node, "model", None) for label, node in graph.nodes.items()}
    return {label: model for label, model in models.items() if isinstance(model, Estimator)}


def to_fit(phase: FitPhase, graph: ModelGraph, done: Collection[str] = ()) -> list[str]:
    """Labels of the nodes that a phase fits next: of those that are left, the ones that wait for none of the others.

    Args:
        phase: it names the nodes, or means every estimator that has not been fitted.
        graph: where they are.
        done: those that it has fitted already.

    Raises:
        PhaseError: there is none, one cannot be fitted, or it is not clear which.
        GraphError: a node that is not in the graph.
    """
    waiting = left(phase, graph, done)
    if not waiting and not done:
        raise PhaseError(
            f"phase {phase.label!r} has nothing to fit",
            available="nodes=[]"
            if phase.nodes is not None
            else "no node with an estimator (fit, predict) that has not been fitted",
            hint="name nodes=[...] to fit one again",
        )
    return [label for label in waiting if not (ancestors([label], graph.nodes) - {label}) & set(waiting)]


def left(phase: FitPhase, graph: ModelGraph, done: Collection[str] = ()) -> list[str]:
    """Labels of all nodes that a phase has still to fit; see `to_fit`."""
    found = estimators(graph)
    if phase.nodes is None:
        _refuse_doubt(phase, graph, found)
        labels = [label for label, model in found.items() if model.has_fit and not model.is_fitted]
    else:
        labels = list(dict.fromkeys(phase.nodes))
    for label in labels:
        _check(phase, label, graph, found)
    _refuse_open(phase, labels, graph, found)
    _refuse_twice(phase, labels, graph, found)
    return [label for label in labels if label not in done]


def noted(phase: Phase, plan: Plan, graph: ModelGraph, done: Collection[str] = ()) -> Plan:
    """The plan of a phase; of a FitPhase with a note of what it fits, in this order. Other plans come back as are."""
    if not isinstance(phase, FitPhase):
        return plan
    waiting, found = left(phase, graph, done), estimators(graph)
    order = [f"{label} ({found[label].name})" for label in graph.shapes.order if label in waiting]
    return replace(plan, notes=(*plan.notes, f"fits {', then '.join(order)}, on the host"))


def _check(phase: FitPhase, label: str, graph: ModelGraph, found: Mapping[str, Estimator]) -> None:
    if label not in graph.nodes:
        raise unknown_node(f"phase {phase.label!r} fits the node {label!r}", label, graph.nodes)
    if label not in found:
        raise PhaseError(f"node {label!r} is no estimator", hint="train it in a TrainPhase")
    if not found[label].has_fit:
        raise PhaseError(
            f"phase {phase.label!r} fits {label!r}, and {found[label].name} has no fit",
            available="partial_fit",
            hint="let it learn in a TrainPhase",
        )


def _refuse_open(phase: FitPhase, labels: Sequence[str], graph: ModelGraph, found: Mapping[str, Estimator]) -> None:
    for label in labels:
        before = (one for one in graph.shapes.order if one in ancestors([label], graph.nodes) and one not in labels)
        for other in before:
            if other in found and not found[other].is_fitted:
                remedy = f"name it too, nodes=[{other!r}, {label!r}]" if found[other].has_fit else "train it before"
                raise PhaseError(
                    f"phase {phase.label!r} fits {label!r}, which needs {other!r}, an estimator that is not fitted",
                    hint=remedy,
                )


def _refuse_doubt(phase: FitPhase, graph: ModelGraph, found: Mapping[str, Estimator]) -> None:
    """What learnt in a TrainPhase might be kept as it is, or be fitted anew: somebody has to say so."""
    learnt = [label for label, model in found.items() if model.in_parts and label not in graph.frozen]
    if learnt:
        fresh = [label for label, model in found.items() if not model.is_fitted]
        raise PhaseError(
            f"phase {phase.label!r} names no nodes, and {', '.join(map(repr, learnt))} learnt by partial_fit before",
            available=f"not fitted: {', '.join(fresh) or 'none'}",
            hint=f"name nodes=[...], or graph.freeze({learnt[0]!r}) to keep it as it is",
        )


def _refuse_twice(phase: FitPhase, labels: Sequence[str], graph: ModelGraph, found: Mapping[str, Estimator]) -> None:
    """Nodes may share an estimator, with different methods, say; what it is fitted to must be clear."""
    first: dict[int, str] = {}
    for label in labels:
        other = first.setdefault(id(found[label].estimator), label)
        if graph[other].upstreams != graph[label].upstreams:
            raise PhaseError(
                f"phase {phase.label!r} fits {other!r} and {label!r}, which have one estimator and different inputs",
                hint=f"name the one to fit, nodes=[{other!r}], or give each an estimator of its own",
            )


def sources(labels: Sequence[str], graph: ModelGraph) -> list[str]:
    """Labels of the nodes whose outputs are needed to fit these."""
    ups = [up for label in labels for up in graph[label].upstreams if isinstance(up, str)]
    return list(dict.fromkeys(up.partition(".")[0] for up in ups))


@contextlib.contextmanager
def awaiting(labels: Sequence[str], graph: ModelGraph) -> Iterator[None]:
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
        done: receives what was done, node by node.
    """
    for label in labels:
        if label in [one.node for one in done]:
            continue
        node = graph[label]
        assert isinstance(node, ModelNode) and isinstance(node.model, Estimator)
        inputs, targets = inputs_of(label, graph, outputs, rows), targets_of(label, graph, rows)
        began = time.perf_counter()
        _fit(node, inputs, targets, _sharing(node.model, graph))
        seconds = time.perf_counter() - began
        for other in _sharing(node.model, graph):
            other.frozen = True
            other.model.mark_fitted()
            if other.label in labels:
                taken = seconds if other.label == label else 0.0
                done.append(Fitted(other.label, node.model.name, len(inputs[0]), taken))
        graph.build(force=True)


def _fit(node: ModelNode, inputs: Sequence[np.ndarray], targets: np.ndarray | None, all_: Sequence[ModelNode]) -> None:
    """Fit a node's estimator; if that fails, none of `all_`, the nodes that have it, counts as fitted."""
    try:
        node.model.fit(inputs, targets)
    except BaseException as error:
        for one in all_:
            one.model.mark_failed()
        error.add_note(f"while node {node.label!r} was fitted to {len(inputs[0])} rows")
        raise


def _sharing(model: Estimator, graph: ModelGraph) -> list[ModelNode]:
    """The nodes that have the same estimator, whatever methods of it they take."""
    nodes = [node for node in graph.nodes.values() if isinstance(node, ModelNode)]
    return [one for one in nodes if isinstance(one.model, Estimator) and one.model.estimator is model.estimator]


def inputs_of(
    label: str, graph: ModelGraph, outputs: Mapping[str, np.ndarray], rows: Mapping[str, Rows]
) -> list[np.ndarray]:
    """What an estimator's node is given, in host memory: columns, and outputs of the nodes that feed it."""
    return [array for up in graph[label].upstreams for array in _arrays(up, graph, outputs, rows)]


def _arrays(
    upstream: Reference | str, graph: ModelGraph, outputs: Mapping[str, np.ndarray], rows: Mapping[str, Rows]
) -> list[np.ndarray]:
    if isinstance(upstream, Reference):
        return [joined_array(rows[upstream.feature_set.label], upstream.features)]
    names = graph.shapes.outputs[upstream] if "." not in upstream else (upstream,)
    return [outputs[name] for name in names]


def targets_of(label: str, graph: ModelGraph, rows: Mapping[str, Rows]) -> np.ndarray | None:
    """The targets of the data that feed a node, in host memory; None where there are none."""
    chosen = chosen_targets(label, graph)
    return None if chosen is None else joined_array(rows[chosen.source.label], chosen.names)


def chosen_targets(label: str, graph: ModelGraph) -> input_columns.Chosen | None:
    """The target columns of the data that feed a node; None where there are none.

    Raises:
        ColumnError: there are several, and it is not clear which are meant.
    """
    try:
        return input_columns.targets_of(AppliedLoss("mse", on=label), graph.nodes)
    except ColumnError as error:
        if "several" not in str(error):
            return None
        raise ColumnError(
            f"{label!r} learns from targets, and the data that feed it have several",
            available=error.available,
            hint="keep those of one reference, and write reference(targets=[]) in the others",
        ) from None
