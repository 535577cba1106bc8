"""Norms of gradients over all shards, if some tensors are sharded over processes (DTensors)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn


def is_dtensor(tensor: Any) -> bool:
    """Whether a tensor is a DTensor, without an import of torch.distributed."""
    return hasattr(tensor, "device_mesh")


def lists_of_one_kind(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Return the parameters that are DTensors, and the others, for functions of torch that do not take both at once."""
    kinds = ([parameter for parameter in parameters if is_dtensor(parameter) is divided] for divided in (True, False))
    return [kind for kind in kinds if kind]


def whole_stats(grads: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the squared L2 norm of all gradients, and whether all are finite: the same in every process.

    Gradients with equal sharding cost one all-reduce together. All processes of their mesh call this together.
    """
    groups: dict[Any, list[Any]] = {}
    for grad in grads:
        groups.setdefault(_division(grad), []).append(grad)
    rows: list[Tensor] = []  # squared norm and number of non-finite values of those with equal sharding
    for group in groups.values():
        if not is_dtensor(group[0]):
            rows.append(_local_stats(group))
            continue
        from torch.distributed.tensor import DTensor, Partial, Replicate

        mesh, sharded = _division(group[0])
        parts: list[Tensor] = []
        for grad in group:
            if any(placement.is_partial() for placement in grad.placements):
                whole = [Replicate() if placement.is_partial() else placement for placement in grad.placements]
                grad = grad.redistribute(placements=whole)
            parts.append(grad.to_local())
        placements = [Partial() if is_shard else Replicate() for is_shard in sharded]
        rows.append(DTensor.from_local(_local_stats(parts), mesh, placements, run_check=False).full_tensor())
    square, n_broken = torch.stack(rows).sum(0)
    return square, n_broken == 0


@torch.no_grad()
def clip_norm(parameters: Iterable[Tensor], limit: float) -> None:
    """Clip like `torch.nn.utils.clip_grad_norm_`, by the norm of all shards of all gradients."""
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not grads:
        return
    factor = torch.clamp(limit / (whole_stats(grads)[0].sqrt() + 1e-6), max=1.0)
    for grad in grads:
        grad.mul_(factor)


def _division(grad: Any) -> Any:
    """Return the mesh and the axes along which a gradient is sharded; None for one that each process has whole."""
    if not is_dtensor(grad):
        return None
    return grad.device_mesh, tuple(placement.is_shard() for placement in grad.placements)


def _local_stats(parts: Sequence[Tensor]) -> Tensor:
    norms = torch.stack([torch.linalg.vector_norm(part.float() if part.itemsize < 4 else part) for part in parts])
    n_broken = torch.stack([(~part.isfinite()).sum() for part in parts]).sum()
    return torch.stack([norms.square().sum(), n_broken.to(norms.dtype)])
