"""Bound phase: a phase with what depends on its graph filled in: the node of its losses, and its device."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from anyaccel.accelerator import Accelerator
from anyaccel.device import Device
from anyaccel.errors import FallbackWarning, PhaseError
from anyaccel.graph import ModelGraph, Plan
from anyaccel.graph.nodes import ModelNode, layout_of
from anyaccel.phases.process_groups import process_groups
from anyaccel.phases.settings import PhaseSettings
from anyaccel.registry import Registry, registry
from anyaccel.user_level import user_level

_ONLY_BY_NAME = ("cpu", "sim")


def bound(phase: PhaseSettings, graph: ModelGraph, known: Registry | None = None) -> PhaseSettings:
    """Return the phase itself if nothing in it depends on the graph, otherwise a copy.

    Losses without `on` are applied to the only output node. `accelerator="auto"` is the best device on which all
    frameworks of the graph run. A request is resolved to the device, or to the devices of a training, among those
    supported by the graph's frameworks.

    Raises:
        PhaseError: a loss without `on`, and the graph has several output nodes.
        ConfigError: a request for another number of devices than the phase specifies.
        DeviceUnavailableError: nothing fits a request.
    """
    changes: dict[str, Any] = {}
    losses = [*phase.losses]
    for i, loss in enumerate(phase.losses):
        if loss.on:
            continue
        nodes = graph.output_nodes
        if len(nodes) > 1:
            name = loss.loss.name
            raise PhaseError(
                f"phase {phase.label!r} has the loss {name!r} on no particular node, but the graph has several outputs",
                available=", ".join(nodes),
                hint=f"name one: AppliedLoss({name!r}, on={nodes[0]!r})",
            )
        losses[i] = replace(loss, on=nodes[0], label=loss.label or nodes[0])
        changes["losses"] = tuple(losses)
    if phase.chooses_device:
        changes |= {"accelerator": Accelerator(best_common_device(_frameworks(graph), known)), "chooses_device": False}
    accelerator = changes.get("accelerator", phase.accelerator)
    groups = process_groups(phase, graph)
    devices = groups.devices(phase, accelerator, partial(_frameworks, graph), known)
    if devices:
        changes["devices"] = devices
        if accelerator is not None:
            changes["accelerator"] = accelerator.at(devices[0])
    if phase.per_replica:
        changes |= groups.changes(phase, devices)
    validation = phase.validation
    if validation is not None and (own_validation := bound(validation, graph, known)) is not validation:
        changes["validation"] = own_validation
    if not changes:
        return phase
    copied = copy.copy(phase)
    vars(copied).update(changes)
    return copied


def _frameworks(graph: ModelGraph) -> list[str]:
    return sorted({*graph.shapes.frameworks.values()})


def best_common_device(frameworks: Sequence[str], known: Registry | None = None) -> Device:
    """Return the best device for all of these frameworks: a GPU, another accelerator, or the CPU. Loads no others."""
    common: list[Device] = []
    for number, framework in enumerate(frameworks):
        devices = [device for _, device in (known or registry()).devices(framework)]
        common = [device for device in devices if number == 0 or device in common]
    accelerators = [(device.kind != "gpu", device) for device in common if device.kind not in _ONLY_BY_NAME]
    return min(accelerators)[1] if accelerators else Device("cpu")


# -- Model placement: moves nodes and their optimizer state to the devices of a plan, and to where a phase leaves them


_NONE: Mapping[str, Any] = {}


def final_devices(
    phase: PhaseSettings, final_device: Accelerator, plan: Plan, known: Registry | None = None
) -> dict[str, Device]:
    """Return the devices of nodes after the phase. Without `strict`, a node stays if its framework does not run there.

    Raises:
        FrameworkError, DeviceUnavailableError: no node can be moved there.
    """
    frameworks = sorted({assignment.framework for assignment in plan.assignments})
    backends = known or registry()
    final = final_device.on_one_device(*frameworks, strict=phase.strict, known=known)
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
    """Warn once of nodes that run on the CPU although the phase requests another device."""
    names, requested = list[str](), ""
    for assignment in plan.assignments:
        if assignment.reason == "fallback":
            names.append(f"{assignment.node} ({assignment.framework})")
            requested = requested or assignment.requested
    if names:
        warnings.warn(
            f"phase {plan.phase!r} asks for {requested!r}, but these nodes cannot run there and run on the CPU: "
            f"{', '.join(names)}. Hint: set accelerator='cpu' on them to silence this warning, or strict=True on the "
            "phase to make it an error.",
            FallbackWarning,
            stacklevel=user_level(),
        )


def place(graph: ModelGraph, devices: Mapping[str, Device], plans: Mapping[str, Any] = _NONE) -> None:
    """Place nodes, with their optimizer state from training, on devices; the graph then holds the placed models.

    Args:
        graph: The graph with the nodes.
        devices: Devices of the nodes.
        plans: Plans of nodes whose blocks are on several devices or stored elsewhere; their optimizer state stays with
            them.
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
            slots = {
                name: {slot: backend.move(value, device) for slot, value in values.items()}
                for name, values in state.slots.items()
            }
            graph.optimizer_states[label] = replace(state, slots=slots)
