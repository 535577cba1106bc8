"""How full a device is, from torch's own figures."""

from __future__ import annotations

from anyaccel.backend import Memory, MemoryInfo
from anyaccel.device import Device
from anyaccel_torch.host import host_bytes
from anyaccel_torch.placement import TorchPlacement


class TorchMemory(TorchPlacement, Memory):
    """Figures of an accelerator are those of this process's caching allocator; the CPU has only its size."""

    def memory(self, device: Device) -> MemoryInfo:
        """As `Memory.memory`; what torch only caches counts as not free."""
        if device.kind == "cpu":
            total, free = host_bytes("SC_PHYS_PAGES"), host_bytes("SC_AVPHYS_PAGES")
            return MemoryInfo(total, free, used=0, peak=0)
        import torch

        target = self.torch_device(device)
        module = torch.get_device_module(target)
        free, total = module.mem_get_info(target)
        return MemoryInfo(total, free, module.memory_allocated(target), module.max_memory_allocated(target))

    def release_memory(self, device: Device) -> None:
        """As `Memory.release_memory`; empties torch's cache on all devices of this kind."""
        if device.kind != "cpu":
            import torch

            torch.get_device_module(self.torch_device(device)).empty_cache()
