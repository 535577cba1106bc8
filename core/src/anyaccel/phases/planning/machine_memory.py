"""Memory of the devices of a machine, here or described: how much there is, and how much of it is free."""

from __future__ import annotations

from anyaccel.device import Device
from anyaccel.graph import Assignment, ModelGraph, Plan
from anyaccel.phases.loading.loader_factory import Place
from anyaccel.registry import Registry


def capacity(place: Place, known: Registry) -> int | None:
    """Bytes of memory of a device; None if unknown or without a limit."""
    return known.total_memory(*place)


def unknown_capacity(device: Device, known: Registry) -> str:
    """Why `capacity` is None."""
    if not known.is_of_this_machine and device.kind == "cpu":
        return "the machine was described without it: write mem=64GB"
    return "the memory of the device is unknown, or without a limit"


def free_after_placement(place: Place, plan: Plan, graph: ModelGraph, known: Registry) -> int | None:
    """Bytes that are free once the models of a plan are on a device; None if unknown."""
    free = known.free_memory(*place)
    nodes = [each for each in plan.assignments if (each.framework, each.device) == place]
    if known.is_of_this_machine:
        nodes = [each for each in nodes if not _is_there(each, graph)]
    return max(free - sum(each.resident_nbytes for each in nodes), 0) if free else None


def _is_there(assignment: Assignment, graph: ModelGraph) -> bool:
    """Whether a node needs no more memory on its device."""
    model = getattr(graph[assignment.node], "model", None)
    return model is None or assignment.backend.device_of(model) == assignment.device
