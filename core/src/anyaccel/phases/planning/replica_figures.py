"""Replicas in a plan: what the figures of one process leave open, and on which devices of another machine they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from anyaccel.device import Device
from anyaccel.graph import DeviceMemory, NodeActivations, Plan
from anyaccel.phases.distributed.sharding import divided_nodes
from anyaccel.phases.settings import PhaseSettings
from anyaccel.replicas import launched

if TYPE_CHECKING:
    from anyaccel.requests import InventoryRegistry

_SHARED = ("batches", "activations")
_DIVIDED = ("parameters", "gradients", "optimizer", *_SHARED)


def replica_devices(phase: PhaseSettings, frameworks: Sequence[str], known: InventoryRegistry) -> tuple[Device, ...]:
    """The devices of a described machine that a phase asks for, one for each replica; empty without a request."""
    from anyaccel.requests import RequestedAccelerator  # may not be installed

    if not phase.trains or not isinstance(phase.accelerator, RequestedAccelerator):
        return ()
    machine = known.machine(frameworks, of_all=False)
    return phase.accelerator.request.resolve(machine, strict=phase.strict).devices


def with_replicas(phase: PhaseSettings, plan: Plan, devices: Sequence[Device]) -> Plan:
    """A plan of one of several replicas: what depends on their number is not covered."""
    if not phase.trains:
        return plan
    place = launched() if phase.replicas != 1 else None
    number = len(devices) or (1 if place is None else place.size)
    if number < 2:
        return plan
    where = f", on {', '.join(map(str, devices))}" if devices else ""
    note = f"this is the plan of one of {number} replicas{where}; each takes its share of a batch"
    names: tuple[str, ...] = _SHARED
    why = f"each of {number} replicas takes its share of a batch"
    if divided_nodes(plan):
        names, why = _DIVIDED, f"what is trained is divided among {number} replicas"
    memory = tuple(_without(each, names, why) for each in plan.memory)
    shared = f"each of {number} replicas takes its share of a batch"
    activations = tuple(NodeActivations(node=each.node, rows=None, gap=shared) for each in plan.activations)
    return replace(plan, memory=memory, activations=activations, notes=(*plan.notes, note))


def _without(memory: DeviceMemory, names: Sequence[str], why: str) -> DeviceMemory:
    changes = dict.fromkeys(names)
    return replace(memory, **changes, gaps={**memory.gaps, **dict.fromkeys(names, why)})  # type: ignore[arg-type]
