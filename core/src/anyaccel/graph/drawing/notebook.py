"""Graphs and plans as a notebook shows them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from anyaccel.display import guarded, line, listing, page, prose, row, size, table
from anyaccel.graph.drawing.diagram import ROUTES, Box, picture
from anyaccel.graph.drawing.svg import svg
from anyaccel.graph.nodes import ConcatNode, Node
from anyaccel.graph.plan import number_of
from anyaccel.html import Markup, badge, element, faint, joined
from anyaccel.registry import Registry, registry

if TYPE_CHECKING:
    from anyaccel.graph.graph import ModelGraph
    from anyaccel.graph.plan import Assignment, Column, Crossing, Plan

_CROSSINGS = ("value", "from", "to", "how", "a sample")
_DRAWN, _LINES = 120, 240  # boxes and lines: a graph of more is shown by its table, for it takes long to draw


# -- graphs ------------------------------------------------------------------------------------------------------------


def graph_html(graph: ModelGraph) -> str:
    """A drawing, and a table of the nodes with the device of each. Builds and places nothing, and never raises."""
    return guarded(graph, lambda: _graph(graph))


def _graph(graph: ModelGraph) -> Markup:
    shapes, found = (graph.shapes if graph.is_built else None), registry()
    shown = picture(graph.label, graph.nodes, shapes, None, found)
    boxes = [box for box in shown.boxes if box.kind != "data"]
    counted = found if shapes else None
    nodes = list(zip(boxes, graph.nodes.values(), strict=True))
    small = len(shown.boxes) <= _DRAWN and len(shown.arrows) <= _LINES
    state = number_of(len(boxes), "node") + ("" if shapes else ", not built yet: shapes are not known")
    state += "" if small else "; too large to be drawn here, graph.visualize('svg') draws it"
    drawing = element("div", svg(shown), style="overflow-x:auto") if small else None
    head = ("node", "model", "framework", "device", "parameters")
    return page(
        "ModelGraph",
        graph.label,
        line(faint(state)),
        drawing,
        table(head, nodes, lambda one: _node_row(one[0], one[1], counted)),
    )


def _node_row(box: Box, node: Node, found: Registry | None) -> Markup:
    count = _parameters(node, box.framework, found)
    frozen = " (frozen)" if box.frozen else ""
    asked = faint(f" asks for {box.asked}") if box.asked else None
    where = joined([badge(box.device, box.where), asked])
    return row([box.title, box.lines[0], box.framework, where, f"{count}{frozen}"], device=box.device)


def _parameters(node: Node, framework: str, found: Registry | None) -> str:
    """The number of parameters, `""` where it is not known yet."""
    if isinstance(node, ConcatNode) or found is None:
        return ""
    try:
        specs = found.computing(framework).parameters(node.model).values()
    except Exception:  # a model that was changed by hand; a picture does not fail for it
        return ""
    return f"{sum(math.prod(spec.shape) for spec in specs):,}" if specs else ""


# -- plans -------------------------------------------------------------------------------------------------------------


def plan_html(plan: Plan) -> str:
    """Which node goes where and why, what is loaded, what crosses, and the notes. Never raises."""
    return guarded(plan, lambda: _plan(plan))


def _plan(plan: Plan) -> Markup:
    head = ("node", "device", "framework", "native name", "why", "parameters")
    return page(
        "Plan",
        f"of {plan.phase} on {plan.graph}",
        table(head, plan.assignments, lambda one: _assigned(one, plan)),
        *_section("loads", ("columns", "to", "as", "changed"), plan.columns, _loaded),
        *_section("crosses in every step", _CROSSINGS, plan.crossings, _crossing(plan)),
        *(line("note: ", faint(note)) for note in plan.notes),
    )


def _section(title: str, head: Sequence[str], items: Sequence[Any], make: Callable[[Any], Markup]) -> Iterator[Markup]:
    if items:
        yield line(element("strong", title))
        yield table(head, items, make)


def _assigned(one: Assignment, plan: Plan) -> Markup:
    device = str(one.device)
    why = plan.explain(one.node).partition(" because ")[2].removesuffix(".") or one.reason
    parameters = f"{one.parameters:,}" + (" (frozen)" if one.frozen else "")
    return row([one.node, badge(device), one.framework, one.native, prose(why), parameters], device=device)


def _loaded(one: Column) -> Markup:
    device = str(one.device)
    stream = f" (stream {one.stream})" if one.stream else ""
    names = f"{one.feature_set}: {listing(one.columns)}{stream}"
    return row([prose(names), badge(device), f"{one.framework} {one.spec}", one.change], device=device)


def _crossing(plan: Plan) -> Callable[[Crossing], Markup]:
    frameworks = {one.node: one.framework for one in plan.assignments}

    def made(one: Crossing) -> Markup:
        value = f"gradient of {one.value}" if one.gradient else one.value
        return row([value, *_ends(one, frameworks), ROUTES.get(one.route, one.route), size(one.nbytes)])

    return made


def _ends(one: Crossing, frameworks: Mapping[str, str]) -> Iterator[Markup]:
    for node, device in ((one.source, one.origin), (one.target, one.destination)):
        yield element("span", badge(str(device)), " ", frameworks.get(node, ""))
