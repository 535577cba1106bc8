"""Where the nodes of a graph are, as text, and the table of a graph."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from anyaccel.graph import topology
from anyaccel.graph.nodes import ConcatNode, ModelNode, Node, model_name
from anyaccel.graph.plan import Plan, number_of, table
from anyaccel.graph.shape_inference import Shapes
from anyaccel.registry import Registry

UNPLACED = "as set by the phase"


@dataclass(frozen=True, slots=True)
class NodePlace:
    """Where a node is.

    Attributes:
        framework, device: Framework and device; each `""` if unknown.
        where: The text to show.
        requested: Device that the node asks for, if it is another one.
    """

    framework: str
    device: str
    where: str
    requested: str = ""


def node_places(
    nodes: Mapping[str, Node], shapes: Shapes | None, plan: Plan | None, registry: Registry
) -> dict[str, NodePlace]:
    """Return the place of each node: by the plan, otherwise where its model is now, otherwise the device it asks
    for.
    """
    known_places = {
        name: _current_place(node, shapes, registry) for name, node in nodes.items() if isinstance(node, ModelNode)
    }
    for name in reversed(topology.topological(nodes)):
        if name not in known_places:
            near = [*topology.consumers(name, nodes), *topology.parents(nodes[name], nodes)]
            places = [known_places[other] for other in near if other in known_places]
            known_places[name] = replace(places[0], requested="") if places else NodePlace("", "", UNPLACED)
    if plan is not None:
        planned = {
            part.node: NodePlace(part.framework, str(part.device), str(part.device)) for part in plan.assignments
        }
        unplanned = {name: NodePlace(place.framework, "", "not in this plan") for name, place in known_places.items()}
        return {**unplanned, **planned}
    return known_places


def _current_place(node: ModelNode, shapes: Shapes | None, registry: Registry) -> NodePlace:
    framework = node.framework or (
        shapes.frameworks.get(node.label, "") if shapes else _framework(node.model, registry)
    )
    current, requested = _device_of(node.model, framework, registry), str(node.accelerator or "")
    if not current:
        return NodePlace(framework, requested, requested or UNPLACED)
    return NodePlace(framework, current, current, requested if requested != current else "")


def _framework(model: Any, registry: Registry) -> str:
    owners = registry.owners(model)
    return owners[0] if len(owners) == 1 else ""


def _device_of(model: Any, framework: str, registry: Registry) -> str:
    """Return the device of a model, `""` if it has none or its backend cannot tell."""
    try:
        return str(registry.find(framework).device_of(model) or "") if framework else ""
    except Exception:  # a model under construction, or on several devices, must not break the drawing
        return ""


def summary(nodes: Mapping[str, Node], shapes: Shapes, registry: Registry, label: str) -> str:
    """Return a table of nodes, and the total number of parameters (shared models count once)."""
    rows = [("node", "model", "framework", "device", "takes", "gives", "parameters")]
    total, seen, places = 0, set(), node_places(nodes, shapes, None, registry)
    for name in shapes.order:
        node = nodes[name]
        count = _parameters(node, shapes) if shapes.outputs[name] else 0
        model = getattr(node, "model", None)
        total += 0 if id(model) in seen else count
        seen.add(id(model) if model is not None else None)
        columns = (name, _kind(node), shapes.frameworks[name], _where(places[name]))
        rows.append((*columns, *_shapes(name, shapes), _count(node, count)))
    return "\n".join([f"graph {label!r}", *table(rows), number_of(total, "parameter")])


def _kind(node: Node) -> str:
    return f"concat (axis {node.axis})" if isinstance(node, ConcatNode) else model_name(node.model)


def _where(place: NodePlace) -> str:
    return f"{place.where} (asks for {place.requested})" if place.requested else place.where


def _shapes(name: str, shapes: Shapes) -> tuple[str, str]:
    return ", ".join(map(str, shapes.wanted(name))), ", ".join(
        str(shapes.specs[value]) for value in shapes.outputs[name]
    )


def _count(node: Node, count: int) -> str:
    return f"{count:,}" + (" (frozen)" if isinstance(node, ModelNode) and node.frozen else "")


def _parameters(node: Node, shapes: Shapes) -> int:
    if isinstance(node, ConcatNode):
        return 0
    return sum(math.prod(spec.shape) for spec in shapes.backends[node.label].parameters(node.model).values())
