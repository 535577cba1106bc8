"""A dry run of a training step on meta tensors, to find the required operators."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from anyaccel.segment import Segment
from anyaccel_torch.forward_call import force_eager
from anyaccel_torch.host_transfer import tensors_in
from anyaccel_torch.program import TorchProgram

if TYPE_CHECKING:
    from torch._ops import OpOverload

META = torch.device("meta")
_BATCH_SIZE = 2  # batch normalisation needs more than one sample


class OperatorRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Record each operator that takes or returns a meta tensor while the mode is active, and where it was called.


    Attributes:
        stage: The part of the step that runs, set by the caller.
        node: The nodes of the module that runs; `""` outside of modules.
        places: Nodes or stages that called each operator, by operator in the order of their first call.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stage = ""
        self.node = ""
        self.places: dict[OpOverload, list[str]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if _has_meta([*args, *kwargs.values()]):
            self._record(func)  # before the call, which may be impossible on meta tensors
        result = func(*args, **kwargs)
        if _has_meta([result]):
            self._record(func)
        return result

    def _record(self, func: OpOverload) -> None:
        places, place = self.places.setdefault(func, []), self.node or self.stage
        if place not in places:
            places.append(place)


def operators_of(segment: Segment) -> dict[OpOverload, list[str]]:
    """Return the operators that a step of a segment needs, each with the nodes or stages that call it.

    Copies of the models run on meta tensors, in evaluation mode, and in training mode where something is trained. So
    nothing is computed, no device memory is used, and the user's models do not change. A model that does not run on
    meta tensors (it reads values, or has tensors that are neither parameters nor buffers) tells its operators up to
    there. Internal calls of an operator are not recorded.
    """
    recorder = OperatorRecorder()
    with warnings.catch_warnings(), suppress(Exception):  # the real run has the better message
        warnings.simplefilter("ignore")
        memo: dict[int, Any] = {}  # of the tensors of models and losses: what stands for them on the meta device
        for module in (*(op.model for op in segment.operations), *(term.loss.own for term in segment.losses)):
            if not isinstance(module, nn.Module):
                continue
            for parameter in module.parameters():
                empty = torch.empty_like(parameter, device=META)
                memo[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
            for buffer in module.buffers():
                memo[id(buffer)] = torch.empty_like(buffer, device=META)
        _run_step(copy.deepcopy(replace(segment, states={}), memo), recorder)
    return recorder.places


def _run_step(segment: Segment, recorder: OperatorRecorder) -> None:
    # Set `recorder.node` while each module runs, to the nodes that hold it.
    labels: dict[nn.Module, list[str]] = {}
    for op in segment.operations:
        if isinstance(op.model, nn.Module):
            labels.setdefault(op.model, []).append(repr(op.label))
    for module, nodes in labels.items():
        module.register_forward_pre_hook(_set_node(recorder, f"node {' and '.join(nodes)}"))
        module.register_forward_hook(_set_node(recorder, ""))
    program = TorchProgram(segment, lambda device: META)
    inputs = [
        torch.zeros(_BATCH_SIZE, *spec.shape, dtype=getattr(torch, spec.dtype), device=META)
        for spec, _ in segment.inputs.values()
    ]
    try:
        with recorder, force_eager():
            recorder.stage = "losses"
            program.forward(inputs)
            if segment.groups or segment.needs_pullback:
                outputs, _, pullback = program.forward_pullback(inputs)
                recorder.stage = "backward pass"
                pullback([torch.zeros_like(output) for output in outputs])
                recorder.stage = "optimizer"
                program.grad_stats()
                program.optimizer_step()
    finally:
        program.close()


def _set_node(recorder: OperatorRecorder, node: str) -> Callable[..., None]:
    def hook(*_: Any) -> None:
        recorder.node = node

    return hook


def _has_meta(values: list[Any]) -> bool:
    return any(tensor.is_meta for tensor in tensors_in(values))
