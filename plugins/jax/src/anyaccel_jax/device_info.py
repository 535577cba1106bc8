"""What a device is, and why one is not there."""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

from anyaccel.backend import DeviceInfo
from anyaccel.device import Device
from anyaccel.host_memory import host_memory
from anyaccel_jax import nvml
from anyaccel_jax.error_translation import first_line
from anyaccel_jax.runtime_config import has_plugin, setting


def describe(device: Device, own: Callable[[Device], Any]) -> DeviceInfo:
    """Name, vendor, identity and memory of a device.

    Args:
        device: which.
        own: gives JAX's object for it, and starts JAX; not asked for the CPU, nor for a GPU of NVIDIA.
    """
    if device.kind == "cpu":
        name = platform.processor() or platform.machine() or "cpu"
        return DeviceInfo(name, memory_space="host", total_memory=host_memory().total)
    gpu = _of_nvidia(device) if device.kind == "gpu" else None
    if gpu is not None:
        return DeviceInfo(gpu.name, "nvidia", gpu.uuid, gpu.uuid, gpu.total)
    found = own(device)
    total = int((found.memory_stats() or {}).get("bytes_limit", 0))
    vendor = {"gpu": "amd", "tpu": "google"}.get(device.kind, "")
    return DeviceInfo(str(found.device_kind), vendor, "", str(found), total)


def why_not(device: Device, count: int) -> str:
    """Why JAX, which has `count` devices of this kind, has not this one; starts nothing."""
    if device.index < count:
        return ""
    try:
        import jax  # noqa: F401
    except Exception as error:  # a broken JAX must not break the listing of devices
        return f"JAX cannot be imported: {first_line(error)}"
    if device.kind == "cpu" and count:
        more = f'jax.config.update("jax_num_cpu_devices", {device.index + 1})'
        return f"JAX makes {count} of the CPU; {more} before it is first used makes more"
    if count:
        return f"JAX sees {count} of this kind"
    if setting("jax_platforms"):
        return f"JAX is set to the platforms {setting('jax_platforms')!r}"
    if device.kind == "gpu" and not has_plugin("cuda") and not has_plugin("rocm"):
        return "this JAX has no plugin for GPUs, such as pip install 'jax[cuda13]' brings"
    return "JAX finds no driver, or the driver finds no device"


def _of_nvidia(device: Device) -> nvml.Gpu | None:
    found = nvml.visible() if has_plugin("cuda") else []
    return found[device.index] if device.index < len(found) else None
