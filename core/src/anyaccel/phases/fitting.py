"""Fitting: estimators are fitted once to whole columns, and frozen."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from anyaccel.data import Reference, Rows, joined_array
from anyaccel.errors import ColumnError, PhaseError
from anyaccel.graph import ModelGraph, ModelNode, columns
from anyaccel.graph.wiring import ancestors, unknown_node
from anyaccel.phases.phase import FitPhase
from anyaccel.recipes import AppliedLoss
from anyaccel.reference.estimator import Estimator


def to_fit(phase: FitPhase, graph: ModelGraph) -> list[str]:
    """Labels of the nodes that a phase fits: those it names, else every estimator that has not been fitted.

    Raises:
        PhaseError: there is none, one is no estimator, or one depends on another of them.
        GraphError: a node that is not in the graph.
    """
    graph.build()
    labels = list(phase.nodes) if phase.nodes is not None else _unfitted(graph)
    for label in labels:
        if label not in graph.nodes:
            raise unknown_node(f"phase {phase.label!r} fits the node {label!r}", label, graph.nodes)
        if not isinstance(getattr(graph[label], "model", None), Estimator):
            raise PhaseError(f"node {label!r} is no estimator", remedy="train it in a TrainPhase")
    if not labels:
        raise PhaseError(
            f"phase {phase.label!r} has nothing to fit",
            there="no node with an estimator (fit, predict) that has not been fitted",
            remedy="name nodes=[...] to fit one again",
        )
    for label in labels:
        before = sorted(ancestors(sources([label], graph), graph.nodes) & set(labels))
        if before:
            raise PhaseError(
                f"phase {phase.label!r} fits {label!r} together with {before[0]!r}, on which it depends",
                remedy="fit them one after the other",
            )
    return labels


def _unfitted(graph: ModelGraph) -> list[str]:
    models = {label: getattr(node, "model", None) for label, node in graph.nodes.items()}
    return [label for label, model in models.items() if isinstance(model, Estimator) and not model.is_fitted]


def sources(labels: list[str], graph: ModelGraph) -> list[str]:
    """Labels of the nodes whose outputs are needed to fit these."""
    ups = [up for label in labels for up in graph[label].upstreams if isinstance(up, str)]
    return list(dict.fromkeys(up.partition(".")[0] for up in ups))


def fit(labels: list[str], graph: ModelGraph, outputs: Mapping[str, np.ndarray], rows: Mapping[str, Rows]) -> None:
    """Fit each node's estimator and freeze the node; from then on the graph knows its output."""
    for label in labels:
        node = graph[label]
        assert isinstance(node, ModelNode) and isinstance(node.model, Estimator)
        inputs = [array for up in node.upstreams for array in _arrays(up, graph, outputs, rows)]
        node.model.fit(inputs, _targets(label, graph, rows))
        node.frozen = True
        graph.build(force=True)


def _arrays(
    upstream: Reference | str, graph: ModelGraph, outputs: Mapping[str, np.ndarray], rows: Mapping[str, Rows]
) -> list[np.ndarray]:
    if isinstance(upstream, Reference):
        return [joined_array(rows[upstream.feature_set.label], upstream.features)]
    names = graph.shapes.outputs[upstream] if "." not in upstream else (upstream,)
    return [outputs[name] for name in names]


def _targets(label: str, graph: ModelGraph, rows: Mapping[str, Rows]) -> np.ndarray | None:
    """The targets of the data that feed a node; None for an estimator that is fitted without."""
    try:
        source, names = columns.targets_of(AppliedLoss("mse", on=label), graph.nodes)
    except ColumnError as error:
        if "several" in str(error):
            raise
        return None
    return joined_array(rows[source.label], names)
