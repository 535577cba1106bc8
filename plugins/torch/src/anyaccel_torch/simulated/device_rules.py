"""Which operands of an operator may be on another device, as torch's GPU kernels have it."""

# ruff: noqa: SLF001  (private names of torch, which `registration` checks first)

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

aten = torch.ops.aten

# How many host tensors without axes a kernel takes; pointwise operators take one.
_HOST_SCALARS: dict[Any, int] = {
    aten.where.self: 2,
    aten.fill_.Tensor: 1,
    aten.fill.Tensor: 1,
    aten.masked_fill.Tensor: 1,
    aten.masked_fill_.Tensor: 1,
    aten.index_fill.int_Tensor: 1,
    aten.index_fill_.int_Tensor: 1,
    aten.index_put.default: 1,
    aten.index_put_.default: 1,
    aten._index_put_impl_.default: 1,
}
# Operators that copy host indices, their second argument, to the device themselves.
_INDEXING = frozenset(
    {
        aten.index.Tensor,
        aten._unsafe_index.Tensor,
        aten.index_put.default,
        aten.index_put_.default,
        aten._index_put_impl_.default,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTraits:
    """The facts about an operator in torch's schema and tags.

    Attributes:
        composite: Whether it consists of other operators.
        written: Arguments that it writes to, by position and name.
        host_scalars: Number of host tensors without axes that it takes.
        indexing: Whether it takes host indices.
        itemwise: Whether it works on lists, item by item.
        random: Whether it draws random numbers.
        takes_generator: Whether it takes a generator as an argument.
        waits: Whether the host waits for its result.
    """

    name: str
    composite: bool
    written: tuple[tuple[int, str], ...]
    host_scalars: int
    indexing: bool
    itemwise: bool
    random: bool
    takes_generator: bool
    waits: bool


@functools.cache
def operator_traits(func: OpOverload) -> OperatorTraits:
    """Return the traits of an operator."""
    arguments, tags, name = func._schema.arguments, func.tags, func._schema.name.removeprefix("aten::")
    itemwise = name.startswith("_foreach_")
    full_name: str = func.name()  # type: ignore[no-untyped-call]
    return OperatorTraits(
        name=name,
        composite=torch._C._dispatch_has_kernel_for_dispatch_key(full_name, "CompositeImplicitAutograd"),
        written=tuple(
            (i, a.name) for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write
        ),
        host_scalars=_HOST_SCALARS.get(func, 1 if itemwise or torch.Tag.pointwise in tags else 0),
        indexing=func in _INDEXING,
        itemwise=itemwise,
        random=torch.Tag.nondeterministic_seeded in tags,
        takes_generator=any(argument.name == "generator" for argument in arguments),
        waits=torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags,
    )


def common_device(
    traits: OperatorTraits,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    sims: Sequence[Tensor],
    hosts: Sequence[Tensor],
) -> torch.device:
    """Return the one device of an operator.

    Args:
        traits: Traits of the operator.
        args, kwargs: Its arguments.
        sims: The tensors among them that are on simulated devices, at least one.
        hosts: The others.

    Raises:
        RuntimeError: there are several, in torch's own words.
    """
    device: torch.device = sims[0].device
    for other in sims:
        if other.device != device:
            raise device_mismatch(traits, device, other.device)
    if hosts:
        _check_hosts(traits, args, kwargs, device, hosts)
    return device


def _check_hosts(
    traits: OperatorTraits, args: Sequence[Any], kwargs: dict[str, Any], device: torch.device, hosts: Sequence[Tensor]
) -> None:
    for position, name in traits.written:
        target = args[position] if position < len(args) else kwargs.get(name)
        for tensor in target if isinstance(target, (list, tuple)) else (target,):
            if _is_among(tensor, hosts):
                raise device_mismatch(traits, device, tensor.device)
    indices: Sequence[Any] = ()
    if traits.indexing:
        if _is_among(args[0], hosts):
            raise RuntimeError(
                f"indices should be either on {args[0].device} or on the same device as the indexed tensor "
                f"({args[0].device})"
            )
        indices = args[1]
    scalars = 0
    for host in hosts:
        if _is_among(host, indices):
            continue
        scalars += 1
        if host.dim() or host.device.type != "cpu" or scalars > traits.host_scalars:
            raise device_mismatch(traits, device, host.device)


def _is_among(tensor: Any, tensors: Sequence[Any]) -> bool:
    return any(tensor is other for other in tensors)


def device_mismatch(traits: OperatorTraits, device: torch.device, other: torch.device) -> RuntimeError:
    """Create the error for operands on two devices, in torch's own words."""
    return RuntimeError(
        f"Expected all tensors to be on the same device, but found at least two devices, {device} and {other}! "
        f"(when checking arguments of {traits.name})"
    )
