"""Segments made concrete: operations in order, what arrives where, and what leaves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from anyaccel.device import Device
from anyaccel.graph.nodes import ModelNode, Node
from anyaccel.graph.plan import Assignment, Column
from anyaccel.graph.shape_inference import Shapes, is_floating
from anyaccel.segment import LossTerm, NodeState, Operation, ParameterGroup, Segment, TensorSpec


@dataclass(frozen=True, slots=True)
class Material:
    """What segments are made of. `inputs` names each node's values, columns in the form in which it takes them."""

    nodes: Mapping[str, Node]
    shapes: Shapes
    assigned: Mapping[str, Assignment]
    inputs: Mapping[str, tuple[str, ...]]
    columns: Mapping[str, Column]
    terms: tuple[LossTerm, ...]
    groups: tuple[ParameterGroup, ...]
    in_training: frozenset[str]
    live: frozenset[str]
    wants: tuple[str, ...]
    states: Mapping[str, NodeState]

    def segment(self, label: str, part: Sequence[str]) -> Segment:
        """The segment of some nodes."""
        operations = tuple(self._operation(one) for one in part)
        losses = tuple(term for term in self.terms if term.on in part)
        made = {name for operation in operations for name in operation.outputs}
        arrivals = {name: device for name, device in _arrivals(operations, losses).items() if name not in made}
        needed = self._needed_outside(part)
        mine = (replace(group, nodes=tuple(one for one in group.nodes if one in part)) for group in self.groups)
        return Segment(
            label,
            operations,
            {name: (self._spec(name), device) for name, device in arrivals.items()},
            tuple(name for operation in operations for name in operation.outputs if name in needed),
            losses,
            tuple(group for group in mine if group.nodes),
            tuple(name for name in arrivals if name in self.live and is_floating(self._spec(name).dtype)),
            {one: self.states[one] for one in part if one in self.states},
        )

    def _operation(self, label: str) -> Operation:
        node, device, trains = self.nodes[label], self.assigned[label].device, label in self.in_training
        inputs, outputs = self.inputs[label], self.shapes.outputs[label]
        if isinstance(node, ModelNode):
            return Operation(label, node.model, inputs, outputs, device, trains)
        return Operation(label, None, inputs, outputs, device, trains, node.axis)

    def _spec(self, name: str) -> TensorSpec:
        return self.columns[name].spec if name in self.columns else self.shapes.specs[name]

    def _needed_outside(self, part: Sequence[str]) -> set[str]:
        needed = {name for label in self.wants for name in self.shapes.outputs[label]}
        needed.update(name for label, names in self.inputs.items() if label not in part for name in names)
        needed.update(name for term in self.terms if term.on not in part for name in term.inputs)
        return needed


def _arrivals(operations: Iterable[Operation], losses: Iterable[LossTerm]) -> dict[str, Device]:
    """The device on which each value arrives: that of the first who takes it."""
    takers: list[Operation | LossTerm] = [*operations, *losses]
    devices: dict[str, Device] = {}
    for taker in takers:
        for name in taker.inputs:
            devices.setdefault(name, taker.device)
    return devices
