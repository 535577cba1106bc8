"""How full the Apple GPU is, from torch's figures and Metal's."""

from __future__ import annotations

from anyaccel.backend import MemoryInfo
from anyaccel.device import Device
from anyaccel_mps.device_info import total_memory
from anyaccel_torch.memory import TorchMemory


class MpsMemory(TorchMemory):
    """Figures are this process's; the memory is that of the CPU, and what others take of it is not seen."""

    def memory(self, device: Device) -> MemoryInfo:
        """As `Memory.memory`; what torch only caches counts as not free, and no peak is kept."""
        import torch

        total = total_memory()
        free = max(total - int(torch.mps.driver_allocated_memory()), 0)
        return MemoryInfo(total, free, used=int(torch.mps.current_allocated_memory()), peak=0)

    def release_memory(self, device: Device) -> None:
        """As `Memory.release_memory`."""
        import torch

        torch.mps.empty_cache()
