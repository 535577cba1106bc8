"""Memory figures of a device, from torch's allocator."""

from __future__ import annotations

from anyaccel.backend import Memory, MemoryInfo
from anyaccel.device import Device
from anyaccel.host_memory import host_memory


class TorchMemory(Memory):
    """For an accelerator, the figures of this process's caching allocator; for the CPU, its total and free memory."""

    def memory(self, device: Device) -> MemoryInfo:
        """Return the memory; memory that torch only caches counts as not free."""
        target = None if device.kind == "cpu" else self.backend.native_device(device)
        if target is None or target.type == "cpu":  # a derived backend may compute a kind of its own on the CPU
            total, free = host_memory()
            return MemoryInfo(total, free, used=0, peak=0)
        import torch

        module = torch.get_device_module(target)
        if not hasattr(module, "mem_get_info"):
            return MemoryInfo(0, 0, 0, 0)
        free, total = module.mem_get_info(target)
        return MemoryInfo(total, free, module.memory_allocated(target), module.max_memory_allocated(target))

    def release_memory(self, device: Device) -> None:
        """Release torch's cache on all devices of this kind."""
        if device.kind != "cpu":
            import torch

            torch.get_device_module(self.backend.native_device(device)).empty_cache()
