"""Placing: nodes and their optimizer state, where a plan says, and where a phase leaves them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace

from anyaccel.backend import ComputingBackend
from anyaccel.device import Device
from anyaccel.errors import FallbackWarning
from anyaccel.graph import ModelGraph, Plan
from anyaccel.graph.nodes import ModelNode
from anyaccel.phases.phase import Phase
from anyaccel.registry import registry
from anyaccel.segment import NodeState


def afterwards(phase: Phase, plan: Plan) -> dict[str, Device]:
    """Where nodes go when the phase has ended; those that are not served there stay, unless the phase is strict.

    Raises:
        FrameworkError, DeviceUnavailableError: no node can go there.
    """
    if phase.final_device is None:
        return {}
    device, found = phase.final_device.device, registry()
    served = [one for one in plan.assignments if phase.strict or found.serves(one.framework, device.kind)]
    for one in served or plan.assignments:
        found.serving(one.framework, device, vendor=phase.final_device.vendor)
    return {one.node: device for one in served}


def warn(plan: Plan) -> None:
    """LogEvent once of nodes that run on the CPU although the phase asks for another device."""
    fallbacks = [one for one in plan.assignments if one.reason == "fallback"]
    if fallbacks:
        names = ", ".join(f"{one.node} ({one.framework})" for one in fallbacks)
        warnings.warn(
            f"phase {plan.phase!r} asks for {fallbacks[0].requested!r}, on which these nodes are not served; they run on "
            f"the CPU: {names}. Give them accelerator='cpu' to say so, or the phase strict=True to forbid it.",
            FallbackWarning,
            stacklevel=7,
        )


def place(graph: ModelGraph, devices: Mapping[str, Device]) -> None:
    """Place nodes, and the optimizer state that training left them, on devices; the graph holds what comes back."""
    models = [node for node in graph.nodes.values() if isinstance(node, ModelNode)]
    for label, device in devices.items():
        node = graph[label]
        if not isinstance(node, ModelNode):
            continue
        backend = registry().computing(graph.shapes.frameworks[label], device.kind)
        before, after = node.model, backend.place(node.model, device)
        for other in models:  # those that share the model go on sharing it, whether they take part or not
            if other.model is before:
                other.model = after
        if label in graph.optimizer_states:
            graph.optimizer_states[label] = _moved(graph.optimizer_states[label], backend, device)


def _moved(state: NodeState, backend: ComputingBackend, device: Device) -> NodeState:
    slots = {
        name: {slot: backend.move(value, device) for slot, value in values.items()}
        for name, values in state.slots.items()
    }
    return replace(state, slots=slots)
