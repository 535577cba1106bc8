"""Step cost: what each node keeps for its backward pass, counted on devices that only count."""

from __future__ import annotations

from typing import Any

import numpy as np

from anyaccel.adapter import ArrayProgram
from anyaccel.adapter.step_costs import StepCost, StepCosts
from anyaccel.numpy_backend.ops import NumpyOps
from anyaccel.numpy_backend.sim_array import put
from anyaccel.numpy_backend.sim_device import SimDevice, counting
from anyaccel.numpy_backend.step_memory import moved_segment
from anyaccel.segment import Operation, Segment


class _CountingProgram(ArrayProgram):
    """Notes what is used more after each operation than before."""

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
        """Activations; operations are not counted."""
        places = dict.fromkeys([operation.device for operation in segment.operations])
        scratch = {device: SimDevice(index, None, True) for index, device in enumerate(places)}
        with counting(list(scratch.values())), np.errstate(all="ignore"):
            own = moved_segment(segment, scratch)
            program = _CountingProgram(own, NumpyOps())
            program.kept, program.devices = {}, list(scratch.values())
            on = {device.device: device for device in scratch.values()}
            inputs = [put(np.zeros((batch_size, *s.shape), s.dtype), on[d]) for s, d in own.inputs.values()]
            results = program.forward_pullback(inputs)
            kept = dict(program.kept)
            del results
        return StepCost(activations=kept)
