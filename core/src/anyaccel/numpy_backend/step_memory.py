"""Step memory: what a step allocates, measured by a few steps on devices that only count."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from anyaccel.adapter import ArrayProgram
from anyaccel.adapter.memory_figures import MemoryFigures
from anyaccel.device import Device
from anyaccel.numpy_backend.ops import NumpyOps
from anyaccel.numpy_backend.sim_array import SimArray, put
from anyaccel.numpy_backend.sim_device import SimDevice, counting, running
from anyaccel.segment import Segment, TensorSpec

_EPOCHS, _STEPS = 2, 2  # memory is the same in every further one
Scratch = Mapping[Device, SimDevice]


class NumpyMemoryFigures(MemoryFigures):
    """Memory of models and steps, measured on devices that only count."""

    allocates = True

    def buffers(self, model: Any) -> Mapping[str, TensorSpec]:
        """In the module's order."""
        return {name: TensorSpec(tuple(a.shape), a.dtype.name) for name, a in model.buffers.items()}

    def step_memory(
        self, segment: Segment, batch_size: int, n_microbatches: int = 1, n_steps: int = 2
    ) -> dict[Device, int]:
        """By steps on rows of zeros with copies of the models; whatever a segment has stays as it is."""
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
    """A copy of a model on a device; the same one where nodes share it."""
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
        """Of training steps: the most of several, as the first has nothing to keep."""
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
        """Of a forward pass."""
        held = {name: device.used for name, device in self._devices.items()}
        results = self._program.forward(self._columns)
        del results
        return {name: device.peak - held[name] for name, device in self._devices.items()}
