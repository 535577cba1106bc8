"""How full a device is, from JAX's own figures."""

from __future__ import annotations

from anyaccel.backend import Memory, MemoryInfo
from anyaccel.device import Device
from anyaccel.host_memory import host_memory
from anyaccel_jax import runtime_config
from anyaccel_jax.placement import JaxPlacement


class JaxMemory(JaxPlacement, Memory):
    """Figures of an accelerator are those of this process's allocator; the CPU has only its size."""

    def memory(self, device: Device) -> MemoryInfo:
        """As `Memory.memory`; free is what JAX's allocator may still give, which is less than the whole device."""
        stats = self.jax_device(device).memory_stats() or {}
        if not stats:
            total, free = host_memory()
            return MemoryInfo(total, free, used=0, peak=0) if device.kind == "cpu" else MemoryInfo(0, 0, 0, 0)
        used, peak = (int(stats.get(name, 0)) for name in ("bytes_in_use", "peak_bytes_in_use"))
        free = max(int(stats.get("bytes_limit", 0)) - used, 0)
        return MemoryInfo(self.device_info(device).total_memory, free, used, max(peak, used))

    def share(self, device: Device, fraction: float) -> str:
        """As `Memory.share`: on a GPU, JAX is to take memory as it needs it, unless the user said something else."""
        return runtime_config.take_as_needed() if device.kind == "gpu" else ""

    def release_memory(self, device: Device) -> None:
        """As `Memory.release_memory`; JAX keeps what its allocator has taken, and has no way to give it back."""
