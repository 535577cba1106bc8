"""Concatenation: what a ConcatNode gives for inputs of known specs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from anyaccel.errors import ShapeError
from anyaccel.graph.nodes import ConcatNode
from anyaccel.segment import TensorSpec


def concatenated(node: ConcatNode, specs: Sequence[TensorSpec]) -> TensorSpec:
    """The spec of what a node joins.

    Raises:
        ShapeError: specs that cannot be joined along its axis.
    """
    first = specs[0]
    axis = node.axis if node.axis >= 0 else node.axis + len(first.shape)
    if not 0 <= axis < len(first.shape):
        raise ShapeError(
            f"node {node.label!r} has no axis {node.axis}: its inputs are samples of shape {list(first.shape)}",
            hint="choose an axis of a sample, without the batch; join scalars in one reference([...])",
        )
    rest = {(spec.dtype, spec.shape[:axis], spec.shape[axis + 1 :]) for spec in specs}
    if any(len(spec.shape) != len(first.shape) for spec in specs) or len(rest) > 1:
        raise ShapeError(
            f"node {node.label!r} cannot concatenate {' and '.join(map(str, specs))} along axis {node.axis}",
            hint="use equal dtypes, and equal extents along every other axis",
        )
    extent = sum(spec.shape[axis] for spec in specs)
    return replace(first, shape=(*first.shape[:axis], extent, *first.shape[axis + 1 :]))
