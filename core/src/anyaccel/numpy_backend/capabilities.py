"""Capabilities of the NumPy backend that are small: memory, precision, transfers."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, ClassVar

from anyaccel.adapter.transfer_observer import ObservesTransfers, Record
from anyaccel.backend import Memory, MemoryInfo
from anyaccel.device import Device
from anyaccel.host_memory import host_memory
from anyaccel.numpy_backend.array_creation import handle
from anyaccel.numpy_backend.sim_device import observers
from anyaccel.precision import PRECISIONS, ComputesPrecision

OWN_KINDS = ("cpu", "sim")  # a derived backend may serve other kinds, by a `from_host` of its own


class NumpyMemory(Memory):
    """Memory of simulated devices, and of the host."""

    def memory(self, device: Device) -> MemoryInfo:
        """Of a simulated device its counters (total 0 for no limit); of the CPU what the system reports."""
        if device.kind not in OWN_KINDS:
            return MemoryInfo(0, 0, 0, 0)
        on = handle(device)
        if on is None:
            total, free = host_memory()
            return MemoryInfo(total, free, total - free, 0)
        total = on.capacity or 0
        return MemoryInfo(total, max(total - on.used, 0), on.used, on.peak)

    def release_memory(self, device: Device) -> None:
        """Does nothing: no memory is cached."""


class NumpyPrecision(ComputesPrecision):
    """All precisions; 16 bits are rounded values of float32."""

    precisions: ClassVar[tuple[str, ...]] = PRECISIONS

    def precision_reason(self, model: Any, precision: str, device: Device) -> str:
        """A simulated device may lack float64, as real ones do."""
        on = handle(device) if device.kind == "sim" else None  # a plugin may derive a chip of another kind
        lacks = precision == "float64" and on is not None and not on.float64
        return f"{device} has no float64: it was simulated with float64=False" if lacks else ""


class NumpyTransfers(ObservesTransfers):
    """Transfers and synchronizations of simulated devices; the CPU has none."""

    def observe_transfers(self, record: Record) -> AbstractContextManager[None]:
        """All that they count."""
        return observers.added(record)
