"""Device descriptions that plugins share: the CPU, and NVIDIA GPUs by NVML, which answers without starting CUDA."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any, NamedTuple

from anyaccel.backend import DeviceInfo
from anyaccel.host_memory import host_memory


class NvidiaGpu(NamedTuple):
    """An NVIDIA GPU: product name, UUID as nvidia-smi writes it, and bytes of memory."""

    name: str
    uuid: str
    total_memory: int


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


def visible_nvidia_gpus() -> list[NvidiaGpu]:
    """List the GPUs that CUDA will show to this process, in the order of `CUDA_VISIBLE_DEVICES`; empty without a
    driver.
    """
    with nvml_session() as nvml:
        gpus = [] if nvml is None else list(_gpus(nvml))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return gpus if visible is None else _select(gpus, visible)


def _gpus(nvml: Any) -> Iterator[NvidiaGpu]:
    for index in range(nvml.nvmlDeviceGetCount()):
        with suppress(nvml.NVMLError):  # a GPU that fails is not there for CUDA either
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            name, uuid = nvml.nvmlDeviceGetName(handle), nvml.nvmlDeviceGetUUID(handle)
            yield NvidiaGpu(name, uuid, int(nvml.nvmlDeviceGetMemoryInfo(handle).total))


def _select(gpus: list[NvidiaGpu], visible: str) -> list[NvidiaGpu]:
    """Return the GPUs that `CUDA_VISIBLE_DEVICES` names by number or by the beginning of a UUID, up to the first
    unknown.
    """
    selected: list[NvidiaGpu] = []
    for word in (part.strip() for part in visible.split(",")):
        by_number = gpus[int(word) : int(word) + 1] if word.isdigit() else []
        matches = by_number or [gpu for gpu in gpus if word.startswith("GPU-") and gpu.uuid.startswith(word)]
        if len(matches) != 1 or matches[0] in selected:
            break
        selected.append(matches[0])
    return selected
