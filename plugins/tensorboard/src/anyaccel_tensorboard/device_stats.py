"""How full the devices of a plan are, as the frameworks that compute on them say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any

from anyaccel.backend import Memory
from anyaccel.device import Device
from anyaccel.registry import registry


def memory(plan: Any) -> dict[str, float]:
    """Bytes used, at the peak and in all, as `memory/DEVICE/FRAMEWORK/used_bytes`; what is not known is left out."""
    found: dict[str, float] = {}
    for framework, device in dict.fromkeys((one.framework, one.device) for one in plan.assignments):
        backend = registry().find(framework, device.kind)
        if isinstance(backend, Memory):
            now = backend.memory(device)
            figures = {"used": now.used, "peak": now.peak, "total": now.total}
            found.update({f"memory/{device}/{framework}/{name}_bytes": size for name, size in figures.items() if size})
    return found


def gauges(plan: Any) -> Gauges:
    """Gauges for the NVIDIA GPUs of a plan; without any where it has none, or NVML cannot be asked."""
    wanted = _wanted(plan)
    try:
        library: Any = import_module("pynvml") if wanted else None
    except ImportError:
        library = None
    if library is None:
        return Gauges()
    try:
        library.nvmlInit()
    except library.NVMLError:
        return Gauges()
    return Gauges(library, wanted)


def _wanted(plan: Any) -> dict[Device, str]:
    """The NVIDIA GPUs of a plan with their identities: the numbers of devices are the frameworks' own."""
    found: dict[Device, str] = {}
    for one in plan.assignments:
        info = registry().find(one.framework, one.device.kind).device_info(one.device)
        if info.vendor == "nvidia" and info.identity:
            found[one.device] = info.identity
    return found


class Gauges:
    """Reads some GPUs, by default none. NVML has been started for it, and is stopped by `close`.

    Args:
        library: the module `pynvml`, None where it is not needed.
        wanted: UUID (`GPU-...`, `MIG-...`) or PCI address by device.
    """

    def __init__(self, library: Any = None, wanted: Mapping[Device, str] | None = None) -> None:
        self._library = library
        self._calls: dict[str, Callable[[], float]] = {}
        for device, identity in (wanted or {}).items():
            handle = self._handle(identity)
            if handle is not None:
                self._calls.update({f"nvml/{device}/{name}": partial(read, handle) for name, read in self._figures()})

    def read(self) -> dict[str, float]:
        """`nvml/DEVICE/utilization_percent`, `.../memory_used_bytes`, `.../temperature_celsius`, `.../power_watts`.

        What a GPU does not tell is left out.
        """
        found = {}
        for tag, call in self._calls.items():
            try:
                found[tag] = float(call())
            except self._library.NVMLError:
                continue
        return found

    def close(self) -> None:
        """Stop NVML, if nobody else uses it: it counts."""
        library, self._library, self._calls = self._library, None, {}
        if library is not None:
            with suppress(library.NVMLError):  # somebody has stopped it already; that is no fault of the run
                library.nvmlShutdown()

    def _handle(self, identity: str) -> Any:
        library = self._library
        by_uuid = identity.startswith(("GPU-", "MIG-"))
        find = library.nvmlDeviceGetHandleByUUID if by_uuid else library.nvmlDeviceGetHandleByPciBusId
        try:
            return find(identity)
        except library.NVMLError:
            return None

    def _figures(self) -> list[tuple[str, Callable[[Any], float]]]:
        nvml = self._library
        return [
            ("utilization_percent", lambda handle: nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
            ("memory_used_bytes", lambda handle: nvml.nvmlDeviceGetMemoryInfo(handle).used),
            ("temperature_celsius", lambda handle: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            ("power_watts", lambda handle: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),  # it tells milliwatts
        ]
