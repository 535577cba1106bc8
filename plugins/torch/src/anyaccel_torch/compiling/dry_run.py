"""One plain step whose effects are taken back: what a step of this program reaches, changes and draws."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from anyaccel.errors import CompileError
from anyaccel_torch.compiling.spec import Whole, Work
from anyaccel_torch.state_guard import Buffers, RandomState

_NORMS = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
)
_TIMED = 4
_PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True, slots=True)
class Facts:
    """What a plain step showed: parameters that a gradient reaches, by id; the indices of losses that reach one;
    names of the buffers that changed; indices of the inputs that were written to; the losses; and the state of the
    CPU's generator before.
    """

    reached: frozenset[int]
    roots: tuple[int, ...]
    buffers: tuple[str, ...]
    written: tuple[int, ...]
    losses: tuple[Tensor, ...]
    random: Tensor


@contextmanager
def unchanged(work: Work) -> Iterator[None]:
    """Inside, steps may be done; buffers and random states are as before afterwards, also after an interrupt.

    Raises:
        CompileError: a module has changed an attribute of its own, which compiled steps would not do.
    """
    kept = (Buffers([work.whole]), RandomState([work.device]))
    attributes = [(part, _attributes(part)) for part in work.whole.held.modules()]
    changed = ""
    try:
        yield
    finally:
        for part, before in attributes:
            for name, value in before.items():
                if vars(part).get(name) is not value and vars(part).get(name) != value:
                    changed = changed or f"{type(part).__name__}.{name}"
                    setattr(part, name, value)
        for each in kept:
            each.restore()
    if changed:
        remedy = "keep in register_buffer what a step changes, and change it in place"
        raise CompileError(f"a step changes the attribute {changed}, which is no tensor", hint=remedy)


def _attributes(part: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(part).items() if isinstance(value, _PLAIN)}


def probe(work: Work, values: Sequence[Tensor]) -> Facts:
    """Facts of a step over some rows; to be called where all is `unchanged`.

    Raises:
        CompileError: something that only plain steps can do: sparse gradients, a buffer that is replaced.
    """
    whole, trained = work.whole, _trained(work)
    before = {name: (buffer, buffer.clone(), buffer._version) for name, buffer in whole.named_buffers()}  # noqa: SLF001
    given, random = [value.clone() for value in values], torch.get_rng_state()
    losses, roots, grads = _forward_and_back(work, given)
    if any(grad is not None and grad.is_sparse for grad in grads):
        raise CompileError("its gradients are sparse", hint="make the embedding with sparse=False")
    return Facts(
        frozenset(id(each) for each, grad in zip(trained, grads, strict=True) if grad is not None),
        roots,
        _changed(whole, before),
        tuple(i for i, value in enumerate(given) if value._version),  # noqa: SLF001
        tuple(loss.detach() for loss in losses),
        random,
    )


def _trained(work: Work) -> list[nn.Parameter]:
    return [parameter for group in work.groups for parameter in group.parameters]


def _forward_and_back(
    work: Work, values: Sequence[Tensor]
) -> tuple[list[Tensor], tuple[int, ...], tuple[Tensor | None, ...]]:
    """Losses, the indices of those that reach a parameter, and the gradients of the trained parameters."""
    trained = _trained(work)
    with torch.enable_grad():
        losses = work.whole([*values, *[None] * work.rest])
        roots = tuple(i for i, loss in enumerate(losses) if loss.requires_grad and work.losses[i].weight)
        if not roots or not trained:
            raise CompileError("no loss reaches a parameter that is to be trained")
        total = [losses[i] * work.losses[i].weight for i in roots]
        return losses, roots, torch.autograd.grad(total, trained, allow_unused=True)


def least(work: Work, values: Sequence[Tensor]) -> float:
    """Seconds that a plain step over these rows takes at least, its update aside: the best of some."""
    found = []
    for _ in range(_TIMED):
        given, begun = [value.clone() for value in values], time.perf_counter()
        _forward_and_back(work, given)
        found.append(time.perf_counter() - begun)
    return min(found)


def _changed(whole: Whole, before: dict[str, tuple[Tensor, Tensor, int]]) -> tuple[str, ...]:
    """Buffers that are not as they were; torch's count of writes does not tell of statistics of normalisations."""
    changed, moving = [], _statistics(whole)
    for name, buffer in whole.named_buffers():
        if name not in before or buffer is not before[name][0]:
            remedy = "change it in place, such as with copy_"
            raise CompileError(f"a step puts another tensor in the place of buffer {_short(name)}", hint=remedy)
        _, copy, version = before[name]
        if buffer._version != version or id(buffer) in moving or not _equal(buffer, copy):  # noqa: SLF001
            changed.append(name)
    return tuple(changed)


def _statistics(whole: Whole) -> set[int]:
    """Buffers, by id, of the normalisations that move them now."""
    parts = (part for part in whole.held.modules() if isinstance(part, _NORMS))
    return {id(buffer) for part in parts if part.training and part.track_running_stats for buffer in part.buffers()}


def _equal(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a, b) or (torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num()))


def _short(name: str) -> str:
    return ".".join(name.split(".")[2:]) or name
