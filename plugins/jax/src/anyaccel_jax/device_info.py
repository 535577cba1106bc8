"""Descriptions of devices, and why one is not available."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from anyaccel.adapter.device_description import cpu_info
from anyaccel.backend import DeviceInfo
from anyaccel.device import Device
from anyaccel.machine import ExpectedDevices, Machine
from anyaccel_jax.error_translation import first_line
from anyaccel_jax.nvidia_gpus import visible_nvidia_gpus
from anyaccel_jax.runtime_config import expected_count, has_plugin, is_installed, setting

_VENDORS = {"gpu": {"cuda": "nvidia", "rocm": "amd"}, "tpu": {"cuda": "google", "rocm": "google"}}


def describe(device: Device, jax_device: Callable[[Device], Any]) -> DeviceInfo:
    """Name, vendor, identity and memory of a device.

    Args:
        device: The device.
        jax_device: Function that returns JAX's object for it, and starts JAX; not called for the CPU, nor for an NVIDIA
            GPU.
    """
    if device.kind == "cpu":
        return cpu_info()
    nvidia = visible_nvidia_gpus() if device.kind == "gpu" and has_plugin("cuda") else []
    if device.index < len(nvidia):
        gpu = nvidia[device.index]
        return DeviceInfo(gpu.name, "nvidia", gpu.uuid, gpu.uuid, gpu.total_memory)
    native = jax_device(device)
    total = int((native.memory_stats() or {}).get("bytes_limit", 0))
    vendor = {"gpu": "amd", "tpu": "google"}.get(device.kind, "")
    return DeviceInfo(str(native.device_kind), vendor, "", str(native), total)


class JaxExpectedDevices(ExpectedDevices):
    """The devices that JAX will have once it has started."""

    def expected_of_kind(self, kind: str, machine: Machine) -> list[DeviceInfo] | None:
        """Return the expected devices of a kind, None for those that a PJRT plugin adds."""
        if kind not in ("cpu", *_VENDORS) or not is_installed():
            return None
        count = expected_count(kind)
        if kind == "cpu":
            return [cpu_info()] * count
        vendor = _VENDORS[kind]["cuda" if has_plugin("cuda") else "rocm"]
        visible = [
            expected.info() for expected in machine.visible if expected.kind == kind and expected.vendor == vendor
        ][:count]
        return visible + [DeviceInfo(str(Device(kind, index)), vendor) for index in range(len(visible), count)]


def unavailable_reason(device: Device, count: int) -> str:
    """Return why JAX, which has `count` devices of this kind, does not have this one; `""` if it has. Starts
    nothing.
    """
    if device.index < count:
        return ""
    if count == 0 and (failure := _import_failure()):
        return failure
    if device.kind == "cpu" and count:
        more = f'jax.config.update("jax_num_cpu_devices", {device.index + 1})'
        return f"JAX has {count} CPU device{'s' if count != 1 else ''}; call {more} before JAX is first used"
    if count:
        return f"JAX sees {count} of this kind"
    if setting("jax_platforms"):
        return f"JAX is restricted to the platforms {setting('jax_platforms')!r}"
    if device.kind == "gpu" and not has_plugin("cuda") and not has_plugin("rocm"):
        return "this JAX has no plugin for GPUs; install one, for example with pip install 'jax[cuda13]'"
    return "JAX finds no driver, or the driver finds no device"


def _import_failure() -> str:
    """Why JAX cannot be imported, to the extent that that shows without importing it again; `""` otherwise."""
    if "jax" not in sys.modules and is_installed():
        return ""
    try:
        import jax  # noqa: F401
    except Exception as error:  # a broken JAX must not break the listing of devices
        return f"JAX cannot be imported: {first_line(error)}"
    return ""
