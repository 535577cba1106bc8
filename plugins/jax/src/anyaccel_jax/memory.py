"""Memory of devices, by JAX's own figures."""

from __future__ import annotations

from anyaccel.backend import Memory, MemoryInfo
from anyaccel.device import Device
from anyaccel.host_memory import host_memory
from anyaccel_jax import runtime_config


class JaxMemory(Memory):
    """Memory of an accelerator as this process's allocator reports it; for the CPU only its size is known."""

    def memory(self, device: Device) -> MemoryInfo:
        """Return the memory; free is what JAX's allocator can still provide, which is less than the device has free."""
        stats = self.backend.jax_device(device).memory_stats() or {}
        if not stats:
            total, free = host_memory()
            return MemoryInfo(total, free, used=0, peak=0) if device.kind == "cpu" else MemoryInfo(0, 0, 0, 0)
        used, peak = (int(stats.get(name, 0)) for name in ("bytes_in_use", "peak_bytes_in_use"))
        free = max(int(stats.get("bytes_limit", 0)) - used, 0)
        return MemoryInfo(self.backend.device_info(device).total_memory, free, used, max(peak, used))

    def share(self, device: Device, fraction: float) -> str:
        """On a GPU, JAX takes memory as it needs it, unless the user configured something else."""
        return runtime_config.disable_preallocation() if device.kind == "gpu" else ""

    def release_memory(self, device: Device) -> None:
        """JAX has no way to return what its allocator holds."""
