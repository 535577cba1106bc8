"""SimTensor, a tensor on a simulated device, and the dispatch of torch's operators that are called with one."""

# ruff: noqa: SLF001  (private names of torch, which `registration` checks first)

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from anyaccel.adapter.simulated_timing import INTO, OUT
from anyaccel_torch.simulated import autograd_hooks, recurrent
from anyaccel_torch.simulated.device_rules import OperatorTraits, common_device, device_mismatch, operator_traits
from anyaccel_torch.simulated.memory_ledger import handle_of, parse_device, reserve
from anyaccel_torch.simulated.rng import call_random
from anyaccel_torch.simulated.sim_device import KIND, observers
from anyaccel_torch.simulated.streams import is_pinned
from anyaccel_torch.transfer_observer import transfer_event

aten = torch.ops.aten
_HOST = torch.device("cpu")


class SimTensor(torch.Tensor):
    """A tensor on `sim:k` with the values, strides and memory of `held`, a tensor on the CPU.

    Every operator of torch that is called with one is dispatched here. Functions below torch's operators are
    overridden, because they would find no data.
    """

    held: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, held: Tensor, device: torch.device) -> SimTensor:
        tensor: SimTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=device,
        )
        tensor.held = held
        return tensor

    def __init__(self, held: Tensor, device: torch.device) -> None:
        super().__init__()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        special = _SPECIAL.get(func)
        try:
            return _dispatch(func, args, dict(kwargs or {})) if special is None else special(*args, **(kwargs or {}))
        except Exception as error:
            if autograd_hooks.in_backward():
                return autograd_hooks.defer(error)
            raise

    @property
    def data(self) -> Tensor:
        """The values without their history, as in torch; assigning replaces them."""
        return torch.Tensor.data.__get__(self)  # type: ignore[attr-defined, no-any-return]

    @data.setter
    def data(self, value: Tensor) -> None:
        _set_metadata(self, value)
        self.held = value.held  # type: ignore[attr-defined]

    def data_ptr(self) -> int:
        """Return the address of the values; equal for tensors that share memory."""
        return self.held.data_ptr()

    def numpy(self, *, force: bool = False) -> Any:
        """Convert to NumPy as for a GPU tensor: refused without `force`, which copies.

        Raises:
            TypeError: the values are not in host memory.
        """
        if force:
            return self.detach().cpu().numpy(force=True)
        raise TypeError(
            f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host "
            "memory first."
        )

    def tolist(self) -> Any:
        """Return a list as in torch; wait for a copy to the host."""
        return self.detach().cpu().tolist()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user support the deepcopy protocol at the moment"
            )
        with torch.no_grad():
            copied: Any = self.detach().clone()
            if hasattr(self, "_is_param"):
                copied = torch.nn.Parameter(copied, requires_grad=False)
            copied.grad = copy.deepcopy(self.grad, memo)
        memo[id(self)] = copied.requires_grad_(self.requires_grad)
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Save values and device, as torch saves tensors of devices that it does not know."""
        values = self.detach().cpu(), self.dtype, str(self.device), self.requires_grad
        return torch._utils._rebuild_device_tensor_from_cpu_tensor, values

    def __dlpack__(self, **_: Any) -> Any:
        raise BufferError(
            f"a tensor on {self.device} cannot be exported: other frameworks do not support simulated devices"
        )

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        _count_transfer(self.device, _HOST, self.nbytes, True, name="repr")
        text, grad = repr(self.held.detach()).removesuffix(")"), ", requires_grad=True" if self.requires_grad else ""
        return f"{text}, device='{self.device}'{grad})"


def _set_metadata(tensor: Tensor, like: Tensor) -> None:
    """Give a tensor the shape and strides of another; `held` is not changed."""
    torch.Tensor.data.__set__(tensor, like)  # type: ignore[attr-defined]


def wrap(held: Tensor, device: torch.device) -> SimTensor:
    """Return a tensor on the CPU as one on a simulated device, which counts its memory until it is freed.

    Raises:
        torch.OutOfMemoryError: it does not fit.
        NotImplementedError: it is sparse.
    """
    reserve(held, device)
    return SimTensor(held, device)


# -- operators -------------------------------------------------------------------------------------------------------


class _Operands:
    """The tensors among the arguments of an operator, and the tensors that they hold."""

    __slots__ = ("hosts", "owners", "sims")

    def __init__(self) -> None:
        self.sims: list[SimTensor] = []
        self.hosts: list[Tensor] = []
        self.owners: dict[int, SimTensor] = {}

    def unwrap(self, value: Any) -> Any:
        if isinstance(value, SimTensor):
            self.sims.append(value)
            self.owners[id(value.held)] = value
            return value.held
        if isinstance(value, Tensor):
            self.hosts.append(value)
        elif type(value) in (list, tuple):
            return [self.unwrap(item) for item in value]
        return value

    def wrap(self, value: Any, device: torch.device) -> Any:
        """Return the result of an operator on a device; an argument that was written to is returned unchanged."""
        if isinstance(value, Tensor):
            owner = self.owners.get(id(value))
            return wrap(value, device) if owner is None else owner
        if isinstance(value, (list, tuple)):
            return type(value)(self.wrap(item, device) for item in value)
        return value


def _dispatch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    traits, operands = operator_traits(func), _Operands()
    if traits.composite:  # torch decomposes it earlier, but not in inference mode
        return func.decompose(*args, **kwargs)
    if traits.itemwise:
        return _dispatch_itemwise(func, traits, args, kwargs)
    held_args = [operands.unwrap(value) for value in args]
    held_kwargs = {name: operands.unwrap(value) for name, value in kwargs.items()}
    device = common_device(traits, args, kwargs, operands.sims, operands.hosts)
    if traits.waits and not traits.indexing:
        handle_of(device).count_sync(traits.name)
    if traits.indexing:
        # Count indices that an operator copies to the device, and the wait for the number of places in a mask.
        # Writing one number at a mask needs none: it becomes `masked_fill`. On a GPU that holds for numbers on
        # the host; here torch has put them on the device already.
        if operands.hosts:
            nbytes = sum(host.nbytes for host in operands.hosts)
            handle_of(device).transfers.into.count(nbytes)
            tell_transfer(_HOST, device, nbytes, traits.name, waits=True)
        masks = [index for index in args[1] if index is not None and index.dtype in (torch.bool, torch.uint8)]
        fills = len(args) > 2 and args[2].numel() == 1
        if masks and not fills:
            handle_of(device).count_sync(traits.name)
    target = device if held_kwargs.get("device") is None else parse_device(held_kwargs["device"])
    if "device" in held_kwargs:
        held_kwargs["device"] = _HOST if target.type == KIND else target
    if traits.random:
        result = call_random(func, traits, device, held_args, held_kwargs)
    else:
        result = func(*held_args, **held_kwargs)
    if traits.written:
        # Update tensors whose held tensor has got another shape in place.
        for tensor in operands.sims:
            if tensor.shape != tensor.held.shape or tensor.stride() != tensor.held.stride():
                _set_metadata(tensor, SimTensor(tensor.held, tensor.device))
    _count_compute(device, held_args, result, bool(traits.written))
    return operands.wrap(result, target) if target.type == KIND else result


def _dispatch_itemwise(func: Any, traits: OperatorTraits, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An operator over lists: the tensors at each index must be on one device, where the result is, too."""
    operands = _Operands()
    held_args = [operands.unwrap(value) for value in args]
    held_kwargs = {name: operands.unwrap(value) for name, value in kwargs.items()}
    values = [*args, *kwargs.values()]
    lists = [value for value in values if type(value) in (list, tuple) and any(isinstance(v, Tensor) for v in value)]
    single = [value for value in values if isinstance(value, Tensor)]
    devices = []
    for items in zip(*lists, strict=True):
        sims = [tensor for tensor in (*items, *single) if isinstance(tensor, SimTensor)]
        hosts = [item for item in (*items, *single) if isinstance(item, Tensor) and not isinstance(item, SimTensor)]
        devices.append(common_device(traits, (items[0],), {}, sims, hosts) if sims else _HOST)
    results = func(*held_args, **held_kwargs)
    if not isinstance(results, (list, tuple)):
        return results
    pairs = list(zip(results, devices, strict=True))
    for i, (result, device) in enumerate(pairs):
        _count_compute(
            device, [items[i] for items in held_args if isinstance(items, list)], result, bool(traits.written)
        )
    return [operands.wrap(result, device) if device.type == KIND else result for result, device in pairs]


def _count_compute(device: torch.device, operands: Any, results: Any, writes: bool) -> None:
    """Count the time of an operator: of its reads and writes; creating a view takes none."""
    timing = handle_of(device).timing if device.type == KIND else None
    if timing is None:
        return
    read = [value for value in tree_leaves(operands) if isinstance(value, Tensor)]
    written = [value for value in tree_leaves(results) if isinstance(value, Tensor)]
    storages = {value.untyped_storage().data_ptr() for value in read}
    if writes or any(value.untyped_storage().data_ptr() not in storages for value in written):
        timing.compute(sum(value.nbytes for value in (*read, *written)))


# -- transfers -------------------------------------------------------------------------------------------------------


def _held(tensor: Tensor) -> Tensor:
    return tensor.held if isinstance(tensor, SimTensor) else tensor


def _count_transfer(
    source: torch.device,
    target: torch.device,
    nbytes: int,
    waits: bool,
    pinned: bool = False,
    name: str = "copy_",
    result: Tensor | None = None,
) -> None:
    """Count a transfer, and the wait for one to the host."""
    if source == target:
        return
    _count_copy_time(source, target, nbytes, waits or not pinned)
    tell_transfer(source, target, nbytes, name, waits=waits or not pinned, result=result)
    if source.type == target.type == KIND:
        handle_of(source).transfers.between.count(nbytes)
        handle_of(target).transfers.between.count(nbytes)
    elif target.type == KIND:
        handle_of(target).transfers.into.count(nbytes)
    else:
        handle_of(source).transfers.out.count(nbytes)
        if waits:
            handle_of(source).syncs += 1


def tell_transfer(
    source: torch.device, target: torch.device, nbytes: int, name: str, *, waits: bool, result: Any = None
) -> None:
    """Tell who observes; the host waits for no copy between two devices."""
    if observers:
        observers.tell(transfer_event(source, target, nbytes, name, waits=waits, result=result))


def _count_copy_time(source: torch.device, target: torch.device, nbytes: int, waits: bool) -> None:
    if source.type == target.type == KIND:
        origin, destination = handle_of(source).timing, handle_of(target).timing
        if origin is not None and destination is not None:
            destination.copy_from(origin, nbytes)
            return
    for device, direction in ((target, INTO), (source, OUT)):
        timing = handle_of(device).timing if device.type == KIND else None
        if timing is not None:
            timing.copy(direction, nbytes, waits=waits)


def _to_copy(source: Tensor, *, device: Any = None, non_blocking: bool = False, **settings: Any) -> Tensor:
    target = source.device if device is None else parse_device(device)
    held_on = _HOST if target.type == KIND else target
    copied: Tensor = aten._to_copy.default(_held(source), device=held_on, **settings)
    result = wrap(copied, target) if target.type == KIND else copied
    pinned = is_pinned(source) if source.device.type == "cpu" else non_blocking  # torch allocates it for such copies
    _count_transfer(source.device, target, copied.nbytes, not non_blocking, pinned, "_to_copy", result)
    return result


def _copy_(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    _held(target).copy_(_held(source))
    pinned = is_pinned(source if source.device.type == "cpu" else target)
    _count_transfer(source.device, target.device, source.nbytes, not non_blocking, pinned, result=target)
    return target


def copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    """Return a copy into `target`, with the signature of a device's kernel."""
    return _copy_(target, source, non_blocking)


def _item(source: SimTensor) -> Any:
    _count_transfer(source.device, _HOST, source.nbytes, True, name="_local_scalar_dense")
    return source.held.item()


def _all_equal(a: Tensor, b: Tensor) -> bool:
    if a.device != b.device:
        raise device_mismatch(operator_traits(aten.equal.default), a.device, b.device)
    handle_of(a.device).count_sync("equal")
    return bool(torch.equal(_held(a), _held(b)))


_SPECIAL: dict[Any, Callable[..., Any]] = {
    aten._to_copy.default: _to_copy,
    aten.copy_.default: _copy_,
    aten._copy_from.default: copy_from,
    aten._local_scalar_dense.default: _item,
    aten.equal.default: _all_equal,
    aten._has_compatible_shallow_copy_type.default: lambda a, b: type(a) is type(b),
    aten._thnn_fused_lstm_cell.default: recurrent.lstm_cell,
    aten._thnn_fused_gru_cell.default: recurrent.gru_cell,
}
