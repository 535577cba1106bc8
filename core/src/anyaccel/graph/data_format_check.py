"""Data format check: models that feed each other must read the axes of an image in the same order."""

from __future__ import annotations

from collections.abc import Mapping

from anyaccel.backend import ComputingBackend
from anyaccel.errors import ShapeError
from anyaccel.graph.nodes import ModelNode, Node
from anyaccel.segment import TensorSpec


def check_data_formats(
    nodes: Mapping[str, Node], backends: Mapping[str, ComputingBackend], specs: Mapping[str, TensorSpec]
) -> None:
    """Check every edge between two models whose data formats are known.

    Raises:
        ShapeError: one is channels_first and the other channels_last, which shapes alone might not show.
    """
    formats = {
        label: backends[label].data_format(node.model) for label, node in nodes.items() if isinstance(node, ModelNode)
    }
    for label in formats:
        for upstream in nodes[label].upstreams:
            source = upstream.partition(".")[0] if isinstance(upstream, str) else ""
            given, wanted = formats.get(source, ("", ""))[1], formats[label][0]
            if given and wanted and given != wanted:
                spec = specs.get(str(upstream))
                shape = "" if spec is None else f" {list(spec.shape)}"
                raise ShapeError(
                    f"node {label!r} ({backends[label].framework}) reads images as {wanted}, and {source!r} "
                    f"({backends[source].framework}) gives them as {given}{shape}",
                    hint=f"put a model between them that moves the channels, or build one of them {given}",
                )
