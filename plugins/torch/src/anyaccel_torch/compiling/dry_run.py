"""One uncompiled step whose effects are undone: which parameters, buffers and inputs a step reaches and changes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from anyaccel.errors import CompileError
from anyaccel_torch.compiling.spec import CompileRequest, SegmentModule
from anyaccel_torch.state_guard import BufferSnapshot, RandomState

_NORMS = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
)
_TIMED_STEPS = 4
_PLAIN_TYPES = (bool, int, float, str, type(None))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEffects:
    """The effects of an uncompiled step.

    Attributes:
        reached: Ids of the parameters that a gradient reaches.
        roots: Indices of the losses that reach a parameter.
        buffers: Names of the buffers that changed.
        mutated: Indices of the inputs that were written to.
        losses: Mean losses.
        random: State of the CPU's generator before the step.
    """

    reached: frozenset[int]
    roots: tuple[int, ...]
    buffers: tuple[str, ...]
    mutated: tuple[int, ...]
    losses: tuple[Tensor, ...]
    random: Tensor


@contextmanager
def undone(request: CompileRequest) -> Iterator[None]:
    """Restore buffers and random states after the steps done inside this context, even after an interrupt.

    Raises:
        CompileError: a module has changed its own attribute, which compiled steps would not do.
    """
    saved = (BufferSnapshot([request.module]), RandomState([request.device]))
    attributes: list[tuple[nn.Module, dict[str, Any]]] = []
    for part in request.module.models.modules():
        plain = {name: value for name, value in vars(part).items() if isinstance(value, _PLAIN_TYPES)}
        attributes.append((part, plain))
    changed = ""
    try:
        yield
    finally:
        for part, before in attributes:
            for name, value in before.items():
                if vars(part).get(name) is not value and vars(part).get(name) != value:
                    changed = changed or f"{type(part).__name__}.{name}"
                    setattr(part, name, value)
        for state in saved:
            state.restore()
    if changed:
        raise CompileError(
            f"a step changes the attribute {changed}, which is not a tensor",
            hint="store the value in a register_buffer, and update it in place",
        )


def observe_step(request: CompileRequest, values: Sequence[Tensor]) -> StepEffects:
    """Return the effects of a step over some rows; call it inside `undone`.

    Raises:
        CompileError: sparse gradients, or a buffer that is replaced, which only uncompiled steps support.
    """
    module, trained = request.module, request.trained
    before = {name: (buffer, buffer.clone(), buffer._version) for name, buffer in module.named_buffers()}  # noqa: SLF001
    inputs, random = [value.clone() for value in values], torch.get_rng_state()
    losses, roots, grads = _forward_backward(request, inputs)
    if any(grad is not None and grad.is_sparse for grad in grads):
        raise CompileError("gradients are sparse", hint="create the embedding with sparse=False")
    return StepEffects(
        reached=frozenset(id(parameter) for parameter, grad in zip(trained, grads, strict=True) if grad is not None),
        roots=roots,
        buffers=_changed_buffers(module, before),
        mutated=tuple(i for i, value in enumerate(inputs) if value._version),  # noqa: SLF001
        losses=tuple(loss.detach() for loss in losses),
        random=random,
    )


def _forward_backward(
    request: CompileRequest, values: Sequence[Tensor]
) -> tuple[list[Tensor], tuple[int, ...], tuple[Tensor | None, ...]]:
    """Return losses, the indices of those that reach a parameter, and the gradients of the trained parameters."""
    trained = request.trained
    with torch.enable_grad():
        losses = request.module([*values, *[None] * request.n_computed])
        roots = tuple(i for i, loss in enumerate(losses) if loss.requires_grad and request.losses[i].weight)
        if not roots or not trained:
            raise CompileError("no loss reaches a trained parameter", hint="train a node that the loss depends on")
        total = [losses[i] * request.losses[i].weight for i in roots]
        return losses, roots, torch.autograd.grad(total, trained, allow_unused=True)


def time_step(request: CompileRequest, values: Sequence[Tensor]) -> float:
    """Return the seconds of an uncompiled step over these rows without its update: the best of several."""
    seconds = []
    for _ in range(_TIMED_STEPS):
        inputs, started = [value.clone() for value in values], time.perf_counter()
        _forward_backward(request, inputs)
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def _changed_buffers(module: SegmentModule, before: dict[str, tuple[Tensor, Tensor, int]]) -> tuple[str, ...]:
    """Return names of the changed buffers; version counters miss the running statistics of normalization layers."""
    statistics: set[int] = set()  # those that normalization layers in training mode update
    for part in module.models.modules():
        if isinstance(part, _NORMS) and part.training and part.track_running_stats:
            statistics.update(map(id, part.buffers()))
    changed: list[str] = []
    for name, buffer in module.named_buffers():
        if name not in before or buffer is not before[name][0]:
            raise CompileError(
                f"a step replaces the buffer {'.'.join(name.split('.')[2:]) or name} with another tensor",
                hint="update it in place, for example with copy_",
            )
        _, copy, version = before[name]
        is_changed = buffer._version != version or id(buffer) in statistics  # noqa: SLF001
        if not is_changed and not torch.equal(buffer, copy):
            have_nan = torch.equal(buffer.isnan(), copy.isnan())
            is_changed = not (have_nan and torch.equal(buffer.nan_to_num(), copy.nan_to_num()))
        if is_changed:
            changed.append(name)
    return tuple(changed)
