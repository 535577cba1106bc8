"""Edges between models that read the axes of an image in different orders."""

from __future__ import annotations

from collections.abc import Mapping

from anyaccel.errors import ShapeError
from anyaccel.graph.nodes import ModelNode, Node
from anyaccel.registry import Registry
from anyaccel.segment import TensorSpec


def check_layouts(
    nodes: Mapping[str, Node], frameworks: Mapping[str, str], specs: Mapping[str, TensorSpec], found: Registry
) -> None:
    """Make sure that what a model gives is read in the order of axes in which it was written, where both are known.

    Raises:
        ShapeError: it is not; shapes alone would not show it.
    """
    layouts = {
        label: found.computing(frameworks[label]).data_format(node.model)
        for label, node in nodes.items()
        if isinstance(node, ModelNode)
    }
    for label, node in nodes.items():
        for upstream in node.upstreams:
            source = upstream.partition(".")[0] if isinstance(upstream, str) else ""
            if label in layouts and source in layouts:
                _check(source, layouts[source][1], label, layouts[label][0], frameworks, specs.get(str(upstream)))


def _check(
    source: str, given: str, target: str, wanted: str, frameworks: Mapping[str, str], spec: TensorSpec | None
) -> None:
    if not given or not wanted or given == wanted:
        return
    shape = "" if spec is None else f" {list(spec.shape)}"
    raise ShapeError(
        f"node {target!r} ({frameworks[target]}) reads images {wanted}, and {source!r} ({frameworks[source]}) gives "
        f"them {given}{shape}",
        available="the numbers might fit by chance, the axes do not",
        hint=f"put a model between them that moves the channels, or build one of them {given}",
    )
