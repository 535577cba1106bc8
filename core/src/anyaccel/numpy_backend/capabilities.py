"""Capabilities of the NumPy backend that are small: memory, precision, transfers."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from anyaccel.adapter import ArrayProgram, VjpResult
from anyaccel.adapter.memory_figures import MemoryFigures
from anyaccel.adapter.step_costs import StepCost, StepCosts
from anyaccel.adapter.step_profiler import Mark, ProfilesSteps, SpanRecorder, write_trace
from anyaccel.adapter.transfer_observer import ObservesTransfers, Record
from anyaccel.backend import Memory, MemoryInfo
from anyaccel.device import Device
from anyaccel.host_memory import host_memory
from anyaccel.numpy_backend.array_creation import handle
from anyaccel.numpy_backend.builtin_models import SpecModel
from anyaccel.numpy_backend.ops import NumpyOps
from anyaccel.numpy_backend.sim_array import SimArray, put
from anyaccel.numpy_backend.sim_device import SimDevice, counting, observers, running
from anyaccel.precision import PRECISIONS, ComputesPrecision
from anyaccel.segment import Operation, Segment, TensorSpec

OWN_KINDS = ("cpu", "sim")  # a derived backend may serve other kinds, by a `from_host` of its own


class NumpyMemory(Memory):
    """Memory of simulated devices, and of the host."""

    def memory(self, device: Device) -> MemoryInfo:
        """Return the counters of a simulated device (total 0 for no limit), or the system's report for the CPU."""
        if device.kind not in OWN_KINDS:
            return MemoryInfo(0, 0, 0, 0)
        on = handle(device)
        if on is None:
            total, free = host_memory()
            return MemoryInfo(total, free, total - free, 0)
        total = on.capacity or 0
        return MemoryInfo(total, max(total - on.used, 0), on.used, on.peak)

    def release_memory(self, device: Device) -> None:
        """Do nothing: no memory is cached."""


class NumpyPrecision(ComputesPrecision):
    """All precisions; 16 bits are rounded values of float32."""

    precisions: ClassVar[tuple[str, ...]] = PRECISIONS

    def precision_reason(self, model: Any, precision: str, device: Device) -> str:
        """A simulated device may lack float64, as real ones do; codes of categories must be exact."""
        reason = model.spec.precision_reason(precision) if isinstance(model, SpecModel) else ""
        if reason:
            return reason
        on = handle(device) if device.kind == "sim" else None  # a plugin may derive a chip of another kind
        lacks = precision == "float64" and on is not None and not on.float64
        return f"{device} has no float64: it was simulated with float64=False" if lacks else ""


class NumpyTransfers(ObservesTransfers):
    """Transfers and synchronizations of simulated devices (not of the CPU)."""

    def observe_transfers(self, record: Record) -> AbstractContextManager[None]:
        """Return all that they count."""
        return observers.added(record)


# -- step memory: what a step allocates, measured by a few steps on devices that only count ----------------------------


_EPOCHS, _STEPS = 2, 2  # memory is the same in every further one
Scratch = Mapping[Device, SimDevice]


class NumpyMemoryFigures(MemoryFigures):
    """Memory of models and steps, measured on devices that only count."""

    allocates = True

    def buffers(self, model: Any) -> Mapping[str, TensorSpec]:
        """Return the specs of the buffers in the module's order."""
        return {name: TensorSpec(tuple(a.shape), a.dtype.name) for name, a in model.buffers.items()}

    def step_memory(
        self, segment: Segment, batch_size: int, n_microbatches: int = 1, n_steps: int = 2
    ) -> dict[Device, int]:
        """Measure steps on rows of zeros with copies of the models; the contents of the segment do not change."""
        places = dict.fromkeys([operation.device for operation in segment.operations])
        scratch = {device: SimDevice(index, None, True) for index, device in enumerate(places)}
        with counting(list(scratch.values())), np.errstate(all="ignore"):
            run = _ScratchRun(moved_segment(segment, scratch), batch_size, n_microbatches)
            taken = run.train() if segment.groups else run.evaluate()
        return {device: taken[on.device] for device, on in scratch.items()}


def moved_segment(segment: Segment, scratch: Scratch) -> Segment:
    """The segment on other devices, with copies of its models and no optimizer state."""
    copies: dict[int, Any] = {}
    operations = tuple(
        replace(
            operation,
            device=scratch[operation.device].device,
            model=_copied(operation.model, scratch[operation.device], copies),
        )
        for operation in segment.operations
    )
    return replace(
        segment,
        operations=operations,
        inputs={name: (spec, scratch[device].device) for name, (spec, device) in segment.inputs.items()},
        losses=tuple(replace(term, device=scratch[term.device].device) for term in segment.losses),
        states={},
    )


def _copied(model: Any, on: SimDevice, copies: dict[int, Any]) -> Any:
    """Return a copy of a model on a device; the same one where nodes share it."""
    if model is None:
        return None
    if id(model) not in copies:
        made = copies[id(model)] = copy.copy(model)
        for name in ("parameters", "buffers"):
            setattr(made, name, {key: put(_zeros_like(array), on) for key, array in getattr(model, name).items()})
        made.home = on.device
    return copies[id(model)]


def _zeros_like(array: Any) -> Any:
    return np.zeros(array.shape, array.dtype)


class _ScratchRun:
    """A program on scratch devices with columns of one batch."""

    def __init__(self, segment: Segment, batch_size: int, n_microbatches: int) -> None:
        self._segment, self._batch_size, self._n_microbatches = segment, batch_size, n_microbatches
        self._program = ArrayProgram(segment, NumpyOps())
        self._devices = {device.device: device for device in running()}
        self._columns = [self._zeros(spec, self._devices[device]) for spec, device in segment.inputs.values()]
        order = np.tile(np.arange(batch_size, dtype=np.int64), _STEPS)
        self._orders = {name: put(order, device) for name, device in self._devices.items()}

    def _zeros(self, spec: TensorSpec, on: SimDevice) -> SimArray:
        return put(np.zeros((self._batch_size, *spec.shape), spec.dtype), on)

    def train(self) -> dict[Device, int]:
        """Measure training steps; return the most of several, because the first holds nothing from a previous one."""
        held = {name: device.used for name, device in self._devices.items()}
        orders = [self._orders[device] for _, device in self._segment.inputs.values()]
        for _ in range(_EPOCHS):
            snapshot = self._program.snapshot()  # a run takes one, to repeat steps for which memory does not suffice
            losses = self._program.train_steps(self._columns, orders, 0, _STEPS, self._batch_size, self._n_microbatches)
        del snapshot, losses
        for state in self._program.optimizer_states().values():
            for array in (array for slots in state.slots.values() for array in slots.values()):
                held[array.device] += array.nbytes
        return {name: device.peak - held[name] for name, device in self._devices.items()}

    def evaluate(self) -> dict[Device, int]:
        """Measure a forward pass."""
        held = {name: device.used for name, device in self._devices.items()}
        results = self._program.forward(self._columns)
        del results
        return {name: device.peak - held[name] for name, device in self._devices.items()}


# -- step cost: what each node keeps for its backward pass, counted on devices that only count -------------------------


class _CountingProgram(ArrayProgram):
    """Record the additional memory after each operation."""

    kept: dict[str, int]
    devices: list[SimDevice]

    def _apply_recorded(self, tape: Any, op: Operation, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        before = sum(device.used for device in self.devices)
        outputs = super()._apply_recorded(tape, op, inputs)
        self.kept[op.label] = sum(device.used for device in self.devices) - before
        return outputs


class NumpyStepCosts(StepCosts):
    """Costs of steps, on devices that only count."""

    def step_cost(self, segment: Segment, batch_size: int) -> StepCost:
        """Measure activations; operations are not counted."""
        places = dict.fromkeys([operation.device for operation in segment.operations])
        scratch = {device: SimDevice(index, None, True) for index, device in enumerate(places)}
        with counting(list(scratch.values())), np.errstate(all="ignore"):
            segment_copy = moved_segment(segment, scratch)
            program = _CountingProgram(segment_copy, NumpyOps())
            program.kept, program.devices = {}, list(scratch.values())
            on = {device.device: device for device in scratch.values()}
            inputs = [put(np.zeros((batch_size, *s.shape), s.dtype), on[d]) for s, d in segment_copy.inputs.values()]
            results = program.forward_pullback(inputs)
            kept = dict(program.kept)
            del results
        return StepCost(activations=kept)


# -- step profile: the forward and backward pass of each node, as NumPy has no profiler of its own ---------------------


class NumpyProfiler(ProfilesSteps):
    """Spans of the forward and backward pass of each node, and what core marks."""

    @contextmanager
    def profile_steps(self, path: Path, nodes: Mapping[str, Any], devices: Sequence[Device]) -> Iterator[Mark]:
        """Record by an `NumpyOps.vjp` that is replaced inside the context."""
        recorder = SpanRecorder()
        names = {id(model): name for name, model in nodes.items() if model is not None}
        plain = NumpyOps.vjp
        _replace_vjp(_recorded(plain, names, recorder))
        try:
            yield recorder.span
        finally:
            _replace_vjp(plain)
            write_trace(path, recorder.events)


def _replace_vjp(function: Callable[..., VjpResult]) -> None:
    """Replace `vjp` of all programs, which check for a profile nowhere."""
    NumpyOps.vjp = function  # type: ignore[method-assign]


def _recorded(vjp: Callable[..., VjpResult], names: Mapping[int, str], recorder: SpanRecorder) -> Any:
    """Return `NumpyOps.vjp` with spans for these models."""

    @functools.wraps(vjp)
    def recorded(ops: NumpyOps, model: Any, *args: Any, **keywords: Any) -> VjpResult:
        name = names.get(id(model))
        if name is None:
            return vjp(ops, model, *args, **keywords)
        with recorder.span(name):
            applied = vjp(ops, model, *args, **keywords)

        def pullback(cotangents: Any) -> Any:
            with recorder.span(f"{name} backward"):
                return applied.pullback(cotangents)

        return applied._replace(pullback=pullback)

    return recorded
