"""HTML of graphs for notebooks."""

from __future__ import annotations

import math
from collections.abc import Mapping

from anyaccel.graph.nodes import ConcatNode, Node
from anyaccel.graph.plan_entries import number_of
from anyaccel.graph.shape_inference import Shapes
from anyaccel.html import Markup, badge, element, faint, joined, line, page, row, table
from anyaccel.registry import registry
from anyaccel_devtools.drawing.diagram import Box, build_diagram
from anyaccel_devtools.drawing.svg import svg

_MAX_BOXES, _MAX_ARROWS = 120, 240  # larger graphs are shown as a table only: drawing them takes long


def graph_page(label: str, nodes: Mapping[str, Node], shapes: Shapes | None) -> Markup:
    """Return a diagram, and a table of the nodes with their devices. Builds and places nothing."""
    diagram = build_diagram(label, nodes, shapes, None, registry())
    boxes = [box for box in diagram.boxes if box.kind != "data"]
    small = len(diagram.boxes) <= _MAX_BOXES and len(diagram.arrows) <= _MAX_ARROWS
    state = number_of(len(boxes), "node") + ("" if shapes else ", not built yet: shapes are not known")
    state += "" if small else "; too large to draw here: use graph.visualize('svg')"
    head = ("node", "model", "framework", "device", "parameters")
    return page(
        "ModelGraph",
        label,
        line(faint(state)),
        element("div", svg(diagram), style="overflow-x:auto") if small else None,
        table(head, list(zip(boxes, nodes.values(), strict=True)), lambda pair: _node_row(pair[0], pair[1], shapes)),
    )


def _node_row(box: Box, node: Node, shapes: Shapes | None) -> Markup:
    frozen = " (frozen)" if box.frozen else ""
    requested = faint(f" asks for {box.requested}") if box.requested else None
    where = joined([badge(box.device, box.where), requested])
    cells = [box.title, box.lines[0], box.framework, where, f"{_parameters(node, shapes)}{frozen}"]
    return row(cells, device=box.device)


def _parameters(node: Node, shapes: Shapes | None) -> str:
    """Return the number of parameters, `""` if unknown."""
    if isinstance(node, ConcatNode) or shapes is None:
        return ""
    try:
        specs = shapes.backends[node.label].parameters(node.model).values()
    except Exception:  # a model that was changed by hand must not break the display
        return ""
    return f"{sum(math.prod(spec.shape) for spec in specs):,}" if specs else ""
