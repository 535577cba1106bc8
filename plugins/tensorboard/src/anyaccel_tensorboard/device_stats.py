"""Speed and memory of a run, and NVIDIA statistics of the devices of its plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from anyaccel.adapter.device_description import start_nvml
from anyaccel.device import Device
from anyaccel.registry import registry


def speed_and_memory(stats: Any) -> dict[str, float]:
    """Of `run.stats`: `speed/steps_per_second`, and `memory/DEVICE/FRAMEWORK/used_bytes`; unknown figures are left out.

    Beside these `samples_per_second`, `peak_bytes` and `total_bytes`; after `run.measure_step()` also
    `model_flops_utilization`, and `memory/NODE/activations_bytes`.
    """
    sizes = {
        f"memory/{each.device}/{each.framework}/{name}_bytes": getattr(each, name)
        for each in stats.devices
        for name in ("used", "peak", "total")
    }
    names = ("steps_per_second", "samples_per_second", "model_flops_utilization")
    values = {**{f"speed/{name}": getattr(stats, name) for name in names}, **sizes}
    for node in stats.nodes:
        values[f"memory/{node.node}/activations_bytes"] = node.activations
    return {tag: value for tag, value in values.items() if value is not None}


def nvidia_stats(plan: Any) -> NvidiaStats:
    """Statistics of the NVIDIA GPUs of a plan; empty where it has none, or NVML is not available."""
    identities = _identities(plan)
    nvml = start_nvml() if identities else None
    return NvidiaStats() if nvml is None else NvidiaStats(nvml, identities)


def _identities(plan: Any) -> dict[Device, str]:
    """The identities of a plan's NVIDIA GPUs; device numbers differ between frameworks and NVML."""
    identities: dict[Device, str] = {}
    for node in plan.assignments:
        info = registry().find(node.framework, node.device.kind).device_info(node.device)
        if info.vendor == "nvidia" and info.identity:
            identities[node.device] = info.identity
    return identities


class NvidiaStats:
    """Reads statistics of some GPUs by NVML, by default of none.

    Args:
        nvml: the module `pynvml`, started; `close` shuts it down.
        identities: UUID (`GPU-...`, `MIG-...`) or PCI address by device.
    """

    def __init__(self, nvml: Any = None, identities: Mapping[Device, str] | None = None) -> None:
        self._nvml = nvml
        self._readers: dict[str, Callable[[], float]] = {}
        for device, identity in (identities or {}).items():
            handle = self._handle(identity)
            if handle is not None:
                readers = {f"nvml/{device}/{name}": partial(read, handle) for name, read in self._statistics()}
                self._readers.update(readers)

    def read(self) -> dict[str, float]:
        """`nvml/DEVICE/utilization_percent`, `.../memory_used_bytes`, `.../temperature_celsius`, `.../power_watts`.

        Statistics that a GPU does not support are left out.
        """
        values = {}
        for tag, read in self._readers.items():
            with suppress(self._nvml.NVMLError):
                values[tag] = float(read())
        return values

    def close(self) -> None:
        """Shut NVML down; it counts its users."""
        nvml, self._nvml, self._readers = self._nvml, None, {}
        if nvml is not None:
            with suppress(nvml.NVMLError):  # another user has shut it down already
                nvml.nvmlShutdown()

    def _handle(self, identity: str) -> Any:
        nvml = self._nvml
        is_uuid = identity.startswith(("GPU-", "MIG-"))
        find = nvml.nvmlDeviceGetHandleByUUID if is_uuid else nvml.nvmlDeviceGetHandleByPciBusId
        try:
            return find(identity)
        except nvml.NVMLError:
            return None

    def _statistics(self) -> list[tuple[str, Callable[[Any], float]]]:
        nvml = self._nvml
        return [
            ("utilization_percent", lambda handle: nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
            ("memory_used_bytes", lambda handle: nvml.nvmlDeviceGetMemoryInfo(handle).used),
            ("temperature_celsius", lambda handle: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            ("power_watts", lambda handle: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),  # from milliwatts
        ]
