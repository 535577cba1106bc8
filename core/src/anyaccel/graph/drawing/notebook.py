"""HTML of graphs and plans for notebooks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from anyaccel.display import guarded, line, listing, page, prose, row, size, table
from anyaccel.graph.drawing.diagram import ROUTES, Box, build_diagram
from anyaccel.graph.drawing.svg import svg
from anyaccel.graph.nodes import ConcatNode, Node
from anyaccel.graph.plan import number_of
from anyaccel.html import Markup, badge, element, faint, joined
from anyaccel.registry import Registry, registry

# Graphs and plans are annotated as Any: their classes call these functions and stand above this module.

_CROSSINGS = ("value", "from", "to", "how", "a sample")
_MAX_BOXES, _MAX_ARROWS = 120, 240  # larger graphs are shown as a table only: drawing them takes long


# -- graphs ------------------------------------------------------------------------------------------------------------


def graph_html(graph: Any) -> str:
    """A diagram, and a table of the nodes with their devices. Builds and places nothing, never raises."""
    return guarded(graph, lambda: _graph(graph))


def _graph(graph: Any) -> Markup:
    shapes, backends = (graph.shapes if graph.is_built else None), registry()
    diagram = build_diagram(graph.label, graph.nodes, shapes, None, backends)
    boxes = [box for box in diagram.boxes if box.kind != "data"]
    nodes = list(zip(boxes, graph.nodes.values(), strict=True))
    small = len(diagram.boxes) <= _MAX_BOXES and len(diagram.arrows) <= _MAX_ARROWS
    state = number_of(len(boxes), "node") + ("" if shapes else ", not built yet: shapes are not known")
    state += "" if small else "; too large to be drawn here, graph.visualize('svg') draws it"
    drawing = element("div", svg(diagram), style="overflow-x:auto") if small else None
    counting = backends if shapes else None
    head = ("node", "model", "framework", "device", "parameters")
    return page(
        "ModelGraph",
        graph.label,
        line(faint(state)),
        drawing,
        table(head, nodes, lambda pair: _node_row(pair[0], pair[1], counting)),
    )


def _node_row(box: Box, node: Node, backends: Registry | None) -> Markup:
    count = _parameters(node, box.framework, backends)
    frozen = " (frozen)" if box.frozen else ""
    requested = faint(f" asks for {box.requested}") if box.requested else None
    where = joined([badge(box.device, box.where), requested])
    return row([box.title, box.lines[0], box.framework, where, f"{count}{frozen}"], device=box.device)


def _parameters(node: Node, framework: str, backends: Registry | None) -> str:
    """The number of parameters, `""` if unknown."""
    if isinstance(node, ConcatNode) or backends is None:
        return ""
    try:
        specs = backends.computing(framework).parameters(node.model).values()
    except Exception:  # a model that was changed by hand must not break the display
        return ""
    return f"{sum(math.prod(spec.shape) for spec in specs):,}" if specs else ""


# -- plans -------------------------------------------------------------------------------------------------------------


def plan_html(plan: Any) -> str:
    """Assignments with reasons, loaded columns, crossings and notes. Never raises."""
    return guarded(plan, lambda: _plan(plan))


def _plan(plan: Any) -> Markup:
    head = ("node", "device", "framework", "native name", "why", "parameters")
    return page(
        "Plan",
        f"of {plan.phase} on {plan.graph}",
        table(head, plan.assignments, lambda assignment: _assignment_row(assignment, plan)),
        *_section("loads", ("columns", "to", "as", "changed"), plan.columns, _column_row),
        *_section("crosses in every step", _CROSSINGS, plan.crossings, _crossing_row(plan)),
        *(line("note: ", faint(note)) for note in plan.notes),
    )


def _section(title: str, head: Sequence[str], items: Sequence[Any], make: Callable[[Any], Markup]) -> Iterator[Markup]:
    if items:
        yield line(element("strong", title))
        yield table(head, items, make)


def _assignment_row(assignment: Any, plan: Any) -> Markup:
    device = str(assignment.device)
    why = plan.explain(assignment.node).partition(" because ")[2].removesuffix(".") or assignment.reason
    parameters = f"{assignment.parameters:,}" + (" (frozen)" if assignment.frozen else "")
    cells = [assignment.node, badge(device), assignment.framework, assignment.native, prose(why), parameters]
    return row(cells, device=device)


def _column_row(column: Any) -> Markup:
    device = str(column.device)
    stream = f" (stream {column.stream})" if column.stream else ""
    names = f"{column.feature_set}: {listing(column.columns)}{stream}"
    return row([prose(names), badge(device), f"{column.framework} {column.spec}", column.change], device=device)


def _crossing_row(plan: Any) -> Callable[[Any], Markup]:
    frameworks = {assignment.node: assignment.framework for assignment in plan.assignments}

    def cells(crossing: Any) -> Markup:
        value = f"gradient of {crossing.value}" if crossing.gradient else crossing.value
        route = ROUTES.get(crossing.route, crossing.route)
        return row([value, *_ends(crossing, frameworks), route, size(crossing.nbytes)])

    return cells


def _ends(crossing: Any, frameworks: Mapping[str, str]) -> Iterator[Markup]:
    for node, device in ((crossing.source, crossing.origin), (crossing.target, crossing.destination)):
        yield element("span", badge(str(device)), " ", frameworks.get(node, ""))
