"""Machine plan: the plan of a phase for this machine or one that is described."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from anyaccel.adapter.outer_contexts import OuterContexts
from anyaccel.backend import Backend
from anyaccel.distributions import SETTINGS, load
from anyaccel.graph import ModelGraph, Plan, Resolution
from anyaccel.phases.bound_phase import bound, final_devices
from anyaccel.phases.planning.plan_figures import with_figures
from anyaccel.phases.prepare import DrawnPart, draw_parts, leave_contexts, resolve_phase
from anyaccel.phases.process_groups import ProcessGroups, process_groups, shared_groups
from anyaccel.phases.settings import PhaseSettings
from anyaccel.registry import Registry, registry


def plan_of(phase: PhaseSettings, graph: ModelGraph) -> Plan:
    """Return the plan of a phase on a graph, without running anything, and without memory figures.

    Raises:
        AnyaccelError: anything that would keep the phase from running, if known beforehand.
    """
    with leave_contexts(graph) as left:
        bound_phase = bound(phase, graph)
        return _planned(bound_phase, graph, process_groups(bound_phase, graph), registry(), left)[0]


def plan_for(phase: PhaseSettings, graph: ModelGraph, inventory: Any = None) -> Plan:
    """Return the plan of a phase with figures, for this machine or another.

    Args:
        phase: The phase to plan.
        graph: The graph that it runs on.
        inventory: An Inventory, or one in words; None for this machine.

    Raises:
        AnyaccelError: see `plan_of`; ConfigError if `inventory` is not an inventory.
    """
    machine: Registry | None = None
    if inventory is not None:
        machine = load(SETTINGS, "plan.inventory")(inventory)
    registered = machine or registry()
    bound_phase = bound(phase, graph, machine)
    groups = process_groups(bound_phase, graph)
    with leave_contexts(graph) as left:
        plan, resolution, parts = _planned(bound_phase, graph, groups, registered, left)
        plan = replace(plan, notes=(*plan.notes, *_unused_devices(plan, registered)))
        made = with_figures(bound_phase, plan, resolution, graph, parts, registered)
    if made.replicas:
        return replace(groups.plan_of_one(bound_phase, made, made.replicas), notes=made.notes)
    if machine is None:
        return groups.plan_of_one(bound_phase, made, ())
    frameworks = sorted({backend.framework for backend in graph.shapes.backends.values()})
    asked = phase.accelerator if phase.trains else None
    devices = () if asked is None else asked.requested_devices(frameworks, machine, strict=phase.strict)
    if len(devices) > 1:
        groups = shared_groups(f"training phase {phase.label!r} on {len(devices)} devices")
    return replace(groups.plan_of_one(bound_phase, made, devices), machine=machine.description)


def _planned(
    phase: PhaseSettings,
    graph: ModelGraph,
    groups: ProcessGroups,
    known: Registry,
    left: Mapping[Backend, OuterContexts],
) -> tuple[Plan, Resolution, list[DrawnPart]]:
    resolution, learners = resolve_phase(phase, graph, groups, left, known=known)
    plan = resolution.plan
    parts = draw_parts(phase, plan, graph, (*learners, *phase.next_to_fit(graph, ())), groups)
    epochs = parts[0].epochs
    final_devices(phase, plan, known)
    shares = groups.notes(phase, resolution, None if epochs is None else epochs.batch_size)
    return replace(plan, notes=(*plan.notes, *shares)), resolution, parts


def _unused_devices(plan: Plan, known: Registry) -> Iterator[str]:
    if any(assignment.reason != "default" for assignment in plan.assignments):
        return
    frameworks = sorted({assignment.framework for assignment in plan.assignments})
    there = {str(device) for name in frameworks for _, device in known.devices(name) if device.kind != "cpu"}
    if there:
        where = ", ".join(sorted(there))
        yield f"{where}: not used, because neither a node nor the phase requests a device; accelerator='auto' does"
