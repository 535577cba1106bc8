"""Memory of the Apple GPU, as torch and Metal report it."""

from __future__ import annotations

from anyaccel.backend import MemoryInfo
from anyaccel.device import Device
from anyaccel_mps.device_info import total_memory
from anyaccel_torch.memory import TorchMemory


class MpsMemory(TorchMemory):
    """Reports this process only: the memory is shared with the CPU, and other processes are not seen."""

    def memory(self, device: Device) -> MemoryInfo:
        """As `Memory.memory`; torch's cache counts as not free, and there is no peak."""
        import torch

        total = total_memory()
        free = max(total - int(torch.mps.driver_allocated_memory()), 0)
        return MemoryInfo(total, free, used=int(torch.mps.current_allocated_memory()), peak=0)

    def release_memory(self, device: Device) -> None:
        import torch

        torch.mps.empty_cache()
