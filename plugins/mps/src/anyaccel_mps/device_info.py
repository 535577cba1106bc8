"""Description of the Apple GPU, and why it is unavailable."""

from __future__ import annotations

import platform

from anyaccel.backend import DeviceInfo
from anyaccel.device import Device
from anyaccel_torch.error_translation import first_line


def apple_gpu_info() -> DeviceInfo:
    """Name, vendor and memory of the GPU; initialises Metal. `total_memory` is as of `total_memory()`."""
    import torch

    name = getattr(torch.backends.mps, "get_name", None)  # newer than the oldest supported torch
    return DeviceInfo("Apple GPU" if name is None else str(name()), "apple", total_memory=total_memory())


def total_memory() -> int:
    """Bytes that Metal recommends a process to use at most; a part of the Mac's memory."""
    import torch

    return int(torch.mps.recommended_max_memory())


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
