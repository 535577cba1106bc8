"""Gradients of streamed weights: the graph holds no copy of a weight, and gradients come to where the weights rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from anyaccel_offload.torch.copy_engine import CopyEngine
from anyaccel_offload.torch.stored_tensor import StoredTensor


class Ticket:
    """Says when the gradients of one use of a block are in host memory."""

    def __init__(self) -> None:
        self.wait: Callable[[], object] = lambda: None


class _Arrive(torch.autograd.Function):
    """A parameter at rest; its gradient is waited for.

    Its node is made at the beginning of a forward pass, so that a backward pass comes to it last; on accelerators it
    runs in another thread than they do. So no computation waits for the copy of a gradient.
    """

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, ticket: Ticket) -> Tensor:
        ctx.ticket = ticket
        return parameter.view_as(parameter)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, None]:
        ctx.ticket.wait()
        return grad, None


class _Upload(torch.autograd.Function):
    """Parameters at rest -> their copies on the device; gradients go the other way."""

    @staticmethod
    def forward(ctx: Any, views: Sequence[Tensor], returned: Callable[..., Any], *_: Tensor) -> tuple[Tensor, ...]:
        ctx.returned = returned
        ctx.set_materialize_grads(False)
        return tuple(views)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        return (None, None, *ctx.returned(grads))


class Resting(NamedTuple):
    """What stands in a graph for the trained tensors of a block."""

    ticket: Ticket
    leaves: tuple[Tensor, ...]


def resting(tensors: Sequence[Tensor]) -> Resting:
    """The beginning of a graph for tensors that require gradients."""
    ticket = Ticket()
    arrive: Any = _Arrive.apply
    return Resting(ticket, tuple(it if isinstance(it, StoredTensor) else arrive(it, ticket) for it in tensors))


def uploaded(
    rest: Resting, views: Sequence[Tensor], engine: CopyEngine, finished: Callable[[], object]
) -> tuple[Tensor, ...]:
    """Copies on the device as part of a graph.

    Args:
        rest: of these tensors.
        views: the copies.
        engine: that brings gradients back.
        finished: called when all gradients of the block are known.
    """

    def returned(grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        leaving = [i for i, grad in enumerate(grads) if grad is not None and _leaves(grad, rest.leaves[i])]
        arrived = [g if g is None or i in leaving else g.to(rest.leaves[i].device) for i, g in enumerate(grads)]
        if leaving:
            hosts, rest.ticket.wait = engine.to_host([grads[i] for i in leaving])  # type: ignore[misc]
            for i, host in zip(leaving, hosts, strict=True):
                arrived[i] = host
        finished()
        return arrived

    upload: Any = _Upload.apply
    made: tuple[Tensor, ...] = upload(views, returned, *rest.leaves)
    return made


def _leaves(grad: Tensor, leaf: Tensor) -> bool:
    """Whether a gradient goes from a device to host memory."""
    return leaf.device.type == "cpu" != grad.device.type


class SavedWeight(NamedTuple):
    """What a graph keeps in place of a weight, or of a view of it."""

    fetch: Callable[[], Tensor]
    offset: int
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]

    def value(self) -> Tensor:
        """The weight, copied to the device again if it is not there."""
        flat = self.fetch().view(self.dtype)
        return flat.as_strided(self.size, self.stride, self.offset // self.dtype.itemsize)


def saved(tensor: Tensor, flat: Tensor, fetch: Callable[[], Tensor]) -> SavedWeight | None:
    """What to keep in place of a tensor in flat memory; None if it is not there."""
    if isinstance(tensor, StoredTensor) or tensor.layout is not torch.strided or tensor.device != flat.device:
        return None
    offset = tensor.data_ptr() - flat.data_ptr()
    if not 0 <= offset < flat.numel():
        return None
    return SavedWeight(fetch, offset, tensor.dtype, tensor.size(), tensor.stride())
