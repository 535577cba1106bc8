"""Figures of a plan: memory of each device by category, and the settings of the whole phase with reasons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from anyaccel.adapter.memory_figures import MemoryFigures
from anyaccel.device import Device
from anyaccel.display import size
from anyaccel.graph import Decision, DeviceMemory, ModelGraph, Plan, Resolution
from anyaccel.host_memory import host_memory
from anyaccel.phases.loading.loader_factory import Place
from anyaccel.phases.loading.residency import bytes_added_by_training, state_slots
from anyaccel.phases.phase import Phase
from anyaccel.phases.planning.machine_memory import capacity, free_after_placement
from anyaccel.phases.planning.row_memory import RowMemory, row_memory
from anyaccel.phases.prepare import DrawnPart
from anyaccel.phases.traceback_cleanup import release_frames
from anyaccel.phases.train_phase import TrainPhase
from anyaccel.registry import Registry
from anyaccel.segment import Segment
from anyaccel.specs import OPTIMIZERS

_MEASURED_SHARE = 0.25
"""The part of the free memory of the host that measuring a step may take."""
_COPIES = 8
"""Of parameters, that measuring a training step takes at most: gradients, optimizer state, and two snapshots."""


def with_figures(
    phase: Phase,
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
    free = {p: nbytes for p in places if (nbytes := free_after_placement(p, plan, graph, known)) is not None}
    added = bytes_added_by_training(plan, resolution.segments, graph.optimizer_states)
    rows, decisions = row_memory(phase, plan, parts, added, free)
    batch_size = max((part.epochs.batch_size for part in parts[:1] if part.epochs is not None), default=None)
    steps = _StepFigures(phase, resolution, parts)
    memory = [
        _Figures(place, plan, resolution.segments, graph).memory(rows, steps, capacity(place, known))
        for place in places
    ]
    decisions.append(_compilation(phase, resolution))
    return replace(plan, memory=tuple(memory), decisions=tuple(decisions), batch_size=batch_size)


def _compilation(phase: Phase, resolution: Resolution) -> Decision:
    if not isinstance(phase, TrainPhase):
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

    def memory(self, rows: RowMemory, steps: _StepFigures, total: int | None) -> DeviceMemory:
        """All categories."""
        framework, device = self._place
        gradients, optimizer = self._gradients(), self._optimizer()
        parameters = self._parameters()
        batches = None if self._place in rows.gaps else rows.nbytes.get(self._place, 0)
        peak, why = steps.of(self._place)
        for name, reason in (("batches", rows.gaps.get(self._place, "")), ("activations", why)):
            self._gaps |= {name: reason} if reason else {}
        if total is None:
            self._gaps["capacity"] = "the memory of the device is unknown, or without a limit"
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
            if not isinstance(backend, MemoryFigures):
                self._gaps["parameters"] = f"the plugin of {backend.framework} does not tell the buffers of a model"
                return None
            buffers = backend.buffers(self._graph[node].model).values()  # type: ignore[union-attr]
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
            if optimizer.own is not None or optimizer.name not in OPTIMIZERS:
                self._gaps["optimizer"] = f"{optimizer.name} is not one of {', '.join(OPTIMIZERS)}"
                return None
            total += nbytes * state_slots(optimizer)
        return total


class _StepFigures:
    """What a step takes at its peak, measured where a backend can do that without the devices."""

    def __init__(self, phase: Phase, resolution: Resolution, parts: Sequence[DrawnPart]) -> None:
        self._why = self._reason(phase, resolution, parts)
        self._peaks: Mapping[Device, int] | None = None if resolution.segments else {}
        if resolution.segments and not self._why:
            segment, backend = resolution.segments[0], resolution.backends[0]
            assert isinstance(backend, MemoryFigures) and parts[0].epochs is not None
            accumulate = phase.accumulate if isinstance(phase, TrainPhase) else 1
            self._why = f"{backend.framework} does not tell what a step takes"
            try:
                epochs = parts[0].epochs
                self._peaks = backend.step_memory(segment, epochs.batch_size, accumulate, epochs.n_steps)
            except Exception as error:  # of a user's model or loss, which may take no rows of zeros
                release_frames(error)
                self._why = f"measuring a step failed: {type(error).__name__}: {error}"

    def of(self, place: Place) -> tuple[int | None, str]:
        """Bytes on a device, or None and why."""
        return (None, self._why) if self._peaks is None else (self._peaks.get(place[1], 0), "")

    def _reason(self, phase: Phase, resolution: Resolution, parts: Sequence[DrawnPart]) -> str:
        """Why nothing can be measured, `""` if it can."""
        if not resolution.segments:
            return ""
        backend = resolution.backends[0]
        if len(resolution.segments) > 1:
            return "several segments compute a step, and only one is measured on its own"
        if not isinstance(backend, MemoryFigures):
            return f"the plugin of {backend.framework} does not tell what a step takes"
        if isinstance(phase, TrainPhase) and phase.step is not None:
            return "the training step is your own"
        epochs = parts[0].epochs
        if epochs is None or any(column.ragged for column in resolution.plan.columns):
            return "the size of a batch is not known"
        weights = sum(each.nbytes for each in resolution.plan.assignments)
        rows = sum(spec.nbytes for spec, _ in resolution.segments[0].inputs.values()) * epochs.batch_size
        needed, free = _COPIES * weights + 4 * rows, host_memory().free
        if backend.allocates and free and needed > _MEASURED_SHARE * free:
            return f"measuring a step would take {size(needed)} of this machine's memory"
        return ""
