"""Step cost: operations and activations of a step, counted over tensors that have shapes and no values."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from anyaccel.adapter.memory_figures import MemoryFigures
from anyaccel.adapter.step_costs import StepCost, StepCosts
from anyaccel.adapter.traced_program import steps_gathered_at_once
from anyaccel.device import Device
from anyaccel.errors import CapabilityError
from anyaccel.segment import Segment, TensorSpec
from anyaccel_torch.forward_plan import Run
from anyaccel_torch.host_transfer import dtype_name
from anyaccel_torch.keras import outermost
from anyaccel_torch.program import TorchProgram


class TorchStepCosts(StepCosts):
    """Costs of steps, over tensors without values."""

    def step_cost(self, segment: Segment, batch_size: int) -> StepCost:
        """Count operations with torch's counter, without recomputed ones."""
        flops = FlopCounterMode(display=False)
        _run(replace(segment, precision=None), batch_size, StorageCounter(), flops)
        return StepCost(flops=flops.get_total_flops(), activations=self.activations(segment, batch_size))

    def activations(self, segment: Segment, batch_size: int) -> dict[str, int]:
        """Count storages that are in use after a node's forward pass but not before."""
        return _run(segment, batch_size, StorageCounter(), nullcontext())


def _run(
    segment: Segment, batch_size: int, counter: StorageCounter, around: AbstractContextManager[Any]
) -> dict[str, int]:
    """Run a forward and a backward pass without values; return the values that each node keeps."""
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
        with around, _PlacedTensors(), counter:
            outputs, _, pullback = program.forward_pullback(columns)
            pullback([None] * len(outputs))
    return program.kept


class _CountingProgram(TorchProgram):
    """Record the additional memory after each node's run."""

    def __init__(self, segment: Segment, torch_device: Callable[[Any], torch.device], counter: StorageCounter) -> None:
        super().__init__(segment, torch_device)
        self.kept: dict[str, int] = {}
        runs = self._plan.runs

        def counted(run: Run, node: str, values: list[Any]) -> None:
            before = sum(counter.used.values())
            run(values)
            self.kept[node] = sum(counter.used.values()) - before

        runs[:] = [
            partial(counted, run, node) if node else run for run, node in zip(runs, self._plan.nodes, strict=True)
        ]


# -- Step memory: what a step allocates, counted over tensors that have shapes and no values ---------------------------


_LEAST = 2  # steps; those of a first epoch make the optimizer state


class StorageCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count the bytes of storages that are alive on each device, and the most of them at once."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.used: dict[torch.device, int] = {}
        self.peak: dict[torch.device, int] = {}
        self._seen: dict[int, Any] = {}

    def add(self, tensor: Tensor) -> None:
        """Count a tensor's storage, once, until it is freed."""
        storage = tensor.untyped_storage()
        key, device, nbytes = storage._cdata, tensor.device, storage.nbytes()  # noqa: SLF001 - no public identity
        if key in self._seen:
            return
        self.used[device] = self.used.get(device, 0) + nbytes
        self.peak[device] = max(self.peak.get(device, 0), self.used[device])

        def freed(_: Any) -> None:
            self.used[device] -= nbytes
            self._seen.pop(key, None)

        self._seen[key] = weakref.ref(storage, freed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and count its result."""
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.mkldnn_rnn_layer.default and not result[3].numel():  # empty if without values
            result = (*result[:3], result[3].new_empty(_lstm_workspace(*args)))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self.add(tensor)
        for tensor in _lstm_temporaries(func, args):
            self.add(tensor)
        return result


# -- the LSTM of oneDNN, one call for each layer and direction: what its kernels allocate, by `rnn_utils.cpp` of oneDNN.


_PAGE = 4096
_FLOAT = 4  # bytes


def _row(size: int) -> int:
    """Return the length of a row of floats with padding: whole cache lines, and no multiple of 256."""
    padded = -(-size // 16) * 16
    return padded + 16 * (padded % 256 == 0)


def _lstm_workspace(inputs: Tensor, *more: Any) -> int:
    """Return the bytes that a forward pass keeps.

    These are the gates, their gradients, the states (of the layer below, of the step before, of the cell) and their
    gradients, and the outputs; each begins on a page.

    Args:
        inputs: Inputs by time and row.
        more: The other arguments of `mkldnn_rnn_layer`.

    Raises:
        CapabilityError: not in float32.
    """
    if inputs.dtype is not torch.float32:
        raise CapabilityError(
            f"the kernels of LSTM keep values of each time step in {dtype_name(inputs.dtype)}, which tensors without "
            "values do not show; plans in float32 have them",
            hint="measure the memory during a run with run.stats",
        )
    n_steps, n_rows, n_inputs = inputs.shape
    size = more[9]
    states = 2 * (n_steps + 1) * _row(max(n_inputs, size))
    widths = (n_steps * _row(4 * size), (n_steps + 1) * 4 * size, states, states, states, n_steps * _row(size))
    return sum(-(-width * n_rows * _FLOAT // _PAGE) * _PAGE for width in widths)


def _lstm_temporaries(func: Any, args: Sequence[Any]) -> list[Tensor]:
    """Return as much memory as the kernels of an operator allocate for its time: gates, states and arranged weights."""
    forward, backward = torch.ops.aten.mkldnn_rnn_layer.default, torch.ops.aten.mkldnn_rnn_layer_backward.default
    if func not in (forward, backward):
        return []
    inputs, of_inputs, of_hidden = args[:3]
    (n_steps, n_rows, _), (gates, size) = inputs.shape, of_hidden.shape
    widths = [_row(gates) * weights.shape[1] for weights in (of_inputs, of_hidden)]
    widths += [n_rows * (n_steps * _row(gates) + 2 * size)]
    gradients = []
    if func is backward:
        rows = [weights.shape[1] for weights in (of_inputs, of_hidden)]
        widths += [gates * _row(length) for length in rows if _row(length) != length]
        gradients = [gradient.contiguous() for gradient in args[10:13] if gradient is not None]
    return [inputs.new_empty(sum(widths)), *gradients]


class _PlacedTensors(TorchFunctionMode):
    """Creates tensors of given values on the device that the call names; without values, torch drops its index."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        created = func(*args, **(kwargs or {}))
        device = (kwargs or {}).get("device")
        # Operations accept a tensor without axes from the CPU, and code may read its value.
        if func not in _FROM_VALUES or device is None or created.ndim == 0 or created.device == torch.device(device):
            return created
        return torch.zeros(created.shape, dtype=created.dtype, device=device, requires_grad=created.requires_grad)


_FROM_VALUES = (torch.tensor, torch.as_tensor, torch.asarray)


class _AcceleratorDropout(TorchFunctionMode):
    """Calls the dropout of accelerators, which keeps a mask of bytes; that of the CPU keeps one of floats."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:

        def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
            if not training or inplace or not 0 < p < 1:
                return nn.functional.dropout(input, p, training, inplace)
            return torch.native_dropout(input, p, True)[0]

        return (dropout if func is nn.functional.dropout else func)(*args, **(kwargs or {}))


class TorchMemoryFigures(MemoryFigures):
    """Memory of models and steps; nothing is allocated, and the models do not change."""

    def buffers(self, model: Any) -> Mapping[str, TensorSpec]:
        """Also those that a state does not have."""
        return {name: TensorSpec(tuple(b.shape), dtype_name(b.dtype)) for name, b in model.named_buffers()}

    def step_memory(
        self, segment: Segment, batch_size: int, n_microbatches: int = 1, n_steps: int = 2
    ) -> dict[Device, int]:
        """Measure a step over tensors without values. Additional memory of kernels is not counted.

        Raises:
            CapabilityError: A module cannot be copied without values, or keeps memory that only its kernels know.
        """
        for operation in segment.operations:
            model = operation.model
            if not segment.groups or operation.device.kind == "cpu" or not isinstance(model, nn.Module):
                continue
            for part in model.modules():
                if isinstance(part, (nn.RNNBase, nn.RNNCellBase)):  # for whose steps libraries of GPUs have kernels
                    raise CapabilityError(
                        f"the kernels of {type(part).__name__} keep values of each time step on {operation.device}, "
                        "which tensors without values do not show; plans for the CPU have them",
                        hint="measure the memory during a run with run.stats",
                    )
        devices = list(dict.fromkeys(operation.device for operation in segment.operations))
        places = {device: torch.device("cpu", i + 1) for i, device in enumerate(devices)}
        with FakeTensorMode(allow_non_fake_inputs=False) as mode:
            copies: dict[int, Any] = {}
            fake = fake_segment(segment, mode, places, copies)
            counter = StorageCounter()
            for model in copies.values():
                for tensor in (*model.parameters(), *model.buffers()):
                    counter.add(tensor)
            on_host = all(device.kind == "cpu" for device in devices)
            with nullcontext() if on_host else _AcceleratorDropout(), _PlacedTensors(), counter:
                taken = _steps(fake, places, counter, batch_size, n_microbatches, n_steps)
        return {device: taken.get(place, 0) for device, place in places.items()}


def fake_segment(
    segment: Segment, mode: FakeTensorMode, places: Mapping[Device, torch.device], copies: dict[int, Any]
) -> Segment:
    """Return a segment whose modules have no values; `copies` receives them by the identity of the user's."""
    operations = tuple(
        replace(operation, model=_fake(operation.model, mode, places[operation.device], copies))
        for operation in segment.operations
    )
    return replace(segment, operations=operations, states={}, compile="off")


def _fake(model: Any, mode: FakeTensorMode, place: torch.device, copies: dict[int, Any]) -> Any:
    """Return a copy of a module whose tensors have no values; the same one where nodes share it."""
    if model is None or id(model) in copies:
        return None if model is None else copies[id(model)]
    if outermost(model):
        raise CapabilityError(
            "layers of Keras copy their values too, so a step cannot be measured without values",
            hint="measure the memory during a run with run.stats",
        )
    memo: dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=place)
        memo[id(tensor)] = nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made
    copies[id(model)] = copy.deepcopy(model, memo)
    return copies[id(model)]


def _steps(
    segment: Segment,
    places: Mapping[Device, torch.device],
    counter: StorageCounter,
    batch_size: int,
    n_microbatches: int,
    n_steps: int,
) -> dict[torch.device, int]:
    columns = [
        torch.zeros((batch_size, *spec.shape), dtype=getattr(torch, spec.dtype), device=places[device])
        for spec, device in segment.inputs.values()
    ]
    program = TorchProgram(segment, lambda device: places[device])
    if not segment.groups:
        held = dict(counter.used)
        program.forward(columns)
        return {place: peak - held.get(place, 0) for place, peak in counter.peak.items()}
    step_bytes = batch_size * sum(spec.nbytes for spec, _ in segment.inputs.values())
    n_steps = max(_LEAST, min(n_steps, steps_gathered_at_once(step_bytes)))
    orders = [torch.zeros(batch_size * n_steps, dtype=torch.int64, device=column.device) for column in columns]
    for count in (_LEAST, n_steps):
        snapshot = program.snapshot()  # a run takes one, to repeat steps for which memory does not suffice
        losses = program.train_steps(columns, orders, 0, count, batch_size, n_microbatches)
    del snapshot, losses
    gc.collect()
    return {place: peak - counter.used.get(place, 0) for place, peak in counter.peak.items()}
