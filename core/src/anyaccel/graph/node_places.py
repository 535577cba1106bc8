"""Where the nodes of a graph are, as text, and the table of a graph."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from anyaccel.graph import topology
from anyaccel.graph.nodes import ConcatNode, ModelNode, Node, model_name
from anyaccel.graph.plan import Plan, table
from anyaccel.graph.plan_entries import number_of
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
    known_places: dict[str, NodePlace] = {}
    for name, node in nodes.items():
        if not isinstance(node, ModelNode):
            continue
        framework, requested = node.framework or "", str(node.accelerator or "")
        if not framework and shapes is not None:
            framework = shapes.frameworks.get(name, "")
        elif not framework:
            owners = registry.owners(node.model)
            framework = owners[0] if len(owners) == 1 else ""
        try:
            current = str(registry.find(framework).device_of(node.model) or "") if framework else ""
        except Exception:  # a model under construction, or on several devices, must not break the drawing
            current = ""
        elsewhere = requested if current and requested != current else ""
        device = current or requested
        known_places[name] = NodePlace(framework, device, device or UNPLACED, elsewhere)
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


def summary(nodes: Mapping[str, Node], shapes: Shapes, registry: Registry, label: str) -> str:
    """Return a table of nodes, and the total number of parameters (shared models count once)."""
    rows = [("node", "model", "framework", "device", "takes", "gives", "parameters")]
    total, seen, places = 0, set(), node_places(nodes, shapes, None, registry)
    for name in shapes.order:
        node, place = nodes[name], places[name]
        kind, count, frozen = f"concat (axis {node.axis})" if isinstance(node, ConcatNode) else "", 0, ""
        if isinstance(node, ModelNode):
            kind, frozen = model_name(node.model), " (frozen)" if node.frozen else ""
            if shapes.outputs[name]:
                count = sum(math.prod(spec.shape) for spec in shapes.backends[name].parameters(node.model).values())
            total += 0 if id(node.model) in seen else count
            seen.add(id(node.model))
        where = f"{place.where} (asks for {place.requested})" if place.requested else place.where
        takes = ", ".join(map(str, shapes.wanted(name)))
        gives = ", ".join(str(shapes.specs[value]) for value in shapes.outputs[name])
        rows.append((name, kind, shapes.frameworks[name], where, takes, gives, f"{count:,}{frozen}"))
    return "\n".join([f"graph {label!r}", *table(rows), number_of(total, "parameter")])
