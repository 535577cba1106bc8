"""Machine plan: the plan of a phase for this machine or one that is described."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from anyaccel.adapter.outer_contexts import OuterContexts
from anyaccel.backend import Backend
from anyaccel.graph import ModelGraph, Plan, Resolution, resolve
from anyaccel.phases.bound_phase import bound
from anyaccel.phases.distributed.devices import check_replicable, replica_notes
from anyaccel.phases.distributed.sharding import check_sharding, sharding_notes
from anyaccel.phases.model_placement import final_devices
from anyaccel.phases.outer_contexts import check_precision, leave_contexts
from anyaccel.phases.plan_request import plan_request
from anyaccel.phases.planning.plan_figures import with_figures
from anyaccel.phases.planning.replica_figures import replica_devices, with_replicas
from anyaccel.phases.prepare import DrawnPart, draw_parts
from anyaccel.phases.settings import PhaseSettings
from anyaccel.registry import Registry, registry


def plan_of(phase: PhaseSettings, graph: ModelGraph) -> Plan:
    """The plan of a phase on a graph, without doing anything, and without figures of memory.

    Raises:
        AnyaccelError: whatever would keep the phase from running, as far as that is known beforehand.
    """
    with leave_contexts(graph) as left:
        return _planned(bound(phase, graph), graph, registry(), left)[0]


def plan_for(phase: PhaseSettings, graph: ModelGraph, inventory: Any = None) -> Plan:
    """The plan of a phase with figures, for this machine or another.

    Args:
        phase: what to plan.
        graph: the graph that it runs on.
        inventory: an Inventory, or one in words; None for this machine.

    Raises:
        AnyaccelError: as `plan_of`; ConfigError if `inventory` is none.
    """
    machine = None
    if inventory is not None:
        from anyaccel.requests import Inventory, InventoryRegistry  # may not be installed

        machine = InventoryRegistry(registry(), Inventory.parse(inventory))
    known = machine or registry()
    own = bound(phase, graph, machine)
    with leave_contexts(graph) as left:
        plan, resolution, parts = _planned(own, graph, known, left)
        plan = replace(plan, notes=(*plan.notes, *_unused_devices(plan, known)))
        made = with_figures(own, plan, resolution, graph, parts, known)
    if made.replicas:
        return replace(with_replicas(own, made, made.replicas), notes=made.notes)
    if machine is None:
        return with_replicas(own, made, ())
    frameworks = sorted({backend.framework for backend in graph.shapes.backends.values()})
    return replace(
        with_replicas(own, made, replica_devices(phase, frameworks, machine)), machine=str(machine.inventory)
    )


def _planned(
    phase: PhaseSettings, graph: ModelGraph, known: Registry, left: Mapping[Backend, OuterContexts]
) -> tuple[Plan, Resolution, list[DrawnPart]]:
    resolution = resolve(graph, plan_request(phase, graph), known)
    check_precision(phase, resolution.plan, left)
    plan = resolution.plan
    check_replicable(phase, resolution, phase.learners(graph))
    parts = draw_parts(phase, plan, graph)
    epochs = parts[0].epochs
    shares = replica_notes(phase, plan, None if epochs is None else epochs.batch_size)
    plan = replace(plan, notes=(*plan.notes, *phase.plan_notes(graph, ()), *shares))
    check_sharding(phase, resolution)
    final_devices(phase, plan, known)
    return replace(plan, notes=(*plan.notes, *sharding_notes(phase, resolution))), resolution, parts


def _unused_devices(plan: Plan, known: Registry) -> Iterator[str]:
    if any(assignment.reason != "default" for assignment in plan.assignments):
        return
    frameworks = sorted({assignment.framework for assignment in plan.assignments})
    there = {str(device) for name in frameworks for _, device in known.devices(name) if device.kind != "cpu"}
    if there:
        where = ", ".join(sorted(there))
        yield f"{where}: not used, as neither a node nor the phase asks for a device; accelerator='auto' does"
