"""Step figures: what a step takes at its peak, of training, evaluation and validation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from anyaccel.adapter.memory_figures import MemoryFigures
from anyaccel.device import Device
from anyaccel.graph import ModelGraph, Resolution
from anyaccel.host_memory import host_memory
from anyaccel.html import size
from anyaccel.phases.estimator_inputs import upstream_nodes
from anyaccel.phases.loading.loader_factory import Place
from anyaccel.phases.prepare import DrawnPart
from anyaccel.phases.settings import PhaseSettings
from anyaccel.phases.traceback_cleanup import release_frames

_MEASURED_SHARE = 0.25
"""The part of the free memory of the host that measuring a step may take."""
_COPIES = 8
"""Of parameters, that measuring a training step takes at most: gradients, optimizer state, and two snapshots."""


class StepFigures:
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
            yield from upstream_nodes(learners, graph)
        yield from (metric.node for metric in part.metrics if metric.node not in learners)
