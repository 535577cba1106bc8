"""Segment builder: the segments of a phase as backends receive them, with operations, inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from anyaccel.device import Device
from anyaccel.graph.nodes import ModelNode, Node
from anyaccel.graph.plan_entries import Assignment, Column
from anyaccel.graph.precision_assignment import segment_precision
from anyaccel.graph.resolution import Request
from anyaccel.graph.shape_inference import Shapes, is_floating
from anyaccel.graph.training_outputs import training_results, with_batch
from anyaccel.segment import (
    LossTerm,
    NodeState,
    Operation,
    OutputSpec,
    ParameterGroup,
    Segment,
    TensorSpec,
    positional_outputs,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentBuilder:
    """Builds the segments of a phase.

    Attributes:
        inputs: names of each node's input values, with columns in the form in which the node takes them.
        in_training: labels of the nodes that run in training mode.
        live: names of the values through which gradients flow.
        wants: labels of the nodes whose outputs are kept.
        states: optimizer state by node.
        request: of the phase.
    """

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
    request: Request

    def segment(self, label: str, part: Sequence[str]) -> Segment:
        """The segment of some nodes, given in topological order."""
        operations = tuple(map(self._operation, part))
        losses = tuple(term for term in self.terms if term.on in part)
        computed = {name for operation in operations for name in operation.outputs}
        arrivals = {name: device for name, device in _arrivals(operations, losses).items() if name not in computed}
        needed = self._needed_outside(part)
        groups = (replace(group, nodes=tuple(node for node in group.nodes if node in part)) for group in self.groups)
        return Segment(
            label=label,
            operations=operations,
            inputs={name: (self._spec(name), device) for name, device in arrivals.items()},
            outputs=tuple(name for operation in operations for name in operation.outputs if name in needed),
            losses=losses,
            groups=tuple(group for group in groups if group.nodes),
            needs_pullback=tuple(
                name for name in arrivals if name in self.live and is_floating(self._spec(name).dtype)
            ),
            states={node: self.states[node] for node in part if node in self.states},
            frozen=self._frozen(self.shapes.frameworks[part[0]]),
            precision=segment_precision(part, self.assigned, self.nodes, self.request),
        )

    def _frozen(self, framework: str) -> dict[str, Any]:
        models = {label: node for label, node in self.nodes.items() if isinstance(node, ModelNode) and node.frozen}
        alike = (label for label in models if self.shapes.frameworks[label] == framework)
        return {label: models[label].model for label in alike if self.shapes.outputs[label]}

    def _operation(self, label: str) -> Operation:
        node = self.nodes[label]
        model, axis = (node.model, -1) if isinstance(node, ModelNode) else (None, node.axis)
        added = self._batch_values(label)
        extra = self.shapes.training_only.get(label, ()) if label in self.in_training else ()
        usual = self.shapes.outputs[label]
        returned, training = self.shapes.returned.get(label, ()), self.shapes.training.get(label, ())
        results = [*with_batch(returned), *added.values()]
        in_training = training_results(returned, training, len(usual) + len(extra))
        in_training[len(usual) : len(usual)] = added.values()
        return Operation(
            label=label,
            model=model,
            inputs=self.inputs[label],
            outputs=(*usual, *added, *extra),
            device=self.assigned[label].device,
            trainable=label in self.in_training,
            axis=axis,
            arguments=self.shapes.arguments.get(label, ()),
            results=() if _in_order(results, returned) else tuple(results),
            training_results=() if _in_order(in_training, training or returned) else tuple(in_training),
            training_only=len(extra),
            modes=node.modes if isinstance(node, ModelNode) else "train",
        )

    def _batch_values(self, label: str) -> dict[str, OutputSpec]:
        """What a node's model returns once for a batch, where a loss takes it."""
        taken = {name for term in self.terms if term.on == label for name in term.inputs}
        return {name: output for name, output in self.shapes.batch_values(label).items() if name in taken}

    def _spec(self, name: str) -> TensorSpec:
        return self.columns[name].spec if name in self.columns else self.shapes.specs[name]

    def _needed_outside(self, part: Sequence[str]) -> set[str]:
        needed = {name for label in self.wants for name in self.shapes.outputs[label]}
        needed.update(name for label, names in self.inputs.items() if label not in part for name in names)
        needed.update(name for term in self.terms if term.on not in part for name in term.inputs)
        return needed


def _in_order(results: Sequence[OutputSpec | None], returned: Sequence[OutputSpec]) -> bool:
    """Whether the results of an operation are all that a model returns, in order and batch first."""
    specs = [output.spec for output in results if output is not None]
    return None not in results and list(returned) == list(positional_outputs(specs))


def _arrivals(operations: Iterable[Operation], losses: Iterable[LossTerm]) -> dict[str, Device]:
    """The device on which each value arrives: that of the first operation or loss that takes it."""
    takers: list[Operation | LossTerm] = [*operations, *losses]
    devices: dict[str, Device] = {}
    for taker in takers:
        for name in taker.inputs:
            devices.setdefault(name, taker.device)
    return devices
