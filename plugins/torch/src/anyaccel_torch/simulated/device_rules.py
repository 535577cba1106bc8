"""What a GPU refuses: which operands of an operator may be elsewhere, as torch's own kernels have it."""

# ruff: noqa: SLF001  (names inside torch, which inside.py asks for before)

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

aten = torch.ops.aten

# Numbers of the host (tensors without axes) that a kernel takes, beside those of pointwise operators, which take one.
_HOST_NUMBERS: dict[Any, int] = {
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
# Operators that bring indices of the host to the device themselves; their indices are the second argument.
_INDEXING = frozenset(
    {
        aten.index.Tensor,
        aten._unsafe_index.Tensor,
        aten.index_put.default,
        aten.index_put_.default,
        aten._index_put_impl_.default,
    }
)


@dataclass(frozen=True, slots=True)
class Facts:
    """What torch's schema and tags say of an operator.

    `composite` says that it is made of others, `written` are the arguments that it writes to, by position and name;
    `numbers` says how many tensors of the host without axes it takes; `itemwise` that it works on lists, item by item.
    """

    name: str
    composite: bool
    written: tuple[tuple[int, str], ...]
    numbers: int
    indexing: bool
    itemwise: bool
    random: bool
    takes_generator: bool
    waits: bool


@functools.cache
def facts_of(func: OpOverload) -> Facts:
    """The facts, looked up once for each operator."""
    arguments, tags, name = func._schema.arguments, func.tags, func._schema.name.removeprefix("aten::")
    written = (
        (i, one.name) for i, one in enumerate(arguments) if one.alias_info is not None and one.alias_info.is_write
    )
    itemwise = name.startswith("_foreach_")
    full: str = func.name()  # type: ignore[no-untyped-call]
    return Facts(
        name,
        torch._C._dispatch_has_kernel_for_dispatch_key(full, "CompositeImplicitAutograd"),
        tuple(written),
        _HOST_NUMBERS.get(func, 1 if itemwise or torch.Tag.pointwise in tags else 0),
        func in _INDEXING,
        itemwise,
        torch.Tag.nondeterministic_seeded in tags,
        any(one.name == "generator" for one in arguments),
        torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags,
    )


def home(
    facts: Facts, args: Sequence[Any], kwargs: dict[str, Any], sims: Sequence[Tensor], hosts: Sequence[Tensor]
) -> torch.device:
    """The one device of an operator.

    Args:
        facts: of the operator.
        args, kwargs: as it was called.
        sims: the tensors among them that are on simulated devices, at least one.
        hosts: the others.

    Raises:
        RuntimeError: there are several, in torch's own words.
    """
    device: torch.device = sims[0].device
    for other in sims:
        if other.device != device:
            raise mixed(facts, device, other.device)
    if hosts:
        _check_hosts(facts, args, kwargs, device, hosts)
    return device


def _check_hosts(
    facts: Facts, args: Sequence[Any], kwargs: dict[str, Any], device: torch.device, hosts: Sequence[Tensor]
) -> None:
    for position, name in facts.written:
        target = args[position] if position < len(args) else kwargs.get(name)
        for one in target if isinstance(target, (list, tuple)) else (target,):
            if any(one is host for host in hosts):
                raise mixed(facts, device, one.device)
    free: list[Tensor] = []
    if facts.indexing:
        if any(args[0] is host for host in hosts):
            raise RuntimeError(
                f"indices should be either on {args[0].device} or on the same device as the indexed tensor "
                f"({args[0].device})"
            )
        free = [one for one in args[1] if one is not None]
    numbers = 0
    for host in hosts:
        if any(host is one for one in free):
            continue
        numbers += 1
        if host.dim() or host.device.type != "cpu" or numbers > facts.numbers:
            raise mixed(facts, device, host.device)


def mixed(facts: Facts, one: torch.device, other: torch.device) -> RuntimeError:
    """The error of operands on two devices, in torch's own words."""
    return RuntimeError(
        f"Expected all tensors to be on the same device, but found at least two devices, {one} and {other}! "
        f"(when checking arguments of {facts.name})"
    )
