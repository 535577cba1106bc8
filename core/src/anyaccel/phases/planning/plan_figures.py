"""Figures of a plan: memory of each device by category, and the settings of the whole phase with reasons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from anyaccel.adapter.memory_figures import MemoryFigures
from anyaccel.adapter.step_costs import StepCosts
from anyaccel.backend import ComputingBackend
from anyaccel.device import Device
from anyaccel.formulas import OPTIMIZERS
from anyaccel.graph import Assignment, Decision, DeviceMemory, ModelGraph, NodeActivations, Plan, Resolution, topology
from anyaccel.host_memory import host_memory
from anyaccel.html import size
from anyaccel.phases.loading.loader_factory import Place
from anyaccel.phases.loading.residency import bytes_added_by_training, state_slots
from anyaccel.phases.planning.row_memory import RowMemory, row_memory
from anyaccel.phases.prepare import DrawnPart
from anyaccel.phases.settings import PhaseSettings
from anyaccel.phases.traceback_cleanup import release_frames
from anyaccel.registry import Registry
from anyaccel.segment import Segment


def with_figures(
    phase: PhaseSettings,
    plan: Plan,
    resolution: Resolution,
    graph: ModelGraph,
    parts: Sequence[DrawnPart],
    known: Registry,
) -> Plan:
    """A plan with what it needs of each device, and the decisions for the whole phase.

    Args:
        phase: bound.
        plan: of the phase.
        resolution: has the segments.
        graph: has the models.
        parts: what the phase and its validation take of their data.
        known: has the devices.
    """
    places = sorted({(each.framework, each.device) for each in plan.assignments})
    free = {p: nbytes for p in places if (nbytes := _free_after_placement(p, plan, graph, known)) is not None}
    added = bytes_added_by_training(plan, resolution.segments, graph.optimizer_states)
    rows, decisions = row_memory(phase, plan, parts, added, free)
    batch_size = max((part.epochs.batch_size for part in parts[:1] if part.epochs is not None), default=None)
    steps = _StepFigures(phase, resolution, graph, parts, rows.chunk_rows)
    memory = [
        _Figures(place, plan, resolution.segments, graph).memory(rows, steps, _capacity(place, known), known)
        for place in places
    ]
    decisions.append(_compilation(phase, resolution))
    return replace(
        plan,
        memory=tuple(memory),
        activations=tuple(_remat_figures(phase, resolution, parts)),
        decisions=tuple(decisions),
        batch_size=batch_size,
    )


def _compilation(phase: PhaseSettings, resolution: Resolution) -> Decision:
    if not phase.trains:
        return Decision("compile", "off", "only training steps are compiled")
    if len(resolution.segments) > 1 or phase.step is not None:
        why = "the steps are your own" if phase.step is not None else "several frameworks compute a step"
        return Decision("compile", "off", f"{why}, and only whole steps of one program are compiled")
    reasons = {
        "auto": "decided while it runs, from the time of plain steps and those that are left",
        "steps": "the phase asks for it; before the first step",
        "off": "the phase asks for it",
    }
    return Decision("compile", phase.compile, reasons[phase.compile])


class _Figures:
    """The figures of one framework on one device."""

    def __init__(self, place: Place, plan: Plan, segments: Sequence[Segment], graph: ModelGraph) -> None:
        self._place, self._graph = place, graph
        self._here = [each for each in plan.assignments if (each.framework, each.device) == place]
        self._optimizers = {node: group.optimizer for s in segments for group in s.groups for node in group.nodes}
        self._gaps: dict[str, str] = {}

    def memory(self, rows: RowMemory, steps: _StepFigures, total: int | None, known: Registry) -> DeviceMemory:
        """All categories."""
        framework, device = self._place
        gradients, optimizer = self._gradients(), self._optimizer()
        parameters = self._parameters()
        batches = None if self._place in rows.gaps else rows.nbytes.get(self._place, 0)
        peak, why = steps.of(self._place)
        for name, reason in (("batches", rows.gaps.get(self._place, "")), ("activations", why)):
            self._gaps |= {name: reason} if reason else {}
        if total is None:
            self._gaps["capacity"] = _unknown_capacity(device, known)
        return DeviceMemory(
            device=device,
            framework=framework,
            parameters=parameters,
            gradients=gradients,
            optimizer=optimizer,
            activations=None if peak is None else max(peak - self._measured_gradients(), 0),
            batches=batches,
            capacity=total,
            gaps=self._gaps,
        )

    def _models(self) -> Iterator[tuple[str, int]]:
        """A node for each model that is here, and the bytes of its parameters."""
        seen: set[int] = set()
        for each in self._here:
            model = getattr(self._graph[each.node], "model", None)
            if model is not None and id(model) not in seen:
                seen.add(id(model))
                yield each.node, each.resident_nbytes

    def _parameters(self) -> int | None:
        """Parameters and buffers; None if a backend does not tell buffers."""
        total = 0
        for node, nbytes in self._models():
            backend = next(each.backend for each in self._here if each.node == node)
            figures = backend.capability(MemoryFigures)
            if figures is None:
                self._gaps["parameters"] = f"the plugin of {backend.framework} does not tell the buffers of a model"
                return None
            buffers = figures.buffers(self._graph[node].model).values()  # type: ignore[union-attr]
            total += nbytes + sum(spec.nbytes for spec in buffers)
        return total

    def _measured_gradients(self) -> int:
        """Those in the peak of a step, which is measured with all weights on the device."""
        models = {id(getattr(self._graph[each.node], "model", None)): each for each in reversed(self._here)}
        return sum(each.nbytes for each in models.values() if each.node in self._optimizers)

    def _gradients(self) -> int:
        return sum(nbytes for node, nbytes in self._models() if node in self._optimizers)

    def _optimizer(self) -> int | None:
        total = 0
        for node, nbytes in self._models():
            optimizer = self._optimizers.get(node)
            if optimizer is None:
                continue
            if optimizer.own is not None:
                self._gaps["optimizer"] = f"{optimizer.name} is not one of {', '.join(OPTIMIZERS)}"
                return None
            total += nbytes * state_slots(optimizer)
        return total


def _capacity(place: Place, known: Registry) -> int | None:
    """Bytes of memory of a device; None if unknown or without a limit."""
    return known.total_memory(*place)


def _unknown_capacity(device: Device, known: Registry) -> str:
    """Why `capacity` is None."""
    if not known.is_of_this_machine and device.kind == "cpu":
        return "the machine was described without it: write mem=64GB"
    return "the memory of the device is unknown, or without a limit"


def _free_after_placement(place: Place, plan: Plan, graph: ModelGraph, known: Registry) -> int | None:
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


def _remat_figures(
    phase: PhaseSettings, resolution: Resolution, parts: Sequence[DrawnPart]
) -> Iterator[NodeActivations]:
    """The activations of each trained node with `remat`; no device is used.

    Args:
        phase: bound.
        resolution: has the segments.
        parts: the phase and its validation.
    """
    if not phase.trains:
        return
    rows, why = _rows(resolution, parts)
    for segment, backend in zip(resolution.segments, resolution.backends, strict=True):
        nodes = _recomputed_nodes(segment)
        if nodes and rows is not None:
            yield from _of_segment(segment, backend, nodes, rows)
        else:
            yield from (NodeActivations(node=node, rows=None, gap=why) for node in nodes)


def _rows(resolution: Resolution, parts: Sequence[DrawnPart]) -> tuple[int | None, str]:
    """The most rows that are computed together, or why that is not known."""
    epochs = parts[0].epochs if parts else None
    if epochs is None or any(column.ragged for column in resolution.plan.columns):
        return None, "the size of a batch is not known"
    return max(min(each.batch_size, each.microbatch_size or each.batch_size) for each in epochs.epoch(0).steps), ""


def _recomputed_nodes(segment: Segment) -> list[str]:
    precision = segment.precision
    if precision is None:
        return []
    return [op.label for op in segment.operations if op.trainable and precision.remat(op.label)]


def _of_segment(
    segment: Segment, backend: ComputingBackend, nodes: Sequence[str], rows: int
) -> Iterator[NodeActivations]:
    assert segment.precision is not None
    unknown = partial(NodeActivations, rows=rows)
    costs = backend.capability(StepCosts)
    if costs is None:
        why = f"the plugin of {backend.framework} does not tell the activations of a node"
        yield from (unknown(node=node, gap=why) for node in nodes)
        return
    plain = replace(segment, precision=replace(segment.precision, recomputed=()))
    try:
        kept, without = costs.activations(segment, rows), costs.activations(plain, rows)
    except Exception as error:  # of a user's model, which may take no tensors without values
        release_frames(error)
        why = f"measuring a step failed: {type(error).__name__}: {error}"
        yield from (unknown(node=node, gap=why) for node in nodes)
        return
    for node in nodes:
        gap = "" if node in kept and node in without else f"the plugin of {backend.framework} does not tell it"
        yield unknown(node=node, kept=kept.get(node), without_remat=without.get(node), gap=gap)


_MEASURED_SHARE = 0.25
"""The part of the free memory of the host that measuring a step may take."""
_COPIES = 8
"""Of parameters, that measuring a training step takes at most: gradients, optimizer state, and two snapshots."""


class _StepFigures:
    """What a step takes at its peak, measured where a backend can do that without the devices.

    Args:
        phase: bound.
        resolution: has the segments.
        graph: has the nodes.
        parts: the phase and its validation.
        chunk_rows: of each part, the most rows that are computed in one go.
    """

    def __init__(
        self,
        phase: PhaseSettings,
        resolution: Resolution,
        graph: ModelGraph,
        parts: Sequence[DrawnPart],
        chunk_rows: Sequence[int],
    ) -> None:
        self._phase, self._resolution, self._graph = phase, resolution, graph
        self._peaks: dict[Device, int] = {}
        self._why = ""
        if not resolution.segments:
            return
        for part, n_rows in zip(parts, chunk_rows, strict=True):
            self._why = self._reason(part) or self._measure(part, n_rows)
            if self._why:
                break

    def of(self, place: Place) -> tuple[int | None, str]:
        """Bytes on a device, or None and why."""
        return (None, self._why) if self._why else (self._peaks.get(place[1], 0), "")

    def _reason(self, part: DrawnPart) -> str:
        """Why nothing can be measured, `""` if it can."""
        segment, backend, phase = self._resolution.segments[0], self._resolution.backends[0], self._phase
        if len(self._resolution.segments) > 1:
            return "several segments compute a step, and only one is measured on its own"
        figures = backend.capability(MemoryFigures)
        if figures is None:
            return f"the plugin of {backend.framework} does not tell what a step takes"
        if phase.step is not None:
            return "the training step is your own"
        if part.epochs is None or any(column.ragged for column in self._resolution.plan.columns):
            return "the size of a batch is not known"
        weights = sum(each.nbytes for each in self._resolution.plan.assignments)
        rows = sum(spec.nbytes for spec, _ in segment.inputs.values()) * part.epochs.batch_size
        needed, free = _COPIES * weights + 4 * rows, host_memory().free
        if figures.allocates and free and needed > _MEASURED_SHARE * free:
            return f"measuring a step would take {size(needed)} of this machine's memory"
        return ""

    def _measure(self, part: DrawnPart, n_rows: int) -> str:
        """Measure a step of a part; why that failed, `""` if it did not."""
        segment, backend = self._resolution.segments[0], self._resolution.backends[0]
        assert part.epochs is not None
        figures = backend.required(MemoryFigures)
        trains = part.part.trains
        own = segment if trains else replace(segment, groups=(), states={})
        try:
            peaks = figures.step_memory(own, part.epochs.batch_size, part.part.accumulate, part.epochs.n_steps)
        except Exception as error:  # of a user's model or loss, which may take no rows of zeros
            release_frames(error)
            return f"measuring a step failed: {type(error).__name__}: {error}"
        if peaks is None:
            return f"{backend.framework} does not tell what a step takes"
        waiting = {} if trains else self._waiting(part, n_rows - part.epochs.batch_size)
        for device, nbytes in peaks.items():  # gradients and snapshots are gone when a validation begins
            self._peaks[device] = max(self._peaks.get(device, 0), nbytes + waiting.get(device, 0))
        return ""

    def _waiting(self, part: DrawnPart, n_rows: int) -> Mapping[Device, int]:
        """Bytes of outputs of earlier steps that wait on their devices until they are copied to the host together."""
        shapes, plan, waiting = self._resolution.shapes, self._resolution.plan, dict[Device, int]()
        for label in dict.fromkeys(self._wanted(part)):
            nbytes = sum(shapes.specs[name].nbytes for name in shapes.outputs[label])
            waiting[plan.device(label)] = waiting.get(plan.device(label), 0) + max(n_rows, 0) * nbytes
        return waiting

    def _wanted(self, part: DrawnPart) -> Iterator[str]:
        """Nodes whose outputs an evaluation takes to the host."""
        phase, graph = self._phase, self._graph
        learners = phase.learners(graph)
        if part.part is phase:
            yield from phase.kept_nodes(graph, ())
        if any(metric.node in learners for metric in part.metrics):
            yield from topology.upstream_nodes(learners, graph.nodes)
        yield from (metric.node for metric in part.metrics if metric.node not in learners)
