"""NVIDIA GPUs that JAX will have, by NVML, which answers without starting CUDA."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from anyaccel.adapter.device_description import nvml_session


class NvidiaGpu(NamedTuple):
    """An NVIDIA GPU: product name, UUID as nvidia-smi writes it, and bytes of memory."""

    name: str
    uuid: str
    total_memory: int


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
