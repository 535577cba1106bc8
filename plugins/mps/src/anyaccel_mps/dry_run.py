"""A step of a segment on shapes alone: which operators it needs, forward, backward and in the optimizer."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from anyaccel.segment import Segment
from anyaccel_torch.forward_call import force_eager
from anyaccel_torch.program import TorchProgram
from anyaccel_torch.tree_utils import tensors_in

if TYPE_CHECKING:
    from torch._ops import OpOverload

PAPER = torch.device("meta")
_BATCH = 2  # one sample is not enough for batch normalisation


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, writes down each operator that is called with or gives a tensor without values, and where it was.

    `found` maps operators to the places where they were called, in the order of their first call.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stage = ""
        self.node = ""
        self.found: dict[OpOverload, list[str]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if _on_paper([*args, *kwargs.values()]):
            self._note(func)  # before it is called, which on shapes alone may be impossible
        result = func(*args, **kwargs)
        if _on_paper([result]):
            self._note(func)
        return result

    def _note(self, func: OpOverload) -> None:
        places, place = self.found.setdefault(func, []), self.node or self.stage
        if place not in places:
            places.append(place)


def operators_of(segment: Segment) -> dict[OpOverload, list[str]]:
    """The operators that a step of a segment needs, each with the nodes or stages that need it.

    Copies of the models are run in evaluation and, where something is trained, in training, on tensors that have shapes
    and no values: nothing is computed, no memory of the device is taken, and the user's models stay as they are. A
    model that cannot be run so (it reads values, or holds tensors that are neither parameters nor buffers) is silent
    from there on. What an operator calls inside is not seen.
    """
    recorder = Recorder()
    with warnings.catch_warnings(), suppress(Exception):  # what is really wrong, the real run tells in better words
        warnings.simplefilter("ignore")
        _rehearse(_copied(segment), recorder)
    return recorder.found


def _rehearse(segment: Segment, recorder: Recorder) -> None:
    _announce(segment, recorder)
    program = TorchProgram(segment, lambda device: PAPER)
    inputs = [
        torch.zeros(_BATCH, *spec.shape, dtype=getattr(torch, spec.dtype), device=PAPER)
        for spec, _ in segment.inputs.values()
    ]
    try:
        with recorder, force_eager():
            recorder.stage = "losses"
            program.forward(inputs)
            if segment.groups or segment.needs_pullback:
                _train(program, inputs, recorder)
    finally:
        program.close()


def _train(program: TorchProgram, inputs: list[torch.Tensor], recorder: Recorder) -> None:
    outputs, _, pullback = program.forward_pullback(inputs)
    recorder.stage = "backward pass"
    pullback([torch.zeros_like(output) for output in outputs])
    recorder.stage = "optimizer"
    program.grad_stats()
    program.optimizer_step()


def _copied(segment: Segment) -> Segment:
    """The segment with copies of its models and losses whose parameters and buffers have no values."""
    memo: dict[int, Any] = {}
    for module in _modules(segment):
        for parameter in module.parameters():
            paper = torch.empty_like(parameter, device=PAPER)
            memo[id(parameter)] = nn.Parameter(paper, requires_grad=parameter.requires_grad)
        for buffer in module.buffers():
            memo[id(buffer)] = torch.empty_like(buffer, device=PAPER)
    return copy.deepcopy(replace(segment, states={}), memo)


def _modules(segment: Segment) -> Iterator[nn.Module]:
    for each in (*(one.model for one in segment.operations), *(term.loss.own for term in segment.losses)):
        if isinstance(each, nn.Module):
            yield each


def _announce(segment: Segment, recorder: Recorder) -> None:
    """Let each module tell the recorder when it begins and ends, by the names of the nodes that hold it."""
    names: dict[nn.Module, list[str]] = {}
    for one in segment.operations:
        if isinstance(one.model, nn.Module):
            names.setdefault(one.model, []).append(repr(one.label))
    for module, labels in names.items():
        module.register_forward_pre_hook(_at(recorder, f"node {' and '.join(labels)}"))
        module.register_forward_hook(_at(recorder, ""))


def _at(recorder: Recorder, node: str) -> Callable[..., None]:
    def enter(*_: Any) -> None:
        recorder.node = node

    return enter


def _on_paper(values: list[Any]) -> bool:
    return any(tensor.is_meta for tensor in tensors_in(values))
