"""Graphs as a notebook shows them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from anyaccel.display import line, page, row, table
from anyaccel.graph.drawing.diagram import Box, picture
from anyaccel.graph.drawing.svg import svg
from anyaccel.graph.nodes import ConcatNode, Node
from anyaccel.graph.plan import number_of
from anyaccel.graph.shape_inference import Shapes
from anyaccel.html import Markup, badge, element, faint, joined
from anyaccel.registry import registry

_DRAWN, _LINES = 120, 240  # boxes and lines: a larger graph is shown by its table alone, because drawing it takes long


def graph_page(label: str, nodes: Mapping[str, Node], shapes: Shapes | None) -> Markup:
    """A drawing, and a table of the nodes with their devices. Builds and places nothing."""
    shown = picture(label, nodes, shapes, None, registry())
    boxes = [box for box in shown.boxes if box.kind != "data"]
    small = len(shown.boxes) <= _DRAWN and len(shown.arrows) <= _LINES
    state = number_of(len(boxes), "node") + ("" if shapes else ", not built yet: shapes are not known")
    state += "" if small else "; too large to be drawn here, graph.visualize('svg') draws it"
    head = ("node", "model", "framework", "device", "parameters")
    return page(
        "ModelGraph",
        label,
        line(faint(state)),
        element("div", svg(shown), style="overflow-x:auto") if small else None,
        table(head, list(zip(boxes, nodes.values(), strict=True)), lambda pair: _node_row(pair[0], pair[1], shapes)),
    )


def _node_row(box: Box, node: Node, shapes: Shapes | None) -> Markup:
    frozen = " (frozen)" if box.frozen else ""
    asked = faint(f" asks for {box.asked}") if box.asked else None
    where = joined([badge(box.device, box.where), asked])
    cells = [box.title, box.lines[0], box.framework, where, f"{_parameters(node, shapes)}{frozen}"]
    return row(cells, device=box.device)


def _parameters(node: Node, shapes: Shapes | None) -> str:
    """The number of parameters, `""` if it is not known yet."""
    if isinstance(node, ConcatNode) or shapes is None:
        return ""
    try:
        specs = shapes.backends[node.label].parameters(node.model).values()
    except Exception:  # a model that was changed by hand; the page is shown all the same
        return ""
    return f"{sum(math.prod(spec.shape) for spec in specs):,}" if specs else ""
