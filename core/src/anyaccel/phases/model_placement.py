"""Model placement: moves nodes and their optimizer state to the devices of a plan, and to where a phase leaves them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from anyaccel.backend import Backend
from anyaccel.device import Device
from anyaccel.errors import FallbackWarning
from anyaccel.graph import ModelGraph, Plan
from anyaccel.graph.nodes import ModelNode, layout_of
from anyaccel.phases.settings import PhaseSettings
from anyaccel.registry import Registry, registry
from anyaccel.segment import NodeState
from anyaccel.user_level import user_level

_NONE: Mapping[str, Any] = {}


def final_devices(phase: PhaseSettings, plan: Plan, known: Registry | None = None) -> dict[str, Device]:
    """Where nodes go when the phase has ended. Without `strict`, nodes whose framework does not run there stay.

    Raises:
        FrameworkError, DeviceUnavailableError: no node can go there.
    """
    if phase.final_device is None:
        return {}
    frameworks = sorted({assignment.framework for assignment in plan.assignments})
    backends = known or registry()
    final = phase.final_device.on_one_device(*frameworks, strict=phase.strict, known=known)
    device = final.device
    served = [
        assignment
        for assignment in plan.assignments
        if phase.strict or backends.serves(assignment.framework, device.kind)
    ]
    for assignment in served or plan.assignments:
        backends.serving(assignment.framework, device, vendor=final.vendor)
    return {assignment.node: device for assignment in served}


def warn_of_fallbacks(plan: Plan) -> None:
    """Warn once of nodes that run on the CPU although the phase asks for another device."""
    fallbacks = [assignment for assignment in plan.assignments if assignment.reason == "fallback"]
    if fallbacks:
        names = ", ".join(f"{assignment.node} ({assignment.framework})" for assignment in fallbacks)
        warnings.warn(
            f"phase {plan.phase!r} asks for {fallbacks[0].requested!r}, where these nodes cannot run; they run on the "
            f"CPU: {names}. Give them accelerator='cpu' to say so, or the phase strict=True to make this an error.",
            FallbackWarning,
            stacklevel=user_level(),
        )


def place(graph: ModelGraph, devices: Mapping[str, Device], plans: Mapping[str, Any] = _NONE) -> None:
    """Place nodes, with the optimizer state that training left them, on devices; the graph holds the placed models.

    Args:
        graph: has the nodes.
        devices: of nodes.
        plans: of nodes whose blocks are on several devices, or rest elsewhere; their optimizer state stays with them.
    """
    for label, device in devices.items():
        node = graph[label]
        if not isinstance(node, ModelNode):
            continue
        backend = registry().find(graph.shapes.frameworks[label], device.kind)
        before, state = node.model, graph.optimizer_states.get(label)
        after = layout_of(node).place(node, backend, device, plans.get(label))
        graph.exchange_model(before, after)  # nodes that share the model go on sharing it, taking part or not
        if state is not None and label not in plans:
            graph.optimizer_states[label] = _moved(state, backend, device)


def _moved(state: NodeState, backend: Backend, device: Device) -> NodeState:
    slots = {
        name: {slot: backend.move(value, device) for slot, value in values.items()}
        for name, values in state.slots.items()
    }
    return replace(state, slots=slots)
