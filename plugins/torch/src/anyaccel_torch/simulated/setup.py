"""Telling torch of the simulated devices: their name, their module `torch.sim`, and who makes tensors there."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from anyaccel_torch.simulated import autograd_hooks, recurrent, rng
from anyaccel_torch.simulated.memory_ledger import there
from anyaccel_torch.simulated.operators import copy_from, wrap
from anyaccel_torch.simulated.sim_device import KIND, SimulatedDevice, running

_lock = threading.Lock()
_done: list[torch.library.Library] = []


def set_up() -> None:
    """Once for the process; a second call changes nothing."""
    with _lock:
        if _done:
            return
        _setup_privateuseone_for_python_backend(rename=KIND, backend_module=SimModule())
        library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
        library.impl("empty.memory_format", _empty, "PrivateUse1")
        library.impl("empty_strided", _empty_strided, "PrivateUse1")
        library.impl("_copy_from", copy_from, "PrivateUse1")  # where torch has switched off what Python defines
        library.impl("_thnn_fused_lstm_cell", recurrent.lstm_cell, "AutogradPrivateUse1")
        library.impl("_thnn_fused_gru_cell", recurrent.gru_cell, "AutogradPrivateUse1")
        autograd_hooks.install()
        torch.Generator = rng.Generator  # type: ignore[misc]
        # Otherwise Module.to would make new parameters, and optimizers and sharing modules would keep the old ones.
        torch.__future__.set_swap_module_params_on_conversion(True)
        _done.append(library)


def _empty(size: Any, *, dtype: Any = None, device: Any = None, memory_format: Any = None, **_: Any) -> Tensor:
    made = torch.empty(size, dtype=dtype, device="cpu", memory_format=memory_format or torch.contiguous_format)
    return wrap(made, there(device))


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    return wrap(torch.empty_strided(size, stride, dtype=dtype, device="cpu"), there(device))


class SimModule:
    """`torch.sim`: what torch, and code that asks `torch.get_device_module`, looks for in the module of a device."""

    def is_initialized(self) -> bool:
        """Always."""
        return True

    def is_available(self) -> bool:
        """Always."""
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def device_count(self) -> int:
        """How many were started."""
        return len(running())

    def current_device(self) -> int:
        """Always 0: torch does not ask Python for it."""
        return 0

    def set_device(self, device: Any) -> None:
        """Refused for others than `sim:0`.

        Raises:
            NotImplementedError: that is another one.
        """
        if _of(device).device.index:
            raise NotImplementedError("the current simulated device is always sim:0: name the device that you mean")

    def synchronize(self, device: Any = None) -> None:
        """Counts a wait."""
        _of(device).waited()

    def manual_seed_all(self, seed: int) -> None:
        """Start the generators of all devices from one seed."""
        rng.seed_all(seed)

    def manual_seed(self, seed: int) -> None:
        """Start the generator of sim:0."""
        rng.default(0).manual_seed(seed)

    def get_rng_state(self, device: Any = None) -> Tensor:
        """State of a device's generator, on the host."""
        return rng.default(_of(device).device.index).get_state()

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:
        """Go on from a state."""
        rng.default(_of(device).device.index).set_state(state)

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        """Bytes that are free, and in all; both 0 without a limit."""
        one = _of(device)
        return (0, 0) if one.capacity is None else (max(one.capacity - one.used, 0), one.capacity)

    def memory_allocated(self, device: Any = None) -> int:
        """Bytes of tensors that are there now."""
        return _of(device).used

    def max_memory_allocated(self, device: Any = None) -> int:
        """The most bytes that were there at once."""
        return _of(device).peak

    def empty_cache(self) -> None:
        """Nothing is cached."""

    def get_device_properties(self, device: Any = None) -> SimpleNamespace:
        """Name, identity and memory."""
        one = _of(device)
        name = f"simulated torch device {one.device.index}"
        return SimpleNamespace(name=name, uuid=f"torch-{one}", total_memory=one.capacity or 0)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """None: mixed precision is not simulated."""
        return []


def _of(device: Any) -> SimulatedDevice:
    where = device if isinstance(device, int) else there(device or KIND).index
    return running()[where]
