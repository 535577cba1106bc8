"""Figures of a plan: memory of each device by category, and the settings of the whole phase with reasons."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from anyaccel.adapter.memory_figures import MemoryFigures
from anyaccel.formulas import OPTIMIZERS
from anyaccel.graph import Decision, DeviceMemory, ModelGraph, Plan, Resolution
from anyaccel.phases.loading.loader_factory import Place
from anyaccel.phases.loading.residency import bytes_added_by_training, state_slots
from anyaccel.phases.planning.machine_memory import capacity, free_after_placement, unknown_capacity
from anyaccel.phases.planning.remat_figures import remat_figures
from anyaccel.phases.planning.row_memory import RowMemory, row_memory
from anyaccel.phases.planning.step_figures import StepFigures
from anyaccel.phases.prepare import DrawnPart
from anyaccel.phases.settings import PhaseSettings
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
    free = {p: nbytes for p in places if (nbytes := free_after_placement(p, plan, graph, known)) is not None}
    added = bytes_added_by_training(plan, resolution.segments, graph.optimizer_states)
    rows, decisions = row_memory(phase, plan, parts, added, free)
    batch_size = max((part.epochs.batch_size for part in parts[:1] if part.epochs is not None), default=None)
    steps = StepFigures(phase, resolution, graph, parts, rows.chunk_rows)
    memory = [
        _Figures(place, plan, resolution.segments, graph).memory(rows, steps, capacity(place, known), known)
        for place in places
    ]
    decisions.append(_compilation(phase, resolution))
    return replace(
        plan,
        memory=tuple(memory),
        activations=tuple(remat_figures(phase, resolution, parts)),
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

    def memory(self, rows: RowMemory, steps: StepFigures, total: int | None, known: Registry) -> DeviceMemory:
        """All categories."""
        framework, device = self._place
        gradients, optimizer = self._gradients(), self._optimizer()
        parameters = self._parameters()
        batches = None if self._place in rows.gaps else rows.nbytes.get(self._place, 0)
        peak, why = steps.of(self._place)
        for name, reason in (("batches", rows.gaps.get(self._place, "")), ("activations", why)):
            self._gaps |= {name: reason} if reason else {}
        if total is None:
            self._gaps["capacity"] = unknown_capacity(device, known)
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
