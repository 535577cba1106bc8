"""What the Apple GPU is, and why it is not there."""

from __future__ import annotations

import platform

from anyaccel.backend import DeviceInfo
from anyaccel.device import Device
from anyaccel_torch.error_translation import first_line


def describe() -> DeviceInfo:
    """Name, vendor and memory of the GPU; asks Metal, which initialises it.

    `total_memory` is what Metal recommends as the most that a process takes, a part of the memory of the Mac.
    """
    import torch

    name = getattr(torch.backends.mps, "get_name", None)  # younger than the oldest torch that is served
    return DeviceInfo("Apple GPU" if name is None else str(name()), "apple", total_memory=total_memory())


def total_memory() -> int:
    """Bytes that Metal recommends as the most that a process takes."""
    import torch

    return int(torch.mps.recommended_max_memory())


def why_not(device: Device, count: int) -> str:
    """Why torch, which sees `count` Apple GPUs, has not this one; initialises nothing."""
    if count:
        return "" if device.index < count else "torch has one Apple GPU, mps:0"
    if platform.system() != "Darwin":
        return f"MPS is a part of macOS, and this is {platform.system() or 'another system'}"
    try:
        import torch
    except Exception as error:  # a broken torch must not break the listing of devices
        return f"torch cannot be imported: {first_line(error)}"
    if not torch.backends.mps.is_built():
        return f"this torch, {torch.__version__}, is built without MPS"
    system = f"macOS {platform.mac_ver()[0]}".rstrip()
    return f"torch {torch.__version__} finds no MPS: {system} is too old for it, or the Mac has no GPU that it can use"
