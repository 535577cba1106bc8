"""Device descriptions that plugins share: the CPU, and NVML, which answers about NVIDIA GPUs without starting CUDA."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

from anyaccel.backend import DeviceInfo
from anyaccel.host_memory import host_memory


def cpu_info() -> DeviceInfo:
    """Describe the CPU of this machine; its memory is the host's."""
    name = platform.processor() or platform.machine() or "cpu"
    return DeviceInfo(name, memory_space="host", total_memory=host_memory().total)


def start_nvml() -> Any:
    """Start NVML and return the module `pynvml` of nvidia-ml-py; None if it is not installed or finds no driver.

    The caller must call its `nvmlShutdown` when done; NVML counts its users.
    """
    try:
        nvml: Any = import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    return nvml


@contextmanager
def nvml_session() -> Iterator[Any]:
    """Start NVML as `start_nvml` does, and stop it at the end of the context."""
    nvml = start_nvml()
    try:
        yield nvml
    finally:
        if nvml is not None:
            with suppress(nvml.NVMLError):  # somebody has stopped it already
                nvml.nvmlShutdown()


def nvidia_utilization(identity: str) -> float | None:
    """Return the current utilization of a GPU, from 0 to 1; None without NVML or a figure.

    Args:
        identity: UUID (`GPU-...`, `MIG-...`) or PCI address.
    """
    with nvml_session() as nvml:
        if nvml is None:
            return None
        is_uuid = identity.startswith(("GPU-", "MIG-"))
        find = nvml.nvmlDeviceGetHandleByUUID if is_uuid else nvml.nvmlDeviceGetHandleByPciBusId
        try:
            return float(nvml.nvmlDeviceGetUtilizationRates(find(identity)).gpu) / 100
        except nvml.NVMLError:
            return None
