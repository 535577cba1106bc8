"""Registration of the simulated devices with torch, once for the process.

Written for torch 2.13.0, whose private names it checks first. The rest of the plugin needs only torch's public API.
"""

# ruff: noqa: SLF001  (private names of torch)

from __future__ import annotations

import threading
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from anyaccel.errors import CapabilityError
from anyaccel_torch.simulated import rng, streams
from anyaccel_torch.simulated.memory_ledger import parse_device
from anyaccel_torch.simulated.sim_device import KIND, SimulatedDevice, running

_FREE = "privateuseone"
_PRIVATE_NAMES = (
    ("torch.utils.backend_registration", "_setup_privateuseone_for_python_backend"),
    ("torch.autograd", "_engine_run_backward"),
    ("torch.autograd.function", "BackwardCFunction"),
    ("torch._C", "_current_graph_task_id"),
    ("torch._C", "_dispatch_has_kernel_for_dispatch_key"),
    ("torch._C", "_disabled_torch_function_impl"),
    ("torch._C", "_get_privateuse1_backend_name"),
    ("torch._C", "Generator"),
    ("torch._utils", "_rebuild_device_tensor_from_cpu_tensor"),
    ("torch.__future__", "set_swap_module_params_on_conversion"),
)

_lock = threading.Lock()
_registered: list[torch.library.Library] = []


def register() -> None:
    """Register the simulated devices with torch; a second call changes nothing.

    Raises:
        CapabilityError: this torch takes no device from Python code, or has been given another one.
    """
    missing = [f"{module}.{name}" for module, name in _PRIVATE_NAMES if not hasattr(import_module(module), name)]
    if missing:
        raise CapabilityError(
            f"torch {torch.__version__} does not support simulated devices: it has no {', '.join(missing)}",
            cause="torch 2.13.0, whose private names they use",
            hint="install that version for these tests",
        )
    name = torch._C._get_privateuse1_backend_name()
    if name not in (_FREE, KIND):
        raise CapabilityError(
            f"torch supports only one additional kind of device, but {name!r} is already registered",
            hint="simulate devices in a process that does not import the package that registers it",
        )
    with _lock:
        if not _registered:
            _registered.append(_register())


def _register() -> torch.library.Library:
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    from anyaccel_torch.simulated import autograd_hooks, recurrent, rng
    from anyaccel_torch.simulated.sim_tensor import copy_from

    _setup_privateuseone_for_python_backend(rename=KIND, backend_module=SimModule())
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    library.impl("empty.memory_format", _empty, "PrivateUse1")
    library.impl("empty_strided", _empty_strided, "PrivateUse1")
    library.impl("_copy_from", copy_from, "PrivateUse1")  # for when torch has switched off dispatch to Python
    library.impl("_thnn_fused_lstm_cell", recurrent.lstm_cell, "AutogradPrivateUse1")
    library.impl("_thnn_fused_gru_cell", recurrent.gru_cell, "AutogradPrivateUse1")
    autograd_hooks.install()
    torch.Generator = rng.Generator  # type: ignore[misc]
    # Otherwise Module.to would create new parameters, and optimizers and sharing modules would keep the old ones.
    torch.__future__.set_swap_module_params_on_conversion(True)
    result: torch.library.Library = library
    return result


def _empty(size: Any, *, dtype: Any = None, device: Any = None, memory_format: Any = None, **_: Any) -> Tensor:
    from anyaccel_torch.simulated.memory_ledger import parse_device
    from anyaccel_torch.simulated.sim_tensor import wrap

    held = torch.empty(size, dtype=dtype, device="cpu", memory_format=memory_format or torch.contiguous_format)
    return wrap(held, parse_device(device))


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    from anyaccel_torch.simulated.memory_ledger import parse_device
    from anyaccel_torch.simulated.sim_tensor import wrap

    return wrap(torch.empty_strided(size, stride, dtype=dtype, device="cpu"), parse_device(device))


# -- `torch.sim`: what torch, and code that calls `torch.get_device_module`, expects of the module of a device ---------


class SimModule:
    """The functions of `torch.cuda` that have a meaning for simulated devices."""

    Stream, Event = streams.SimStream, streams.SimEvent
    current_stream = staticmethod(streams.current)
    stream = staticmethod(streams.stream)
    pinned_empty = staticmethod(streams.pinned_empty)

    def is_initialized(self) -> bool:
        """Return True."""
        return True

    def is_available(self) -> bool:
        """Return True."""
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def device_count(self) -> int:
        """Return the number of started devices."""
        return len(running())

    def current_device(self) -> int:
        """Return 0: torch does not ask Python for it."""
        return 0

    def set_device(self, device: Any) -> None:
        """Do nothing for `sim:0`.

        Raises:
            NotImplementedError: another device.
        """
        if _handle(device).device.index:
            raise NotImplementedError("the current simulated device is always sim:0: pass the device explicitly")

    def synchronize(self, device: Any = None) -> None:
        """Count a wait."""
        handle = _handle(device)
        handle.count_sync()
        if handle.timing is not None:
            handle.timing.wait(handle.timing.elapsed())

    def manual_seed_all(self, seed: int) -> None:
        """Seed the generators of all devices."""
        rng.seed_all(seed)

    def manual_seed(self, seed: int) -> None:
        """Seed the generator of sim:0."""
        rng.default_generator(0).manual_seed(seed)

    def get_rng_state(self, device: Any = None) -> Tensor:
        """State of a device's generator, on the host."""
        return rng.default_generator(_handle(device).device.index).get_state()

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:
        """Set the state of a device's generator."""
        rng.default_generator(_handle(device).device.index).set_state(state)

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        """Free and total bytes; both 0 without a limit."""
        handle = _handle(device)
        return (0, 0) if handle.capacity is None else (max(handle.capacity - handle.used, 0), handle.capacity)

    def memory_allocated(self, device: Any = None) -> int:
        """Return bytes of the tensors that exist now."""
        return _handle(device).used

    def max_memory_allocated(self, device: Any = None) -> int:
        """Return the most bytes that existed at once."""
        return _handle(device).peak

    def empty_cache(self) -> None:
        """Count the call; nothing is cached."""
        for handle in running():
            handle.flushes += 1

    def get_device_properties(self, device: Any = None) -> SimpleNamespace:
        """Name, identity and memory."""
        handle = _handle(device)
        name = f"simulated torch device {handle.device.index}"
        return SimpleNamespace(name=name, uuid=f"torch-{handle}", total_memory=handle.capacity or 0)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """Return nothing: mixed precision is not simulated."""
        return []


def _handle(device: Any) -> SimulatedDevice:
    return running()[device if isinstance(device, int) else parse_device(device or KIND).index]
