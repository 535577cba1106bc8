"""Figures of a plan: memory of each device by category, and the settings of the whole phase with reasons."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from anyaccel.adapter.memory_figures import MemoryFigures
from anyaccel.adapter.step_costs import StepCosts
from anyaccel.backend import ComputingBackend
from anyaccel.device import Device
from anyaccel.errors import CapabilityError
from anyaccel.formulas import OPTIMIZERS
from anyaccel.graph import (
    Assignment,
    Column,
    Decision,
    DeviceMemory,
    ModelGraph,
    NodeActivations,
    Plan,
    Resolution,
    topology,
)
from anyaccel.host_memory import host_memory
from anyaccel.html import size
from anyaccel.phases.loading.epoch_plan import EpochPlan, StepBlock, StepRange
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
        why = "the phase has a custom step" if phase.step is not None else "a step runs on several frameworks"
        return Decision("compile", "off", f"{why}, and only steps of a single program are compiled")
    reasons = {
        "auto": "decided during the run, from the time of uncompiled steps and the number of steps left",
        "steps": "the phase asks for it; before the first step",
        "off": "the phase asks for it",
    }
    return Decision("compile", phase.compile, reasons[phase.compile])


class _Figures:
    """The figures of one framework on one device."""

    def __init__(self, place: Place, plan: Plan, segments: Sequence[Segment], graph: ModelGraph) -> None:
        self._place, self._graph = place, graph
        self._here = [
            assignment for assignment in plan.assignments if (assignment.framework, assignment.device) == place
        ]
        self._optimizers = {node: group.optimizer for s in segments for group in s.groups for node in group.nodes}
        self._gaps: dict[str, str] = {}

    def memory(self, rows: RowMemory, steps: _StepFigures, total: int | None, known: Registry) -> DeviceMemory:
        """Return all categories."""
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
        """Yield a node for each model that is here, and the bytes of its parameters."""
        seen: set[int] = set()
        for assignment in self._here:
            model = getattr(self._graph[assignment.node], "model", None)
            if model is not None and id(model) not in seen:
                seen.add(id(model))
                yield assignment.node, assignment.resident_nbytes

    def _parameters(self) -> int | None:
        """Return parameters and buffers; None if a backend does not report buffers."""
        total = 0
        for node, nbytes in self._models():
            backend = next(assignment.backend for assignment in self._here if assignment.node == node)
            figures = backend.capability(MemoryFigures)
            if figures is None:
                self._gaps["parameters"] = f"the plugin of {backend.framework} does not report the buffers of a model"
                return None
            buffers = figures.buffers(self._graph[node].model).values()  # type: ignore[union-attr]
            total += nbytes + sum(spec.nbytes for spec in buffers)
        return total

    def _measured_gradients(self) -> int:
        """Return those in the peak of a step, which is measured with all weights on the device."""
        models = {
            id(getattr(self._graph[assignment.node], "model", None)): assignment for assignment in reversed(self._here)
        }
        return sum(assignment.nbytes for assignment in models.values() if assignment.node in self._optimizers)

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
    """Return bytes of memory of a device; None if unknown or without a limit."""
    return known.total_memory(*place)


def _unknown_capacity(device: Device, known: Registry) -> str:
    """Return the reason why `capacity` is None."""
    if not known.is_of_this_machine and device.kind == "cpu":
        return "the description of the machine does not set it: add mem=64GB"
    return "the memory of the device is unknown or unlimited"


def _free_after_placement(place: Place, plan: Plan, graph: ModelGraph, known: Registry) -> int | None:
    """Return bytes that are free once the models of a plan are on a device; None if unknown."""
    free = known.free_memory(*place)
    nodes = [assignment for assignment in plan.assignments if (assignment.framework, assignment.device) == place]
    if known.is_of_this_machine:
        nodes = [assignment for assignment in nodes if not _is_there(assignment, graph)]
    return max(free - sum(assignment.resident_nbytes for assignment in nodes), 0) if free else None


def _is_there(assignment: Assignment, graph: ModelGraph) -> bool:
    """Whether a node needs no more memory on its device."""
    model = getattr(graph[assignment.node], "model", None)
    return model is None or assignment.backend.device_of(model) == assignment.device


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
    rows, why = _rows(resolution, parts)
    for segment, backend in zip(resolution.segments, resolution.backends, strict=True):
        nodes = _recomputed_nodes(segment)
        if nodes and rows is not None:
            yield from _of_segment(segment, backend, nodes, rows)
        else:
            yield from (NodeActivations(node=node, rows=None, gap=why) for node in nodes)


def _rows(resolution: Resolution, parts: Sequence[DrawnPart]) -> tuple[int | None, str]:
    """Return the most rows that are computed together, or why that is not known."""
    epochs = parts[0].epochs if parts else None
    if epochs is None or not one_shape(resolution.plan.columns):
        return None, "the size of a batch is not known"
    return max(step.size.at_once for step in epochs.epoch(0).steps), ""


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
        why = f"the plugin of {backend.framework} does not report the activations of a node"
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
        gap = "" if node in kept and node in without else f"the plugin of {backend.framework} does not report it"
        yield unknown(node=node, kept=kept.get(node), without_remat=without.get(node), gap=gap)


_MEASURED_SHARE = 0.25
"""The part of the free memory of the host that measuring a step may take."""
_COPIES = 8
"""Of parameters, that measuring a training step takes at most: gradients, optimizer state, and two snapshots."""


class _StepFigures:
    """The peak memory of a step, measured if a backend can do that without the devices.

    Args:
        phase: The bound phase.
        resolution: The segments.
        graph: The nodes.
        parts: The phase and its validation.
        chunk_rows: Largest number of rows of each part that are computed in a single call.
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
        """Return bytes on a device, or None and why."""
        return (None, self._why) if self._why else (self._peaks.get(place[1], 0), "")

    def _reason(self, part: DrawnPart) -> str:
        """Why nothing can be measured, `""` if it can."""
        segment, backend, phase = self._resolution.segments[0], self._resolution.backends[0], self._phase
        if len(self._resolution.segments) > 1:
            return "a step has several segments, and only a single one can be measured"
        figures = backend.capability(MemoryFigures)
        if figures is None:
            return f"the plugin of {backend.framework} does not report the memory of a step"
        if phase.step is not None:
            return "the phase has a custom step"
        if part.epochs is None or not one_shape(self._resolution.plan.columns):
            return "the size of a batch is not known"
        weights = sum(assignment.nbytes for assignment in self._resolution.plan.assignments)
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
        measured_segment = replace(segment, compile=self._phase.compile)  # as the programs of a run
        if not trains:
            measured_segment = replace(measured_segment, groups=(), states={})
        try:
            peaks = figures.step_memory(
                measured_segment, part.epochs.batch_size, part.part.accumulate, part.epochs.n_steps
            )
        except CapabilityError as error:
            release_frames(error)
            return error.problem
        except Exception as error:  # of a user's model or loss, which may take no rows of zeros
            release_frames(error)
            return f"measuring a step failed: {type(error).__name__}: {error}"
        if peaks is None:
            return f"{backend.framework} does not report the memory of a step"
        waiting = {} if trains else self._waiting(part, n_rows - part.epochs.batch_size)
        for device, nbytes in peaks.items():  # gradients and snapshots are gone when a validation begins
            self._peaks[device] = max(self._peaks.get(device, 0), nbytes + waiting.get(device, 0))
        return ""

    def _waiting(self, part: DrawnPart, n_rows: int) -> Mapping[Device, int]:
        """Return bytes of outputs of earlier steps that wait on their devices until they are copied to the host
        together.
        """
        shapes, plan, waiting = self._resolution.shapes, self._resolution.plan, dict[Device, int]()
        for label in dict.fromkeys(self._wanted(part)):
            nbytes = sum(shapes.specs[name].nbytes for name in shapes.outputs[label])
            waiting[plan.device(label)] = waiting.get(plan.device(label), 0) + max(n_rows, 0) * nbytes
        return waiting

    def _wanted(self, part: DrawnPart) -> Iterator[str]:
        """Yield the nodes whose outputs an evaluation copies to the host."""
        phase, graph = self._phase, self._graph
        learners = phase.learners(graph)
        if part.part is phase:
            yield from phase.kept_nodes(graph, ())
        if any(metric.node in learners for metric in part.metrics):
            yield from topology.upstream_nodes(learners, graph.nodes)
        yield from (metric.node for metric in part.metrics if metric.node not in learners)


# -- Memory of rows: what the rows of a phase take on their devices, resident or streamed, and which of them is chosen


STREAMED, RESIDENT, MIXED = "streamed", "resident", "mixed"


@dataclass(slots=True)
class RowMemory:
    """Bytes of rows and their orders by framework and device, and why some are not covered.

    Attributes:
        chunk_rows: Maximum number of rows in a single call, for each part of the phase; 0 if unknown.
    """

    nbytes: dict[Place, int] = field(default_factory=dict)
    gaps: dict[Place, str] = field(default_factory=dict)
    chunk_rows: list[int] = field(default_factory=list)

    def add(self, more: Mapping[Place, int]) -> None:
        """Add bytes."""
        for place, nbytes in more.items():
            self.nbytes[place] = self.nbytes.get(place, 0) + nbytes


def row_memory(
    phase: PhaseSettings,
    plan: Plan,
    parts: Sequence[DrawnPart],
    training_bytes: Mapping[Place, int],
    free: Mapping[Place, int],
) -> tuple[RowMemory, list[Decision]]:
    """Return the memory of rows, and for each part of a phase whether they are resident, with the reason.

    Args:
        phase: The phase, with its residency setting.
        plan: The plan, with the device of each column.
        parts: The phase and its validation.
        training_bytes: Bytes that training adds.
        free: Free bytes once models are placed; places with unknown memory are left out.
    """
    memory, budget = RowMemory(), MemoryBudget(free, training_bytes)
    decisions = []
    for part in parts:
        choice, why, shared = _residency(phase, plan, part, budget)
        decisions.append(Decision(f"residency of {part.part.label}", choice, why))
        blocks = [] if part.epochs is None or choice == RESIDENT else _blocks(plan, part.epochs, free, shared)
        memory.chunk_rows.append(_chunk_rows(plan, part, blocks))
        if part.epochs is None:
            memory.gaps.update(dict.fromkeys(_places(plan.columns), "the number of rows of a source is unknown"))
        elif not one_shape(plan.columns):
            memory.gaps.update(dict.fromkeys(_places(plan.columns), "each batch is padded to its own length"))
        elif choice != RESIDENT:
            resident = shared.resident if shared is not None else frozenset()
            memory.add(_streamed_rows([c for c in plan.columns if c.name not in resident], blocks))
            if shared is not None:
                memory.add(bytes_of(shared.columns, resident))
                memory.add(_streamed_orders([c for c in plan.columns if c.name in resident], blocks))
        else:
            memory.add(_column_bytes(plan, part))
            memory.add(_order_bytes(plan, part))
    return memory, decisions


def _places(columns: Iterable[Column]) -> list[Place]:
    return sorted({(column.framework, column.device) for column in columns})


@dataclass(frozen=True, slots=True)
class _Shared:
    """Columns, the names of the resident ones, and the bytes of a block of the others."""

    columns: Sequence[ColumnBytes]
    resident: frozenset[str]
    block_bytes: float


def _residency(
    phase: PhaseSettings, plan: Plan, part: DrawnPart, budget: MemoryBudget
) -> tuple[str, str, _Shared | None]:
    if part.data.source is not None:
        return STREAMED, "the data are a source", None
    if not one_shape(plan.columns):
        return STREAMED, "rows differ in length, and each batch is padded to its longest row", None
    if phase.residency != "auto":
        return phase.residency, "the phase asks for it", None
    needs = _column_bytes(plan, part)
    full = budget.exceeded(needs)
    if full is None:
        why = "; ".join(budget.explain(place, needs, fits=True) for place in needs)
        budget.take(needs)
        return RESIDENT, f"rows take {why}" if why else "there are none", None
    figures = budget.explain(full, needs, fits=False)
    columns = _columns(plan, part)
    resident, block_bytes = budget.split(columns)
    if not resident:
        return STREAMED, f"rows take {figures}", None
    budget.take(bytes_of(columns, resident))
    return (
        MIXED,
        f"{mixed_words(columns, resident)}, because all take {figures}",
        _Shared(columns, resident, block_bytes),
    )


def _columns(plan: Plan, part: DrawnPart) -> list[ColumnBytes]:
    made = []
    for column in _distinct(plan.columns):
        rows = part.data.rows.get(column.feature_set)
        n_rows = len(rows) if rows is not None else 0
        names = tuple(other.name for other in plan.columns if other is column or same_array(column, other))
        made.append(ColumnBytes.of(column, names, column.spec.nbytes * n_rows, n_rows))
    return made


def _distinct(columns: Sequence[Column]) -> list[Column]:
    """Return columns, without repetitions of one array in the same place."""
    kept: list[Column] = []
    for column in columns:
        if not any(same_array(column, other) for other in kept):
            kept.append(column)
    return kept


def _column_bytes(plan: Plan, part: DrawnPart) -> dict[Place, int]:
    needs = dict.fromkeys(_places(plan.columns), 0)
    for column in _distinct(plan.columns):
        rows = part.data.rows.get(column.feature_set)
        needs[column.framework, column.device] += column.spec.nbytes * (len(rows) if rows is not None else 0)
    return needs


def _order_bytes(plan: Plan, part: DrawnPart) -> dict[Place, int]:
    """Row orders, each once on a device, however many columns read it."""
    orders = part.epochs.epoch(0).orders if part.epochs is not None else {}
    sizes: dict[tuple[int, str, object], tuple[Place, int]] = {}
    for column in plan.columns:
        order = orders.get(stream_of(column))
        if order is not None:
            place = (column.framework, column.device)
            sizes[id(order), *place] = place, len(order) * np.dtype(column.backend.index_dtype).itemsize
    return _summed(sizes.values())


def _blocks(plan: Plan, epochs: EpochPlan, free: Mapping[Place, int], shared: _Shared | None) -> list[StepBlock]:
    """Return the streamed blocks of an epoch."""
    if shared is not None:
        steps = mixed_block_steps(shared.columns, shared.resident, shared.block_bytes, epochs)
        return list(epochs.epoch(0).blocks(steps))
    row_bytes = sum(column.spec.nbytes for column in _distinct(plan.columns))
    block = bytes_of_block(free[place] for place in _places(plan.columns) if place in free)
    steps = steps_of_block(block, row_bytes * epochs.batch_size, epochs.n_steps)
    return list(epochs.epoch(0).blocks(steps))


def _chunk_rows(plan: Plan, part: DrawnPart, blocks: Sequence[StepBlock]) -> int:
    if part.epochs is None or not one_shape(plan.columns):
        return 0
    if blocks:
        return max(_rows_of(block.steps) for block in blocks)
    return _rows_of(part.epochs.epoch(0).steps)


def _rows_of(steps: Iterable[StepRange]) -> int:
    return sum(step.n_steps * step.batch_size for step in steps)


def _streamed_rows(columns: Sequence[Column], blocks: Sequence[StepBlock]) -> dict[Place, int]:
    """Return the bytes of blocks in transit, waiting and computed, and one order for each device."""
    distinct = {(stream_of(c), c.columns, c.framework, c.device, c.spec): c for c in columns}.values()
    rows, held = _rows_held(blocks)
    sizes = [((column.framework, column.device), held * rows * column.spec.nbytes) for column in distinct]
    orders = {(column.framework, column.device): rows * _index_bytes(column) for column in columns}
    return _summed([*sizes, *orders.items()])


def _streamed_orders(columns: Sequence[Column], blocks: Sequence[StepBlock]) -> dict[Place, int]:
    """Return the bytes of row numbers of resident columns, which are copied with the blocks of the others."""
    rows, held = _rows_held(blocks)
    orders = {(stream_of(c), c.framework, c.device): held * rows * _index_bytes(c) for c in columns}
    return _summed(((framework, device), nbytes) for (_, framework, device), nbytes in orders.items())


def _rows_held(blocks: Sequence[StepBlock]) -> tuple[int, int]:
    """Rows of the largest block, and how many blocks there are at once."""
    rows = max((stop - start for block in blocks for start, stop in block.spans.values()), default=0)
    return rows, min(BLOCKS, len(blocks))


def _index_bytes(column: Column) -> int:
    return np.dtype(column.backend.index_dtype).itemsize


def _summed(sizes: Iterable[tuple[Place, int]]) -> dict[Place, int]:
    total: dict[Place, int] = {}
    for place, nbytes in sizes:
        total[place] = total.get(place, 0) + nbytes
    return total
