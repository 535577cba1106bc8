"""Description of the Apple GPU, and why it is unavailable."""

from __future__ import annotations

import platform
from importlib.util import find_spec

from anyaccel.backend import DeviceInfo
from anyaccel.device import Device
from anyaccel.machine import Machine, is_older
from anyaccel_torch.error_translation import first_line

_OLDEST_SYSTEM = "14.0"  # of macOS, that every supported torch finds MPS on


def apple_gpu_info() -> DeviceInfo:
    """Name, vendor and memory of the GPU; initialises Metal. `total_memory` is as of `total_memory()`."""
    import torch

    name = getattr(torch.backends.mps, "get_name", None)  # newer than the oldest supported torch
    return DeviceInfo("Apple GPU" if name is None else str(name()), "apple", total_memory=total_memory())


def total_memory() -> int:
    """Bytes that Metal recommends a process to use at most; a part of the Mac's memory."""
    import torch

    return int(torch.mps.recommended_max_memory())


def expected_gpus(machine: Machine) -> list[DeviceInfo] | None:
    """The Apple GPU, as far as the system tells; None where torch must be asked."""
    if machine.system != "darwin":
        return []
    release = platform.mac_ver()[0]
    if not find_spec("torch") or not release or is_older(release, _OLDEST_SYSTEM):
        return None
    return [device.info() for device in machine.visible if device.kind == "mps"]


def unavailable_reason(device: Device, count: int) -> str:
    """Why a device is not among the `count` Apple GPUs that torch sees; initialises nothing."""
    if count:
        return "" if device.index < count else "torch has one Apple GPU, mps:0"
    if platform.system() != "Darwin":
        return f"MPS is a part of macOS, and this is {platform.system() or 'another system'}"
    try:
        import torch
    except Exception as error:  # listing devices must work with a broken torch
        return f"torch cannot be imported: {first_line(error)}"
    if not torch.backends.mps.is_built():
        return f"this torch, {torch.__version__}, is built without MPS"
    system = f"macOS {platform.mac_ver()[0]}".rstrip()
    return f"torch {torch.__version__} finds no MPS: {system} is too old for it, or the Mac has no GPU that it can use"
