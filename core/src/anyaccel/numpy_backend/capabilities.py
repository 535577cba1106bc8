"""Capabilities of the NumPy backend that are small: memory, transfers, profiles, costs of steps."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from anyaccel.numpy_backend.ops import NumpyOps
from anyaccel.numpy_backend.sim_array import SimArray, put
from anyaccel.numpy_backend.sim_device import SimDevice, counting, observers
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


class NumpyTransfers(ObservesTransfers):
    """Transfers and synchronizations of simulated devices (not of the CPU)."""

    def observe_transfers(self, record: Record) -> AbstractContextManager[None]:
        """Return all that they count."""
        return observers.added(record)


# -- step memory: what a step allocates, measured by a few steps on devices that only count ----------------------------


_EPOCHS, _STEPS = 2, 2  # memory is the same in every further one
Scratch = tuple[Segment, list[SimArray], dict[Device, SimDevice]]


@contextmanager
def scratch_copy(segment: Segment, batch_size: int) -> Iterator[Scratch]:
    """Yield a segment on devices that only count, with copies of its models and no optimizer state.

    Also yields a batch of zeros for its inputs, and the devices by those of the segment.
    """
    places = dict.fromkeys(operation.device for operation in segment.operations)
    scratch = {device: SimDevice(index, None, True) for index, device in enumerate(places)}
    copies: dict[int, Any] = {id(None): None}  # a concatenation has no model; nodes that share one share its copy

    def copied(model: Any, on: SimDevice) -> Any:
        if id(model) not in copies:
            made = copies[id(model)] = copy.copy(model)
            for name in ("parameters", "buffers"):
                arrays = getattr(model, name).items()
                setattr(made, name, {key: put(np.zeros(array.shape, array.dtype), on) for key, array in arrays})
            made.home = on.device
        return copies[id(model)]

    with counting(list(scratch.values())), np.errstate(all="ignore"):
        operations = tuple(
            replace(op, device=scratch[op.device].device, model=copied(op.model, scratch[op.device]))
            for op in segment.operations
        )
        inputs = segment.inputs.items()
        moved = replace(
            segment,
            operations=operations,
            inputs={name: (spec, scratch[device].device) for name, (spec, device) in inputs},
            losses=tuple(replace(term, device=scratch[term.device].device) for term in segment.losses),
            states={},
        )
        batch = [put(np.zeros((batch_size, *spec.shape), spec.dtype), scratch[on]) for _, (spec, on) in inputs]
        yield moved, batch, scratch


class NumpyMemoryFigures(MemoryFigures):
    """Memory of models and steps, measured on devices that only count."""

    allocates = True

    def buffers(self, model: Any) -> Mapping[str, TensorSpec]:
        """Return the specs of the buffers in the module's order."""
        return {name: TensorSpec(tuple(a.shape), a.dtype.name) for name, a in model.buffers.items()}

    def step_memory(
        self, segment: Segment, batch_size: int, n_microbatches: int = 1, n_steps: int = 2
    ) -> dict[Device, int]:
        """Measure steps on rows of zeros with copies of the models; the contents of the segment do not change.

        Of training steps, it returns the most of several, because the first holds nothing from a previous one.
        """
        with scratch_copy(segment, batch_size) as (moved, columns, scratch):
            program = ArrayProgram(moved, NumpyOps())
            order = np.tile(np.arange(batch_size, dtype=np.int64), _STEPS)
            orders = {on: put(order, on) for on in scratch.values()} if segment.groups else {}
            held = {on: on.used for on in scratch.values()}
            if segment.groups:
                for _ in range(_EPOCHS):
                    snapshot = program.snapshot()  # a run takes one, to repeat steps for which memory does not suffice
                    results: Any = program.train_steps(
                        columns, [orders[x.on] for x in columns], 0, _STEPS, batch_size, n_microbatches
                    )
                del snapshot
            else:
                results = program.forward(columns)
            del results
            for state in program.optimizer_states().values():
                for array in (array for slots in state.slots.values() for array in slots.values()):
                    held[array.on] += array.nbytes
            return {device: on.peak - held[on] for device, on in scratch.items()}


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
        with scratch_copy(segment, batch_size) as (moved, inputs, scratch):
            program = _CountingProgram(moved, NumpyOps())
            program.kept, program.devices = {}, list(scratch.values())
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
