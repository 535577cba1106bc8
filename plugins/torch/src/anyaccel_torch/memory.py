"""How full a device is, from torch's own figures."""

from __future__ import annotations

from anyaccel.backend import Memory, MemoryInfo
from anyaccel.device import Device
from anyaccel.host_memory import host_memory
from anyaccel_torch.placement import TorchPlacement


class TorchMemory(TorchPlacement, Memory):
    """Figures of an accelerator are those of this process's caching allocator; the CPU has only its size."""

    def memory(self, device: Device) -> MemoryInfo:
        """As `Memory.memory`; what torch only caches counts as not free."""
        if device.kind == "cpu":
            return _of_host()
        import torch

        target = self.torch_device(device)
        if target.type == "cpu":  # a kind of a derived backend's own
            return _of_host()
        module = torch.get_device_module(target)
        if not hasattr(module, "mem_get_info"):
            return MemoryInfo(0, 0, 0, 0)
        free, total = module.mem_get_info(target)
        return MemoryInfo(total, free, module.memory_allocated(target), module.max_memory_allocated(target))

    def release_memory(self, device: Device) -> None:
        """As `Memory.release_memory`; empties torch's cache on all devices of this kind."""
        if device.kind != "cpu":
            import torch

            torch.get_device_module(self.torch_device(device)).empty_cache()


def _of_host() -> MemoryInfo:
    total, free = host_memory()
    return MemoryInfo(total, free, used=0, peak=0)
