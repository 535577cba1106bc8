"""Bound phase: a phase with what depends on its graph filled in: the node of its losses, and its device."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from anyaccel.accelerator import Accelerator
from anyaccel.device import Device
from anyaccel.errors import PhaseError
from anyaccel.graph import ModelGraph
from anyaccel.graph.applied_loss import AppliedLoss
from anyaccel.phases.process_groups import process_groups
from anyaccel.phases.settings import PhaseSettings
from anyaccel.placement import devices
from anyaccel.registry import Registry

_ONLY_BY_NAME = ("cpu", "sim")


def bound(phase: PhaseSettings, graph: ModelGraph, known: Registry | None = None) -> PhaseSettings:
    """The phase itself if nothing in it depends on the graph, else a copy.

    Losses without `on` are on the only output node; `accelerator="auto"` is the best device on which all frameworks of
    the graph run; a request is the device, or the devices of a training, that it gets of those on which some framework
    of the graph runs.

    Raises:
        PhaseError: a loss without `on`, and the graph has several output nodes.
        ConfigError: a request for another number of devices than the phase says.
        DeviceUnavailableError: nothing fits a request.
    """
    changes: dict[str, Any] = {}
    if any(not loss.on for loss in phase.losses):
        changes["losses"] = tuple(_on_output(phase.label, loss, graph) for loss in phase.losses)
    if phase.chooses_device:
        changes |= {"accelerator": Accelerator(best_common_device(_frameworks(graph), known)), "chooses_device": False}
    accelerator = changes.get("accelerator", phase.accelerator)
    groups = process_groups(phase, graph)
    devices = groups.devices(phase, accelerator, partial(_frameworks, graph), known)
    if devices:
        changes["devices"] = devices
        if accelerator is not None:
            changes["accelerator"] = accelerator.at(devices[0])
    changes |= groups.changes(phase, devices)
    validation = phase.validation
    if validation is not None and (own_validation := bound(validation, graph, known)) is not validation:
        changes["validation"] = own_validation
    if not changes:
        return phase
    own = copy.copy(phase)
    vars(own).update(changes)
    return own


def _frameworks(graph: ModelGraph) -> list[str]:
    return sorted({backend.framework for backend in graph.shapes.backends.values()})


def best_common_device(frameworks: Sequence[str], known: Registry | None = None) -> Device:
    """The best device on which all of these frameworks run: a GPU, another accelerator, or the CPU. Loads no other."""
    if not frameworks:
        return Device("cpu")
    first, *others = [_devices(framework, known) for framework in frameworks]
    common = (device for device in first if device.kind not in _ONLY_BY_NAME and all(device in own for own in others))
    return next(common, Device("cpu"))


def _devices(framework: str, known: Registry | None) -> Sequence[Device]:
    return devices(framework=framework) if known is None else [device for _, device in known.devices(framework)]


def _on_output(label: str, loss: AppliedLoss, graph: ModelGraph) -> AppliedLoss:
    if loss.on:
        return loss
    nodes = graph.output_nodes
    if len(nodes) > 1:
        raise PhaseError(
            f"phase {label!r} has the loss {loss.loss.name!r} without a node, and the graph has several outputs",
            available=", ".join(nodes),
            hint=f"name one: AppliedLoss({loss.loss.name!r}, on={nodes[0]!r})",
        )
    return replace(loss, on=nodes[0], label=loss.label or nodes[0])
