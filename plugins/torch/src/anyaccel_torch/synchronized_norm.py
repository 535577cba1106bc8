"""Batch normalization by the rows of all replicas: exact statistics, and their gradients, by one all-reduce each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

AllReduce = Callable[[Tensor], None]
"""Replaces a tensor by its sum over all replicas."""


class SynchronizedNorm:
    """Replace the forward pass of batch normalization in training, until `restore`.

    `torch.nn.SyncBatchNorm` has kernels for GPUs only. Here each replica contributes mean, squares and count of its
    rows; a gradient with respect to these includes the losses of all replicas.

    Args:
        layer: A batch normalization of torch that `is_synchronizable` accepts.
        rank, size: Rank of this replica and number of replicas.
        all_reduce: Function that sums a tensor over all replicas.
        by_rows: Whether gradients are averaged over replicas by rows, rather than summed.
        counts: Whether the rows of this replica count now; they do not if it has none and uses another replica's.
    """

    def __init__(
        self,
        layer: _BatchNorm,
        rank: int,
        size: int,
        all_reduce: AllReduce,
        *,
        by_rows: bool,
        counts: Callable[[], bool] = lambda: True,
    ) -> None:
        self._layer, self._rank, self._size, self._counts = layer, rank, size, counts
        self._all_reduce, self._by_rows = all_reduce, by_rows
        self._own = vars(layer).get("forward")
        self._forward = layer.forward
        vars(layer)["forward"] = self.forward

    def restore(self) -> None:
        """Give the layer its forward pass back."""
        if self._own is None:
            del vars(self._layer)["forward"]
        else:
            vars(self._layer)["forward"] = self._own

    def forward(self, x: Tensor) -> Tensor:
        """Normalize [n, channels, *] in training by the rows of all replicas, otherwise as the layer does."""
        layer = self._layer
        if not layer.training:
            return self._forward(x)
        wide = x.float() if x.itemsize < 4 else x
        mean, variance, count = self._statistics(wide)
        _count_batch(layer, mean.detach(), variance.detach(), count.detach())
        shape = (1, -1, *[1] * (x.ndim - 2))
        result = (wide - mean.view(shape)) * torch.rsqrt(variance + layer.eps).view(shape)
        if layer.affine:
            result = result * layer.weight.view(shape) + layer.bias.view(shape)
        return result.to(x.dtype)

    def _statistics(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean and variance [channels] over the rows of all replicas, and how many values each is of."""
        axes = [0, *range(2, x.ndim)]
        own_count = x.new_full((1,), x.numel() // x.shape[1])
        own_mean = x.mean(axes)
        squares = (x - own_mean.view(1, -1, *[1] * (x.ndim - 2))).square().sum(axes)
        row = torch.cat([own_mean, squares, own_count])
        if not self._counts():
            row = row * 0.0
        table = nn.functional.pad(row[None], (0, 0, self._rank, self._size - self._rank - 1))
        rows = float(len(x)) if self._by_rows else 1.0
        table = _Sum.apply(table, rows, self._all_reduce)  # type: ignore[no-untyped-call]
        means, squares, counts = table.split([x.shape[1], x.shape[1], 1], dim=1)
        count = counts.sum()
        mean = (counts * means).sum(0) / count
        return mean, (squares.sum(0) + (counts * (means - mean).square()).sum(0)) / count, count


class _Sum(torch.autograd.Function):
    """Sum over replicas; the gradient combines all of them, each weighted by its rows."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, rows: float, all_reduce: AllReduce) -> Tensor:
        ctx.rows, ctx.all_reduce = rows, all_reduce
        result = table.detach().clone()
        all_reduce(result)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        summed = gradients[0] * ctx.rows
        ctx.all_reduce(summed)
        return summed / ctx.rows, None, None


@torch.no_grad()
def _count_batch(layer: _BatchNorm, mean: Tensor, variance: Tensor, count: Tensor) -> None:
    """Update the running statistics as torch does."""
    if layer.running_mean is None or layer.running_var is None:
        return
    weight: Any = layer.momentum
    if layer.num_batches_tracked is not None:
        layer.num_batches_tracked.add_(1)
        if weight is None:
            weight = 1.0 / float(layer.num_batches_tracked)
    layer.running_mean.lerp_(mean.to(layer.running_mean.dtype), weight)
    unbiased = variance * (count / (count - 1))
    layer.running_var.lerp_(unbiased.to(layer.running_var.dtype), weight)


def is_synchronizable(layer: nn.Module) -> TypeGuard[_BatchNorm]:
    """Whether a layer is a batch normalization whose forward pass is torch's own."""
    return isinstance(layer, _BatchNorm) and type(layer).forward in _FORWARDS


_FORWARDS = (_BatchNorm.forward, nn.SyncBatchNorm.forward)
