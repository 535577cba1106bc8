"""SimTensor, and what happens when an operator of torch is called with one."""

# ruff: noqa: SLF001  (names inside torch, which inside.py asks for before)

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from anyaccel_torch.simulated import autograd_hooks, recurrent
from anyaccel_torch.simulated.device_rules import Facts, facts_of, home, mixed
from anyaccel_torch.simulated.memory_ledger import handle, take, there
from anyaccel_torch.simulated.rng import drawing
from anyaccel_torch.simulated.sim_device import KIND
from anyaccel_torch.simulated.sim_tensor import Wrapper, reshape

aten = torch.ops.aten
_HOST = torch.device("cpu")


class SimTensor(Wrapper):
    """A tensor on `sim:k`: every operator of torch that is called with one arrives here."""

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        crossing = _CROSSING.get(func)
        try:
            return _called(func, args, dict(kwargs or {})) if crossing is None else crossing(*args, **(kwargs or {}))
        except Exception as error:
            if autograd_hooks.is_under_way():
                return autograd_hooks.keep(error)
            raise


def wrap(held: Tensor, device: torch.device) -> SimTensor:
    """A tensor of the CPU as one of a simulated device, whose memory is counted until it is freed.

    Raises:
        torch.OutOfMemoryError: it does not fit.
        NotImplementedError: it is sparse.
    """
    take(held, device)
    return SimTensor(held, device)


class _Operands:
    """The tensors among the arguments of a call, and the arguments with what they hold in their place."""

    __slots__ = ("hosts", "owners", "sims")

    def __init__(self) -> None:
        self.sims: list[SimTensor] = []
        self.hosts: list[Tensor] = []
        self.owners: dict[int, SimTensor] = {}

    def opened(self, value: Any) -> Any:
        if isinstance(value, SimTensor):
            self.sims.append(value)
            self.owners[id(value.held)] = value
            return value.held
        if isinstance(value, Tensor):
            self.hosts.append(value)
        elif type(value) in (list, tuple):
            return [self.opened(item) for item in value]
        return value

    def closed(self, value: Any, device: torch.device) -> Any:
        """What an operator gave, on a device: what it was given to write to is itself again."""
        if isinstance(value, Tensor):
            owner = self.owners.get(id(value))
            return wrap(value, device) if owner is None else owner
        if isinstance(value, (list, tuple)):
            return type(value)(self.closed(item, device) for item in value)
        return value


def _called(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    facts, operands = facts_of(func), _Operands()
    if facts.composite:  # torch takes it apart before, but not in inference mode
        return func.decompose(*args, **kwargs)
    if facts.itemwise:
        return _item_by_item(func, facts, args, kwargs)
    opened = [operands.opened(one) for one in args]
    named = {name: operands.opened(one) for name, one in kwargs.items()}
    device = home(facts, args, kwargs, operands.sims, operands.hosts)
    if facts.waits:
        handle(device).waited()
    if facts.indexing and operands.hosts:
        handle(device).transfers.into.count(sum(host.nbytes for host in operands.hosts))
    wanted = device if named.get("device") is None else there(named["device"])
    if "device" in named:
        named["device"] = _HOST if wanted.type == KIND else wanted
    found = drawing(func, facts, device, opened, named) if facts.random else func(*opened, **named)
    if facts.written:
        _follow(operands.sims)
    return operands.closed(found, wanted) if wanted.type == KIND else found


def _follow(sims: list[SimTensor]) -> None:
    """Let tensors that were given another shape in place say so, too."""
    for one in sims:
        if one.shape != one.held.shape or one.stride() != one.held.stride():
            reshape(one, SimTensor(one.held, one.device))


def _item_by_item(func: Any, facts: Facts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An operator over lists: the tensors of each place must be on one device, and what comes out is there, too."""
    operands = _Operands()
    opened = [operands.opened(one) for one in args]
    named = {name: operands.opened(one) for name, one in kwargs.items()}
    lists = [one for one in (*args, *kwargs.values()) if type(one) in (list, tuple)]
    lists = [one for one in lists if any(isinstance(item, Tensor) for item in one)]
    single = [one for one in (*args, *kwargs.values()) if isinstance(one, Tensor)]
    devices = []
    for items in zip(*lists, strict=True):
        sims = [one for one in (*items, *single) if isinstance(one, SimTensor)]
        hosts = [one for one in (*items, *single) if isinstance(one, Tensor) and not isinstance(one, SimTensor)]
        devices.append(home(facts, (items[0],), {}, sims, hosts) if sims else _HOST)
    found = func(*opened, **named)
    if not isinstance(found, (list, tuple)):
        return found
    return [
        operands.closed(one, where) if where.type == KIND else one for one, where in zip(found, devices, strict=True)
    ]


# -- crossings -------------------------------------------------------------------------------------------------------


def _held(tensor: Tensor) -> Tensor:
    return tensor.held if isinstance(tensor, SimTensor) else tensor


def _cross(origin: torch.device, target: torch.device, nbytes: int, awaited: bool) -> None:
    """Count a transfer; a copy to the host is waited for."""
    if origin == target:
        return
    if origin.type == target.type == KIND:
        handle(origin).transfers.between.count(nbytes)
        handle(target).transfers.between.count(nbytes)
    elif target.type == KIND:
        handle(target).transfers.into.count(nbytes)
    else:
        handle(origin).transfers.out.count(nbytes)
        if awaited:
            handle(origin).waited()


def _to_copy(source: Tensor, *, device: Any = None, non_blocking: bool = False, **settings: Any) -> Tensor:
    target = source.device if device is None else there(device)
    real = _HOST if target.type == KIND else target
    made: Tensor = aten._to_copy.default(_held(source), device=real, **settings)
    found = wrap(made, target) if target.type == KIND else made
    _cross(source.device, target, made.nbytes, not non_blocking)
    return found


def _copy_(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    _held(target).copy_(_held(source))
    _cross(source.device, target.device, source.nbytes, not non_blocking)
    return target


def copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    """A copy into `target`, as torch's kernels of a device are called for it."""
    return _copy_(target, source, non_blocking)


def _number(source: SimTensor) -> Any:
    """A single value: the host waits for it."""
    _cross(source.device, _HOST, source.nbytes, True)
    return source.held.item()


def _all_equal(one: Tensor, other: Tensor) -> bool:
    if one.device != other.device:
        raise mixed(facts_of(aten.equal.default), one.device, other.device)
    handle(one.device).waited()
    return bool(torch.equal(_held(one), _held(other)))


_CROSSING: dict[Any, Callable[..., Any]] = {
    aten._to_copy.default: _to_copy,
    aten.copy_.default: _copy_,
    aten._copy_from.default: copy_from,
    aten._local_scalar_dense.default: _number,
    aten.equal.default: _all_equal,
    aten._has_compatible_shallow_copy_type.default: lambda one, other: type(one) is type(other),
    aten._thnn_fused_lstm_cell.default: recurrent.lstm_cell,
    aten._thnn_fused_gru_cell.default: recurrent.gru_cell,
}
