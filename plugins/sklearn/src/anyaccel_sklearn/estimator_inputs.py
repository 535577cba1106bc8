"""Estimator inputs: the estimators of a graph, and the columns and values in host memory that they learn from."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from anyaccel.data import Reference, Rows, joined_array
from anyaccel.errors import ColumnError
from anyaccel.graph import ModelGraph
from anyaccel.graph.applied_loss import AppliedLoss
from anyaccel.graph.nodes import ColumnSelection
from anyaccel.graph.resolve import targets_of as target_columns
from anyaccel_sklearn.estimators import Estimator


def estimators(graph: ModelGraph) -> dict[str, Estimator]:
    """Return the estimators of a graph, by label. Builds the graph."""
    graph.build()
    models = {label: getattr(node, "model", None) for label, node in graph.nodes.items()}
    return {label: model for label, model in models.items() if isinstance(model, Estimator)}


def inputs_of(
    label: str, graph: ModelGraph, outputs: Mapping[str, np.ndarray], rows: Mapping[str, Rows]
) -> list[np.ndarray]:
    """Return the inputs of an estimator's node, in host memory: columns, and outputs of the nodes before it."""
    return [array for upstream in graph[label].upstreams for array in _arrays(upstream, graph, outputs, rows)]


def _arrays(
    upstream: Reference | str, graph: ModelGraph, outputs: Mapping[str, np.ndarray], rows: Mapping[str, Rows]
) -> list[np.ndarray]:
    if isinstance(upstream, Reference):
        return [joined_array(rows[upstream.feature_set.label], upstream.features)]
    names = graph.shapes.outputs[upstream] if "." not in upstream else (upstream,)
    return [outputs[name] for name in names]


def targets_of(label: str, graph: ModelGraph, rows: Mapping[str, Rows]) -> np.ndarray | None:
    """Return the targets of the data that feed a node, in host memory; None if there are no targets."""
    chosen = chosen_targets(label, graph)
    return None if chosen is None else joined_array(rows[chosen.feature_set.label], chosen.names)


def chosen_targets(label: str, graph: ModelGraph) -> ColumnSelection | None:
    """Return the target columns of the data that feed a node, or None.

    Raises:
        ColumnError: There are several, and the choice is ambiguous.
    """
    try:
        return target_columns(AppliedLoss("mse", on=label), graph.nodes)
    except ColumnError as error:
        if not error.available:  # there are none; several would be listed
            return None
        raise ColumnError(
            f"{label!r} learns from targets, but its data have several",
            available=error.available,
            hint="keep the targets of one reference, and write reference(target=[]) in the others",
        ) from None
