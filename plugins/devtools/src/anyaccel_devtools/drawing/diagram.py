"""Diagram: the boxes and arrows of a graph, as every drawing format needs them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anyaccel.data import Reference
from anyaccel.errors import GraphError
from anyaccel.graph.node_places import NodePlace, node_places
from anyaccel.graph.nodes import ConcatNode, ModelNode, Node, model_name
from anyaccel.graph.plan import Plan
from anyaccel.graph.shape_inference import Shapes
from anyaccel.html import listing, text
from anyaccel.registry import Registry
from anyaccel_devtools.drawing.plan_pages import ROUTES

_MAX_COLUMNS = 4  # columns of a feature set that a box lists


@dataclass(frozen=True, slots=True)
class Box:
    """A node, or columns of a feature set.

    Attributes:
        kind: `"model"`, `"concat"` or `"data"`.
        device: Device as text, `""` if not known yet; `where` is the text to show.
        requested: Device that the node requests, if it is a different one.
    """

    id: str
    kind: str
    title: str
    framework: str = ""
    device: str = ""
    where: str = ""
    requested: str = ""
    lines: tuple[str, ...] = ()
    frozen: bool = False


@dataclass(frozen=True, slots=True)
class Arrow:
    """An edge between boxes, by their `id`; `crosses` if their devices or frameworks differ."""

    source: str
    target: str
    label: str = ""
    crosses: bool = False


@dataclass(frozen=True, slots=True)
class Diagram:
    """A graph to draw."""

    label: str
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]

    @property
    def devices(self) -> tuple[str, ...]:
        """All devices of the boxes, sorted."""
        return tuple(sorted({box.device for box in self.boxes if box.device}))


def build_diagram(
    label: str, nodes: Mapping[str, Node], shapes: Shapes | None, plan: Plan | None, registry: Registry
) -> Diagram:
    """Return the diagram of a graph in its current state; builds, places, imports and initializes nothing.

    Raises:
        GraphError: the plan is of another graph.
    """
    if plan is not None and not all(assignment.node in nodes for assignment in plan.assignments):
        raise GraphError(
            f"the plan of {plan.phase!r} belongs to the graph {plan.graph!r}, not to {label!r}",
            available=", ".join(nodes),
            hint="make a new plan with experiment.plan(phase)",
        )
    places = node_places(nodes, shapes, plan, registry)
    ids = {name: f"n{i}" for i, name in enumerate(nodes)}
    boxes = [_box(ids[name], node, nodes, shapes, places[name]) for name, node in nodes.items()]
    data: dict[Any, Box] = {}
    arrows: dict[tuple[str, str], Arrow] = {}
    for name, node in nodes.items():
        for upstream in node.upstreams:
            if isinstance(upstream, Reference):
                # The box of these columns, created on first use
                origin, stream = upstream.feature_set, getattr(upstream, "stream", None)
                key = (origin.label, upstream.features, stream)
                if key not in data:
                    names = [f"{text(name, 24)} {origin.spec(name)}" for name in upstream.features[:_MAX_COLUMNS]]
                    rest = len(upstream.features) - len(names)
                    lines = [
                        *names,
                        *([f"and {rest:,} more"] if rest else []),
                        *([f"stream {text(stream)}"] if stream else []),
                    ]
                    data[key] = Box(f"d{len(data)}", "data", text(origin.label), lines=tuple(lines))
                arrow = Arrow(data[key].id, ids[name])
            else:
                source, _, output = upstream.partition(".")
                # Whether two nodes are known to differ in framework or device.
                first = places[source]
                second = places[name]
                pairs = ((first.framework, second.framework), (first.device, second.device))
                crosses = any(a and b and a != b for a, b in pairs)
                route = _route(source, name, plan) if crosses else ""
                arrow = Arrow(ids[source], ids[name], ", ".join(filter(None, [text(output), route])), crosses)
            arrows[arrow.source, arrow.target] = _merged(arrows.get((arrow.source, arrow.target)), arrow)
    return Diagram(label, (*data.values(), *boxes), tuple(arrows.values()))


def _box(box_id: str, node: Node, nodes: Mapping[str, Node], shapes: Shapes | None, place: NodePlace) -> Box:
    flow: tuple[str, ...] = ()
    if shapes is not None and node.label in shapes.outputs:
        inputs = _counted([str(spec) for spec in shapes.wanted(node.label)])
        outputs = _counted([str(shapes.specs[name]) for name in shapes.outputs[node.label]])
        flow = (f"{inputs} \N{RIGHTWARDS ARROW} {outputs or 'nothing yet'}",)
    if isinstance(node, ConcatNode):
        kind, lines, frozen = "concat", (f"concat along axis {node.axis}", *flow), False
    else:
        kind, lines, frozen = "model", (text(model_name(node.model)), *flow, *_sharing(node, nodes)), node.frozen
    return Box(
        box_id, kind, text(node.label), place.framework, place.device, place.where, place.requested, lines, frozen
    )


def _counted(specs: list[str]) -> str:
    """Return specs as text, equal ones with a count."""
    counts = {spec: specs.count(spec) for spec in specs}
    return listing([spec if n == 1 else f"{n} \N{MULTIPLICATION SIGN} {spec}" for spec, n in counts.items()], 2)


def _sharing(node: ModelNode, nodes: Mapping[str, Node]) -> tuple[str, ...]:
    others = [
        name
        for name, other in nodes.items()
        if other is not node and isinstance(other, ModelNode) and other.model is node.model
    ]
    return (f"shares its model with {listing(others, 3)}",) if others else ()


def _route(source: str, target: str, plan: Plan | None) -> str:
    """Return the plan's route from source to target, and whether a gradient returns. Nodes of one place share a
    crossing.
    """
    if plan is None:
        return ""
    place = (plan[target].framework, plan[target].device)
    together = {part.node for part in plan.assignments if (part.framework, part.device) == place}
    forward = [part for part in plan.crossings if part.source == source and part.target in together]
    routes = [part.route for part in forward if not part.gradient]
    back = any(part.gradient and part.target == source and part.source in together for part in plan.crossings)
    return ROUTES.get(routes[0], routes[0]) + (", gradient back" if back else "") if routes else ""


def _merged(before: Arrow | None, arrow: Arrow) -> Arrow:
    """Return one arrow for all values from one box to another."""
    if before is None or not arrow.label or arrow.label == before.label:
        return before or arrow
    return Arrow(arrow.source, arrow.target, ", ".join(filter(None, [before.label, arrow.label])), arrow.crosses)
