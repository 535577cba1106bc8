"""Registration of the simulated devices with torch, once for the process.

Written for torch 2.13.0, whose private names it checks first. The rest of the plugin needs only torch's public API.
"""

# ruff: noqa: SLF001  (private names of torch)

from __future__ import annotations

import threading
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from anyaccel.errors import CapabilityError
from anyaccel_torch.simulated.sim_device import KIND

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
    _check_torch()
    with _lock:
        if not _registered:
            _registered.append(_register())


def _check_torch() -> None:
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
            f"torch supports one additional kind of device, and {name!r} is registered already",
            hint="simulate devices in a process that does not import the package that registers it",
        )


def _register() -> torch.library.Library:
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    from anyaccel_torch.simulated import autograd_hooks, recurrent, rng
    from anyaccel_torch.simulated.device_module import SimModule
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
