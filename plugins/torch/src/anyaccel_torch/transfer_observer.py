"""Transfer observer: kernels around torch's own, for the few operators that copy between devices or wait for one.

Other operators are dispatched as usual. Kernels are below autograd and are called in every thread, so what backward
does is seen as well as what user code does.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

from anyaccel.adapter.transfer_observer import ObservesTransfers, Record, TransferEvent
from anyaccel.device import Device

# The dispatch key of a type of device. Those that are not here are not observed.
_KEYS = {"cuda": "CUDA", "xpu": "XPU", "mps": "MPS", "hpu": "HPU", "meta": "Meta", "cpu": "CPU"}
# Whatever else reads values calls one of these, `copy_` or `_local_scalar_dense`: item, print, masks as indices.
_COUNTS = (
    *("nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "repeat_interleave.Tensor"),
    "equal",
)
# Functions of a device's module, and methods of its streams and events, by which code waits for a device.
_WAITING = (("", "synchronize"), ("Stream", "synchronize"), ("Event", "synchronize"))

_NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}

EventOf = Callable[..., TransferEvent | None]
"""The event of a call of an operator, None if it neither copies nor waits."""

_told = threading.local()  # an operator that was told may be made of others that would be told


@cache
def _device(native: torch.device) -> Device:
    return Device.parse(native)


class TorchTransfers(ObservesTransfers):
    """Observe transfers of the devices of this machine (not the CPU), with kernels around torch's own."""

    def observe_transfers(self, record: Record) -> AbstractContextManager[None]:
        """Observe every thread and everything that torch computes."""
        return observed(self._types(), record)

    def can_observe_transfers(self) -> bool:
        """Whether it can those of any type of device that is here."""
        types = self._types()
        return not types or len(unobserved(types)) < len(types)

    def unobserved_transfers(self) -> Sequence[str]:
        """Return all where this torch cannot give its kernels."""
        return unobserved(self._types())

    def _types(self) -> tuple[str, ...]:
        """Return the types of torch's devices on this machine, except the CPU."""
        kinds = dict.fromkeys(device.kind for device in self.backend.devices() if device.kind != "cpu")
        return tuple(self.backend.torch_types.get(kind, kind) for kind in kinds)


def transfer_event(
    source: torch.device, target: torch.device, nbytes: int, operation: str, *, waits: bool, result: Any = None
) -> TransferEvent:
    """Return the event of a copy between two devices; the host waits for none between two accelerators."""
    to_device, from_device = target.type != "cpu", source.type != "cpu"
    between = to_device and from_device
    return TransferEvent(
        kind="device to device" if between else "host to device" if to_device else "device to host",
        source=_device(source),
        target=_device(target),
        operation=operation,
        nbytes=nbytes,
        waits=waits and not between,
        result=result,
    )


def unobserved(types: Sequence[str]) -> list[str]:
    """Return what `observed` cannot see on these types of device."""
    if types and not hasattr(torch.library, "get_kernel"):
        return [f"transfers of {', '.join(types)} are reported since torch 2.9, but this is {torch.__version__}"]
    return [f"transfers of torch's {kind} devices are not reported" for kind in types if kind not in _KEYS]


@contextmanager
def observed(types: Sequence[str], record: Record) -> Iterator[None]:
    """Tell `record` each transfer from and to devices of these types, and each wait for them, inside."""
    with ExitStack() as stack:
        for kind in types if not unobserved(types) else ():
            stack.enter_context(_kernels(_KEYS[kind], record))
            stack.enter_context(_waiting_functions(kind, record))
        yield


@contextmanager
def _kernels(key: str, record: Record) -> Iterator[None]:
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    try:
        observers = {"copy_": _copy, "_local_scalar_dense": _read, **dict.fromkeys(_COUNTS, _wait)}
        for operator, make in observers.items():
            _put_around(library, operator, key, make, record)
        yield
    finally:
        del library  # with it, torch's own kernels are back


def _put_around(library: Any, operator: str, key: str, make: Callable[[str], EventOf], record: Record) -> None:
    """Call what `make` gives before the kernel of an operator; nothing where the device has no such kernel."""
    try:
        kernel = torch.library.get_kernel(f"aten::{operator}", key)
    except RuntimeError:
        return
    event_of = make(operator)

    def call(keys: Any, *args: Any, **kwargs: Any) -> Any:
        if operator == "copy_" and not isinstance(args[1], Tensor):  # torch gives numbers so, and takes none back
            args = (args[0], torch.scalar_tensor(args[1], dtype=_NUMBERS[type(args[1])]), *args[2:])
        event = None if getattr(_told, "inside", False) else event_of(*args, **kwargs)
        if event is None:
            return kernel.call_boxed(keys, *args, **kwargs)
        record(event)
        _told.inside = True
        try:
            return kernel.call_boxed(keys, *args, **kwargs)
        finally:
            _told.inside = False

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # "Overriding a previously registered kernel": so we do
        library.impl(operator, call, key, with_keyset=True, allow_override=True)


def _copy(operator: str) -> EventOf:
    """Report copies between two devices. The host waits unless its memory is page-locked and the copy non-blocking."""

    def event_of(target: Tensor, source: Tensor, non_blocking: bool = False) -> TransferEvent | None:
        if target.device == source.device:
            return None
        host = source if source.device.type == "cpu" else target
        waits = not (non_blocking and host.is_pinned())
        return transfer_event(source.device, target.device, target.nbytes, operator, waits=waits, result=target)

    return event_of


def _read(operator: str) -> EventOf:
    """The host reads a number, which is copied to it."""

    def event_of(source: Tensor) -> TransferEvent:
        return transfer_event(source.device, torch.device("cpu"), source.nbytes, operator, waits=True)

    return event_of


def _wait(operator: str) -> EventOf:
    """Return the event of the host waiting for a number, such as the length of the result, unless it is passed."""

    def event_of(source: Tensor, *_: Any, output_size: int | None = None, **__: Any) -> TransferEvent | None:
        return None if output_size is not None else _wait_event(source.device, operator)

    return event_of


def _wait_event(device: torch.device, operation: str) -> TransferEvent:
    return TransferEvent(
        kind="wait", source=_device(device), target=_device(torch.device("cpu")), operation=operation, waits=True
    )


@contextmanager
def _waiting_functions(device_type: str, record: Record) -> Iterator[None]:
    """Tell calls of `torch.cuda.synchronize`, `torch.accelerator.synchronize`, and those of streams and events."""
    owners = [(torch.accelerator, "synchronize")]
    module = getattr(torch, device_type, None)
    for path, name in _WAITING:
        owner = getattr(module, path, None) if path else module
        if owner is not None and hasattr(owner, name):
            owners.append((owner, name))
    with ExitStack() as stack:
        for owner, name in owners:
            stack.enter_context(_told_calls(owner, name, device_type, record))
        yield


@contextmanager
def _told_calls(owner: Any, name: str, device_type: str, record: Record) -> Iterator[None]:
    own = vars(owner).get(name)
    function = getattr(owner, name)

    def told(*args: Any, **kwargs: Any) -> Any:
        record(_wait_event(_device_among(args, device_type), name))
        return function(*args, **kwargs)

    setattr(owner, name, told)
    try:
        yield
    finally:
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)


def _device_among(args: Sequence[Any], device_type: str) -> torch.device:
    """The device of a call: its argument, that of a stream or event, or the current one."""
    device = getattr(args[0], "device", args[0]) if args else None
    if isinstance(device, (str, torch.device)):
        device = torch.device(device)
        return device if device.index is not None else torch.device(device.type, 0)
    return torch.device(device_type, device if isinstance(device, int) else 0)
