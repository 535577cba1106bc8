"""The plan of a phase for this machine or one that is described, with its memory and the decisions for the phase."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from anyaccel.adapter.memory_figures import MemoryFigures
from anyaccel.adapter.outer_contexts import OuterContexts
from anyaccel.adapter.step_costs import StepCosts
from anyaccel.backend import Backend
from anyaccel.device import Device
from anyaccel.distributions import SETTINGS, load
from anyaccel.errors import CapabilityError
from anyaccel.formulas import OPTIMIZERS
from anyaccel.graph import (
    Decision,
    DeviceMemory,
    ModelGraph,
    NodeActivations,
    Plan,
    Resolution,
    topology,
)
from anyaccel.graph.device_assignment import without_remat
from anyaccel.host_memory import host_memory
from anyaccel.phases.bound_phase import bound, final_devices
from anyaccel.phases.loading.epoch_plan import StepBlock
from anyaccel.phases.loading.host_columns import one_shape, same_array
from anyaccel.phases.loading.loader import stream_of
from anyaccel.phases.loading.residency import (
    ColumnBytes,
    MemoryBudget,
    Place,
    bytes_added_by_training,
    bytes_of,
    bytes_of_block,
    mixed_block_steps,
    mixed_words,
    state_slots,
    steps_of_block,
)
from anyaccel.phases.loading.streaming import BLOCKS
from anyaccel.phases.memory_error import release_frames
from anyaccel.phases.prepare import DrawnPart, draw_parts, leave_contexts, resolve_phase
from anyaccel.phases.process_groups import ProcessGroups, process_groups, shared_groups
from anyaccel.phases.settings import PhaseSettings
from anyaccel.printable import size
from anyaccel.registry import Registry, registry

_MEASURED_SHARE = 0.25
"""The part of the free memory of the host that measuring a step may take."""
_COPIES = 8
"""Of parameters, that measuring a training step takes at most: gradients, optimizer state, and two snapshots."""


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
        if all(assignment.reason == "default" for assignment in plan.assignments):
            frameworks = sorted({assignment.framework for assignment in plan.assignments})
            devices = [device for name in frameworks for _, device in registered.devices(name)]
            if unused := sorted({str(device) for device in devices if device.kind != "cpu"}):
                note = "not used, because neither a node nor the phase requests a device; accelerator='auto' does"
                plan = replace(plan, notes=(*plan.notes, f"{', '.join(unused)}: {note}"))
        made = with_figures(bound_phase, plan, resolution, graph, parts, registered)
    if made.replicas:
        return replace(groups.plan_of_one(bound_phase, made, made.replicas), notes=made.notes)
    if machine is None:
        return groups.plan_of_one(bound_phase, made, ())
    frameworks = sorted({backend.framework for backend in graph.shapes.backends.values()})
    asked = phase.accelerator if phase.trains else None
    requested = () if asked is None else asked.requested_devices(frameworks, machine, strict=phase.strict)
    if len(requested) > 1:
        groups = shared_groups(f"training phase {phase.label!r} on {len(requested)} devices")
    return replace(groups.plan_of_one(bound_phase, made, requested), machine=machine.description)


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
    if phase.final_device is not None:
        final_devices(phase, phase.final_device, plan, known)
    shares = groups.notes(phase, resolution, None if epochs is None else epochs.batch_size)
    return replace(plan, notes=(*plan.notes, *shares)), resolution, parts


# -- figures: memory of each device by category, and the settings of the whole phase with reasons ----------------------


def with_figures(
    phase: PhaseSettings,
    plan: Plan,
    resolution: Resolution,
    graph: ModelGraph,
    parts: Sequence[DrawnPart],
    known: Registry,
) -> Plan:
    """Return a plan with its memory needs on each device, and the decisions for the whole phase.

    Args:
        phase: The bound phase.
        plan: Its plan.
        resolution: The segments.
        graph: The models.
        parts: The data that the phase and its validation use.
        known: The devices.
    """
    places = sorted({(assignment.framework, assignment.device) for assignment in plan.assignments})
    free: dict[Place, int] = {}  # once models are placed; places with unknown memory are left out
    for place in places:
        before = known.free_memory(*place)
        taken = 0
        for assignment in plan.assignments:
            if (assignment.framework, assignment.device) == place:
                model = getattr(graph[assignment.node], "model", None)
                is_there = known.is_of_this_machine and model is not None
                is_there = is_there and assignment.backend.device_of(model) == assignment.device
                taken += 0 if is_there else assignment.resident_nbytes
        if before:
            free[place] = max(before - taken, 0)
    added = bytes_added_by_training(plan, resolution.segments, graph.optimizer_states)
    rows = row_memory(phase, plan, parts, added, free)
    peaks, why = _peaks_of_steps(phase, resolution, graph, parts, rows.chunk_rows)
    memory = [_device_memory(place, plan, resolution, graph, rows, peaks, why, known) for place in places]
    if not phase.trains:
        compiled = Decision("compile", "off", "only training steps are compiled")
    elif len(resolution.segments) > 1 or phase.step is not None:
        cause = "the phase has a custom step" if phase.step is not None else "a step runs on several frameworks"
        compiled = Decision("compile", "off", f"{cause}, and only steps of a single program are compiled")
    else:
        reasons = {
            "auto": "decided during the run, from the time of uncompiled steps and the number of steps left",
            "steps": "the phase asks for it; before the first step",
            "off": "the phase asks for it",
        }
        compiled = Decision("compile", phase.compile, reasons[phase.compile])
    return replace(
        plan,
        memory=tuple(memory),
        activations=tuple(_remat_figures(phase, resolution, parts)),
        decisions=(*rows.decisions, compiled),
        batch_size=parts[0].epochs.batch_size if parts and parts[0].epochs is not None else None,
    )


def _device_memory(
    place: Place,
    plan: Plan,
    resolution: Resolution,
    graph: ModelGraph,
    rows: RowMemory,
    peaks: Mapping[Device, int],
    why_no_peak: str,
    known: Registry,
) -> DeviceMemory:
    """Return the figures of one framework on one device, in all categories."""
    optimizers = {node: group.optimizer for s in resolution.segments for group in s.groups for node in group.nodes}
    gaps = dict.fromkeys(("optimizer", "parameters", "batches", "activations", "capacity"), "")
    parameters = gradients = optimizer = 0
    measured_gradients = 0  # in the peak of a step, which is measured with all weights on the device
    seen: set[int] = set()
    for assignment in plan.assignments:
        model = getattr(graph[assignment.node], "model", None)
        if model is None or id(model) in seen or (assignment.framework, assignment.device) != place:
            continue
        seen.add(id(model))
        nbytes = assignment.resident_nbytes
        figures = assignment.backend.capability(MemoryFigures)
        if figures is None:
            framework = assignment.backend.framework
            gaps["parameters"] = f"the plugin of {framework} does not report the buffers of a model"
        else:
            parameters += nbytes + sum(spec.nbytes for spec in figures.buffers(model).values())
        rule = optimizers.get(assignment.node)
        if rule is not None:
            gradients += nbytes
            measured_gradients += assignment.nbytes
            if rule.own is not None:
                gaps["optimizer"] = gaps["optimizer"] or f"{rule.name} is not one of {', '.join(OPTIMIZERS)}"
            else:
                optimizer += nbytes * state_slots(rule)
    gaps["batches"], gaps["activations"] = rows.gaps.get(place, ""), why_no_peak
    framework, device = place
    capacity = known.total_memory(framework, device)
    if capacity is None and not known.is_of_this_machine and device.kind == "cpu":
        gaps["capacity"] = "the description of the machine does not set it: add mem=64GB"
    elif capacity is None:
        gaps["capacity"] = "the memory of the device is unknown or unlimited"
    return DeviceMemory(
        device=device,
        framework=framework,
        parameters=None if gaps["parameters"] else parameters,
        gradients=gradients,
        optimizer=None if gaps["optimizer"] else optimizer,
        activations=None if why_no_peak else max(peaks.get(device, 0) - measured_gradients, 0),
        batches=None if place in rows.gaps else rows.nbytes.get(place, 0),
        capacity=capacity,
        gaps={name: reason for name, reason in gaps.items() if reason},
    )


def _remat_figures(
    phase: PhaseSettings, resolution: Resolution, parts: Sequence[DrawnPart]
) -> Iterator[NodeActivations]:
    """Yield the activations of each trained node with `remat`; no device is used.

    Args:
        phase: The bound phase.
        resolution: Resolution with the segments.
        parts: The phase and its validation.
    """
    if not phase.trains:
        return
    epochs = parts[0].epochs if parts else None
    rows: int | None = None  # the most rows that are computed together
    if epochs is not None and one_shape(resolution.plan.columns):
        rows = max(step.size.at_once for step in epochs.epoch(0).steps)
    recomputed = {assignment.node for assignment in resolution.plan.assignments if assignment.recomputed}
    for segment, backend in zip(resolution.segments, resolution.backends, strict=True):
        nodes = [op.label for op in segment.operations if op.trainable and op.label in recomputed]
        if not nodes:
            continue
        costs = backend.capability(StepCosts)
        kept: Mapping[str, int] = {}
        without: Mapping[str, int] = {}
        why = f"the plugin of {backend.framework} does not report it"
        if rows is None:
            why = "the size of a batch is not known"
        elif costs is None:
            why = f"the plugin of {backend.framework} does not report the activations of a node"
        else:
            try:
                kept, without = costs.activations(segment, rows), costs.activations(without_remat(segment), rows)
            except Exception as error:  # of a user's model, which may take no tensors without values
                release_frames(error)
                why = f"measuring a step failed: {type(error).__name__}: {error}"
        for node in nodes:
            gap = "" if node in kept and node in without else why
            yield NodeActivations(node=node, rows=rows, kept=kept.get(node), without_remat=without.get(node), gap=gap)


def _peaks_of_steps(
    phase: PhaseSettings,
    resolution: Resolution,
    graph: ModelGraph,
    parts: Sequence[DrawnPart],
    chunk_rows: Sequence[int],
) -> tuple[dict[Device, int], str]:
    """Return the peak memory of a step on each device, and why it is not known; `""` if it is.

    It is measured if a backend can do that without the devices.

    Args:
        phase: The bound phase.
        resolution: The segments.
        graph: The nodes.
        parts: The phase and its validation.
        chunk_rows: Largest number of rows of each part that are computed in a single call.
    """
    plan, shapes, peaks = resolution.plan, resolution.shapes, dict[Device, int]()
    if not (resolution.segments and parts):
        return peaks, ""
    segment, backend = resolution.segments[0], resolution.backends[0]
    figures = backend.capability(MemoryFigures)
    if len(resolution.segments) > 1:
        return peaks, "a step has several segments, and only a single one can be measured"
    if figures is None:
        return peaks, f"the plugin of {backend.framework} does not report the memory of a step"
    if phase.step is not None:
        return peaks, "the phase has a custom step"
    weights = sum(assignment.nbytes for assignment in plan.assignments)
    row_bytes = sum(spec.nbytes for spec, _ in segment.inputs.values())
    for part, n_rows in zip(parts, chunk_rows, strict=True):
        if part.epochs is None or not one_shape(plan.columns):
            return peaks, "the size of a batch is not known"
        batch_size = part.epochs.batch_size
        needed, free = _COPIES * weights + 4 * row_bytes * batch_size, host_memory().free
        if figures.allocates and free and needed > _MEASURED_SHARE * free:
            return peaks, f"measuring a step would take {size(needed)} of this machine's memory"
        measured = replace(segment, compile=phase.compile)  # as the programs of a run
        if not part.part.trains:
            measured = replace(measured, groups=(), states={})
        try:
            step_peaks = figures.step_memory(measured, batch_size, part.part.accumulate, part.epochs.n_steps)
        except CapabilityError as error:
            release_frames(error)
            return peaks, error.problem
        except Exception as error:  # of a user's model or loss, which may take no rows of zeros
            release_frames(error)
            return peaks, f"measuring a step failed: {type(error).__name__}: {error}"
        if step_peaks is None:
            return peaks, f"{backend.framework} does not report the memory of a step"
        waiting: dict[Device, int] = {}  # outputs of earlier steps, until they are copied to the host together
        if not part.part.trains:
            learners = phase.learners(graph)
            wanted = [*phase.kept_nodes(graph, ())] if part.part is phase else []
            for metric in part.metrics:
                wanted += topology.upstream_nodes(learners, graph.nodes) if metric.node in learners else [metric.node]
            for label in dict.fromkeys(wanted):
                nbytes = sum(shapes.specs[name].nbytes for name in shapes.outputs[label])
                device = plan.device(label)
                waiting[device] = waiting.get(device, 0) + max(n_rows - batch_size, 0) * nbytes
        for device, nbytes in step_peaks.items():  # gradients and snapshots are gone when a validation begins
            peaks[device] = max(peaks.get(device, 0), nbytes + waiting.get(device, 0))
    return peaks, ""


# -- Memory of rows: what the rows of a phase take on their devices, resident or streamed, and which of them is chosen


STREAMED, RESIDENT, MIXED = "streamed", "resident", "mixed"


@dataclass(slots=True)
class RowMemory:
    """Bytes of rows and their orders by framework and device, and why some are not covered.

    Attributes:
        chunk_rows: Maximum number of rows in a single call, for each part of the phase; 0 if unknown.
        decisions: Whether the rows of each part are resident, with the reason.
    """

    nbytes: dict[Place, int] = field(default_factory=dict)
    gaps: dict[Place, str] = field(default_factory=dict)
    chunk_rows: list[int] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)


def row_memory(
    phase: PhaseSettings,
    plan: Plan,
    parts: Sequence[DrawnPart],
    training_bytes: Mapping[Place, int],
    free: Mapping[Place, int],
) -> RowMemory:
    """Return the memory of rows, and for each part of a phase whether they are resident, with the reason.

    Args:
        phase: The phase, with its residency setting.
        plan: The plan, with the device of each column.
        parts: The phase and its validation.
        training_bytes: Bytes that training adds.
        free: Free bytes once models are placed; places with unknown memory are left out.
    """
    memory, budget = RowMemory(), MemoryBudget(free, training_bytes)
    is_ragged = not one_shape(plan.columns)
    place_of = {column.name: (column.framework, column.device) for column in plan.columns}
    places = sorted(set(place_of.values()))
    arrays: dict[str, list[str]] = {}  # values that are one array in one place, by the name of the first
    distinct = {column.name: column for column in plan.columns}
    for column in plan.columns:
        first = next((name for name in arrays if same_array(column, distinct[name])), column.name)
        arrays.setdefault(first, []).append(column.name)
    for part in parts:
        epochs = part.epochs
        n_rows = {label: len(rows) for label, rows in part.data.rows.items()}
        needs = dict.fromkeys(places, 0)
        columns: list[ColumnBytes] = []
        for first, names in arrays.items():
            column = distinct[first]
            nbytes = column.spec.nbytes * n_rows.get(column.feature_set, 0)
            needs[place_of[first]] += nbytes
            columns.append(ColumnBytes.of(column, tuple(names), nbytes, n_rows.get(column.feature_set, 0)))
        resident: frozenset[str] = frozenset()  # where some columns are and others are not
        block_bytes = 0.0
        if part.data.source is not None:
            choice, why = STREAMED, "the data are a source"
        elif is_ragged:
            choice, why = STREAMED, "rows differ in length, and each batch is padded to its longest row"
        elif phase.residency != "auto":
            choice, why = phase.residency, "the phase asks for it"
        elif (full := budget.exceeded(needs)) is None:
            why = "; ".join(budget.explain(place, needs, fits=True) for place in needs)
            choice, why = RESIDENT, f"rows take {why}" if why else "there are none"
            budget.take(needs)
        else:
            figures = budget.explain(full, needs, fits=False)
            choice, why = STREAMED, f"rows take {figures}"
            resident, block_bytes = budget.split(columns)
            if resident:
                choice, why = MIXED, f"{mixed_words(columns, resident)}, because all take {figures}"
                budget.take(bytes_of(columns, resident))
        memory.decisions.append(Decision(f"residency of {part.part.label}", choice, why))
        blocks: list[StepBlock] = []
        if epochs is not None and choice != RESIDENT:
            if resident:
                steps = mixed_block_steps(columns, resident, block_bytes, epochs)
            else:
                block_bytes = bytes_of_block(free[place] for place in places if place in free)
                step_bytes = sum(distinct[name].spec.nbytes for name in arrays) * epochs.batch_size
                steps = steps_of_block(block_bytes, step_bytes, epochs.n_steps)
            blocks = list(epochs.epoch(0).blocks(steps))
        if epochs is None or is_ragged:
            padded = "each batch is padded to its own length"
            gap = "the number of rows of a source is unknown" if epochs is None else padded
            memory.gaps.update(dict.fromkeys(places, gap))
            memory.chunk_rows.append(0)
            continue
        epoch = epochs.epoch(0)
        calls = [block.steps for block in blocks] or [epoch.steps]
        memory.chunk_rows.append(max(sum(step.n_steps * step.batch_size for step in steps) for steps in calls))
        # Blocks that are in transit, waiting and computed at once, and the rows of the largest.
        held = min(BLOCKS, len(blocks))
        rows = max((stop - start for block in blocks for start, stop in block.spans.values()), default=0)
        sizes: dict[tuple[object, ...], tuple[Place, int]] = {}
        for column in plan.columns:
            place, stream = place_of[column.name], stream_of(column)
            index_bytes = np.dtype(column.backend.index_dtype).itemsize
            if choice == RESIDENT:
                order = epoch.orders.get(stream)
                if order is not None:  # once on a device, however many columns read it
                    sizes["order", id(order), place] = place, len(order) * index_bytes
            elif column.name in resident:  # whose row numbers are copied with the blocks of the others
                sizes["row numbers", stream, place] = place, held * rows * index_bytes
            else:
                sizes[stream, column.columns, place, column.spec] = place, held * rows * column.spec.nbytes
                sizes["order", place] = place, rows * index_bytes
        in_place = needs if choice == RESIDENT else bytes_of(columns, resident)
        for place, nbytes in (*in_place.items(), *sizes.values()):
            memory.nbytes[place] = memory.nbytes.get(place, 0) + nbytes
    return memory
