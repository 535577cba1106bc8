"""What a picture of a graph tells, gathered once for every format: boxes, arrows, and the device of each box."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from anyaccel.data import Reference
from anyaccel.display import listing
from anyaccel.errors import GraphError
from anyaccel.graph import topology
from anyaccel.graph.nodes import ConcatNode, ModelNode, Node, model_name
from anyaccel.graph.plan import Plan
from anyaccel.graph.shape_inference import Shapes
from anyaccel.html import text
from anyaccel.registry import Registry

UNPLACED = "as the phase says"
_COLUMNS = 4  # columns of a feature set that a box names
ROUTES = {"move": "move", "share": "shared memory", "copy": "shared memory and a copy", "host": "through host memory"}
"""How a value crosses, in a few words."""


@dataclass(frozen=True, slots=True)
class Box:
    """A node, or columns of a feature set (`kind` is model, concat or data).

    `device` is the spelling of a device, `""` where there is none (yet); `where` is what is said of it, and `asked`
    the device that a node asks for where that is another.
    """

    id: str
    kind: str
    title: str
    framework: str = ""
    device: str = ""
    where: str = ""
    asked: str = ""
    lines: tuple[str, ...] = ()
    frozen: bool = False


@dataclass(frozen=True, slots=True)
class Arrow:
    """What one box gives another, by their `id`; `crosses` from one device or framework to another."""

    source: str
    target: str
    label: str = ""
    crosses: bool = False


@dataclass(frozen=True, slots=True)
class Picture:
    """A graph as it is shown."""

    label: str
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that occur."""
        return tuple(sorted({box.device for box in self.boxes if box.device}))


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where a node is: its framework and device (each `""` if unknown), and what is said of it; see Box."""

    framework: str
    device: str
    where: str
    asked: str = ""


def picture(
    label: str, nodes: Mapping[str, Node], shapes: Shapes | None, plan: Plan | None, found: Registry
) -> Picture:
    """Look at a graph as it is; nothing is built, placed, imported or initialised.

    Raises:
        GraphError: the plan is of another graph.
    """
    if plan is not None and not all(one.node in nodes for one in plan.assignments):
        raise GraphError(
            f"the plan of {plan.phase!r} is of the graph {plan.graph!r}, not of {label!r}",
            available=", ".join(nodes),
            hint="make it anew with experiment.plan(phase)",
        )
    places = whereabouts(nodes, shapes, plan, found)
    ids = {name: f"n{i}" for i, name in enumerate(nodes)}
    boxes = [_box(ids[name], node, nodes, shapes, places[name]) for name, node in nodes.items()]
    data: dict[Any, Box] = {}
    arrows: dict[tuple[str, str], Arrow] = {}
    for name, node in nodes.items():
        for upstream in node.upstreams:
            if isinstance(upstream, Reference):
                arrow = Arrow(_data_box(data, upstream).id, ids[name])
            else:
                arrow = _arrow(upstream, name, ids, places, plan)
            arrows[arrow.source, arrow.target] = _both(arrows.get((arrow.source, arrow.target)), arrow)
    return Picture(label, (*data.values(), *boxes), tuple(arrows.values()))


def whereabouts(
    nodes: Mapping[str, Node], shapes: Shapes | None, plan: Plan | None, found: Registry
) -> dict[str, Whereabouts]:
    """Where each node is: by the plan, else where its model is now, else where it asks to be."""
    known = {name: _placed(node, shapes, found) for name, node in nodes.items() if isinstance(node, ModelNode)}
    for name in reversed(topology.topological(nodes)):
        if name not in known:
            near = [*topology.consumers(name, nodes), *topology.parents(nodes[name], nodes)]
            places = [known[other] for other in near if other in known]
            known[name] = replace(places[0], asked="") if places else Whereabouts("", "", UNPLACED)
    if plan is not None:
        inside = {one.node: Whereabouts(one.framework, str(one.device), str(one.device)) for one in plan.assignments}
        outside = {name: Whereabouts(one.framework, "", "not in this plan") for name, one in known.items()}
        return {**outside, **inside}
    return known


def _placed(node: ModelNode, shapes: Shapes | None, found: Registry) -> Whereabouts:
    framework = node.framework or (shapes.frameworks.get(node.label, "") if shapes else _framework(node.model, found))
    now, asked = _device_of(node.model, framework, found), str(node.accelerator or "")
    if not now:
        return Whereabouts(framework, asked, asked or UNPLACED)
    return Whereabouts(framework, now, now, asked if asked != now else "")


def _framework(model: Any, found: Registry) -> str:
    owners = found.owners(model)
    return owners[0] if len(owners) == 1 else ""


def _device_of(model: Any, framework: str, found: Registry) -> str:
    """The device of a model, `""` for one that is nowhere, or of which its backend cannot tell."""
    try:
        return str(found.find(framework).device_of(model) or "") if framework else ""
    except Exception:  # a model in the making, or on several devices; a picture does not fail for it
        return ""


def _box(box_id: str, node: Node, nodes: Mapping[str, Node], shapes: Shapes | None, place: Whereabouts) -> Box:
    flow = _flow(node.label, shapes)
    if isinstance(node, ConcatNode):
        kind, lines, frozen = "concat", (f"concat along axis {node.axis}", *flow), False
    else:
        kind, lines, frozen = "model", (text(model_name(node.model)), *flow, *_sharing(node, nodes)), node.frozen
    return Box(box_id, kind, text(node.label), place.framework, place.device, place.where, place.asked, lines, frozen)


def _flow(label: str, shapes: Shapes | None) -> tuple[str, ...]:
    if shapes is None or label not in shapes.outputs:
        return ()
    given = _counted([str(spec) for spec in shapes.wanted(label)])
    made = _counted([str(shapes.specs[name]) for name in shapes.outputs[label]])
    return (f"{given} \N{RIGHTWARDS ARROW} {made or 'nothing yet'}",)


def _counted(specs: list[str]) -> str:
    """Specifications, with a number where several are equal."""
    counts = {spec: specs.count(spec) for spec in specs}
    return listing([spec if n == 1 else f"{n} \N{MULTIPLICATION SIGN} {spec}" for spec, n in counts.items()], 2)


def _sharing(node: ModelNode, nodes: Mapping[str, Node]) -> tuple[str, ...]:
    others = [
        name
        for name, other in nodes.items()
        if other is not node and isinstance(other, ModelNode) and other.model is node.model
    ]
    return (f"shares its model with {listing(others, 3)}",) if others else ()


def _data_box(boxes: dict[Any, Box], reference: Reference) -> Box:
    """The box of these columns; made when they are first met."""
    source, stream = reference.feature_set, getattr(reference, "stream", None)
    key = (source.label, reference.features, stream)
    if key not in boxes:
        names = [f"{text(name, 24)} {source.spec(name)}" for name in reference.features[:_COLUMNS]]
        rest = len(reference.features) - len(names)
        lines = [*names, *([f"and {rest:,} more"] if rest else []), *([f"stream {text(stream)}"] if stream else [])]
        boxes[key] = Box(f"d{len(boxes)}", "data", text(source.label), lines=tuple(lines))
    return boxes[key]


def _arrow(
    upstream: str, target: str, ids: Mapping[str, str], places: Mapping[str, Whereabouts], plan: Plan | None
) -> Arrow:
    source, _, output = upstream.partition(".")
    crosses = _differ(places[source], places[target])
    route = _route(source, target, plan) if crosses else ""
    return Arrow(ids[source], ids[target], ", ".join(filter(None, [text(output), route])), crosses)


def _differ(one: Whereabouts, other: Whereabouts) -> bool:
    """Whether two nodes are known to be in different places."""
    pairs = ((one.framework, other.framework), (one.device, other.device))
    return any(a and b and a != b for a, b in pairs)


def _route(source: str, target: str, plan: Plan | None) -> str:
    """How the plan takes a value there, and whether a gradient comes back. Nodes of one place share a crossing."""
    if plan is None:
        return ""
    here = plan[target]
    there = {one.node for one in plan.assignments if _same_place(one, here)}
    routes = [one.route for one in plan.crossings if one.source == source and one.target in there and not one.gradient]
    back = any(one.gradient and one.target == source and one.source in there for one in plan.crossings)
    return ROUTES.get(routes[0], routes[0]) + (", gradient back" if back else "") if routes else ""


def _same_place(one: Any, other: Any) -> bool:
    return bool((one.framework, one.device) == (other.framework, other.device))


def _both(before: Arrow | None, arrow: Arrow) -> Arrow:
    """One arrow for all that goes from a box to another."""
    if before is None or not arrow.label or arrow.label == before.label:
        return before or arrow
    return Arrow(arrow.source, arrow.target, ", ".join(filter(None, [before.label, arrow.label])), arrow.crosses)
