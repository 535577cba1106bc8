"""Step cost: operations and activations of a step, counted over tensors that have shapes and no values."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.flop_counter import FlopCounterMode

from anyaccel.adapter.step_costs import StepCost
from anyaccel.segment import Segment
from anyaccel_torch.program import TorchProgram
from anyaccel_torch.step_memory import StorageCounter, fake_segment


def step_cost(segment: Segment, batch_size: int) -> StepCost:
    """As `StepCosts.step_cost`; operations as torch's own counter counts them, without those that are done again."""
    flops = FlopCounterMode(display=False)
    _run(replace(segment, precision=None), batch_size, StorageCounter(), flops)
    counter = StorageCounter()
    nbytes = _run(segment, batch_size, counter, nullcontext())
    return StepCost(flops=flops.get_total_flops(), activations=nbytes)


def _run(
    segment: Segment, batch_size: int, counter: StorageCounter, around: AbstractContextManager[Any]
) -> dict[str, int]:
    """A forward and a backward pass without values; what each node keeps."""
    devices = list(dict.fromkeys(operation.device for operation in segment.operations))
    places = {device: torch.device("cpu", i + 1) for i, device in enumerate(devices)}
    with FakeTensorMode(allow_non_fake_inputs=False) as mode:
        copies: dict[int, Any] = {}
        fake = fake_segment(segment, mode, places, copies)
        columns = [
            torch.zeros((batch_size, *spec.shape), dtype=getattr(torch, spec.dtype), device=places[device])
            for spec, device in segment.inputs.values()
        ]
        program = TorchProgram(fake, lambda device: places[device])
        kept = _NodeMemory({id(op.model): op.label for op in fake.operations if op.model is not None}, counter)
        for model in copies.values():
            for tensor in (*model.parameters(), *model.buffers()):
                counter.add(tensor)
        hooks = [register_module_forward_pre_hook(kept.before), register_module_forward_hook(kept.after)]
        try:
            with around, counter:
                outputs, _, pullback = program.forward_pullback(columns)
                pullback([None] * len(outputs))
        finally:
            for hook in hooks:
                hook.remove()
    return kept.nbytes


class _NodeMemory:
    """What is used more after a node's forward pass than before."""

    def __init__(self, labels: dict[int, str], counter: StorageCounter) -> None:
        self.nbytes: dict[str, int] = {}
        self._labels, self._counter = labels, counter
        self._before: dict[int, int] = {}

    def before(self, module: Any, inputs: Any) -> None:
        if id(module) in self._labels:
            self._before[id(module)] = sum(self._counter.used.values())

    def after(self, module: Any, inputs: Any, outputs: Any) -> None:
        label = self._labels.get(id(module))
        if label is not None:
            self.nbytes[label] = sum(self._counter.used.values()) - self._before.pop(id(module))
