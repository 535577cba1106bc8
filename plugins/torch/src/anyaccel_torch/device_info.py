"""Description of a device, and the reason why one is unavailable."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from anyaccel.backend import DeviceInfo
from anyaccel.device import Device
from anyaccel_torch.error_translation import first_line
from anyaccel_torch.installed_build import build_facts

if TYPE_CHECKING:
    import torch

# Kinds that torch must be built for: the variables of torch.version that are set then, and their names.
_BUILDS = {"gpu": (("cuda", "hip"), "CUDA and ROCm"), "xpu": (("xpu",), "XPU")}


def describe(device: torch.device) -> DeviceInfo:
    """Name, vendor, identity and memory of a device; initializes an accelerator."""
    import torch

    if device.type == "cpu":
        from anyaccel.adapter.device_description import cpu_info

        return cpu_info()
    properties = torch.get_device_module(device).get_device_properties(device.index)
    vendor = {"cuda": "amd" if torch.version.hip else "nvidia", "xpu": "intel"}.get(device.type, "")
    uuid = str(getattr(properties, "uuid", "")).lower()
    identity = f"GPU-{uuid}" if uuid and vendor == "nvidia" else uuid  # as nvidia-smi and NVML write it
    return DeviceInfo(str(properties.name), vendor, identity, identity, int(properties.total_memory))


def unavailable_reason(device: Device, count: int) -> str:
    """Why a device is not among the `count` devices of its kind that torch sees; initializes nothing."""
    if count:
        return "" if device.index < count else f"torch sees {count} of this kind"
    builds, names = _BUILDS.get(device.kind, ((), ""))
    facts = vars(sys.modules["torch"].version) if "torch" in sys.modules else build_facts()
    if names and "__version__" in facts and not any(facts.get(build) for build in builds):
        return f"this torch, {facts['__version__']}, is built without {names}"
    try:
        import torch  # noqa: F401
    except Exception as error:  # a broken torch must not break the listing of devices
        return f"torch cannot be imported: {first_line(error)}"
    return "torch finds no driver, or the driver finds no device"
