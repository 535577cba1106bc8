"""Step cost: operations and activations of a step, counted over tensors that have shapes and no values."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from anyaccel.adapter.step_costs import StepCost, StepCosts
from anyaccel.segment import Segment
from anyaccel_torch.forward_plan import Run
from anyaccel_torch.program import TorchProgram
from anyaccel_torch.step_memory import StorageCounter, fake_segment


class TorchStepCosts(StepCosts):
    """Costs of steps, over tensors without values."""

    def step_cost(self, segment: Segment, batch_size: int) -> StepCost:
        """Operations as torch's own counter counts them, without those that are done again."""
        flops = FlopCounterMode(display=False)
        _run(replace(segment, precision=None), batch_size, StorageCounter(), flops)
        return StepCost(flops=flops.get_total_flops(), activations=self.activations(segment, batch_size))

    def activations(self, segment: Segment, batch_size: int) -> dict[str, int]:
        """Storages that are used after a node's forward pass and were not before."""
        return _run(segment, batch_size, StorageCounter(), nullcontext())


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
        program = _CountingProgram(fake, lambda device: places[device], counter)
        for model in copies.values():
            for tensor in (*model.parameters(), *model.buffers()):
                counter.add(tensor)
        with around, counter:
            outputs, _, pullback = program.forward_pullback(columns)
            pullback([None] * len(outputs))
    return program.kept


class _CountingProgram(TorchProgram):
    """Notes what is used more after each node's run than before."""

    def __init__(self, segment: Segment, torch_device: Callable[[Any], torch.device], counter: StorageCounter) -> None:
        super().__init__(segment, torch_device)
        self.kept: dict[str, int] = {}
        self._counter, runs = counter, self._plan.runs
        runs[:] = [self._counted(run, node) for run, node in zip(runs, self._plan.nodes, strict=True)]

    def _counted(self, run: Run, node: str) -> Run:
        def counted(values: list[Any]) -> None:
            before = sum(self._counter.used.values())
            run(values)
            self.kept[node] = sum(self._counter.used.values()) - before

        return counted if node else run
