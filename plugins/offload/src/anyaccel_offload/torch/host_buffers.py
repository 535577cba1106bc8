"""Host memory for weights: pinned memory within a budget, and buffers that are reused."""

from __future__ import annotations

import threading
import weakref

import numpy as np
import torch
from torch import Tensor

from anyaccel.host_memory import aligned_empty


class PinnedMemory:
    """Pinned (page-locked) host memory within a budget; ordinary memory beyond it, or if pinning is not available.

    torch allocates pinned memory in powers of two; the budget counts these sizes.

    Args:
        device: Device that the memory is copied to.
        budget: Budget in bytes.

    Attributes:
        used: Number of bytes in use.
        peak: Maximum number of bytes in use.
    """

    def __init__(self, device: torch.device, budget: int) -> None:
        self.budget, self.used, self.peak = budget, 0, 0
        if device.type == "cpu":
            self._make, self._rounds = None, False
        else:
            module = torch.get_device_module(device)
            if hasattr(module, "pinned_empty"):
                self._make, self._rounds = module.pinned_empty, False
            elif not hasattr(module, "Stream"):
                self._make, self._rounds = None, False
            else:
                self._make, self._rounds = lambda nbytes: torch.empty(nbytes, dtype=torch.uint8, pin_memory=True), True
        self._lock = threading.RLock()  # memory is freed in any place where Python frees an object

    def empty(self, nbytes: int) -> tuple[Tensor, bool]:
        """Return new memory, and whether it is pinned."""
        counted = 1 << (nbytes - 1).bit_length() if self._rounds and nbytes else nbytes
        if self._make is None or not self._reserve(counted):
            return torch.empty(nbytes, dtype=torch.uint8), False
        try:
            made = self._make(nbytes)
        except RuntimeError:  # the system has no more pinned memory: that is slower, but correct
            self._free(counted)
            return torch.empty(nbytes, dtype=torch.uint8), False
        weakref.finalize(made.untyped_storage(), self._free, counted).atexit = False
        return made, True

    def empty_like(self, tensor: Tensor) -> Tensor:
        """Return host memory for a copy of a tensor."""
        flat = self.empty(tensor.nbytes)[0]
        return flat.view(tensor.dtype).view(tensor.shape)

    def staging(self, nbytes: int) -> Tensor:
        """Return a buffer for copies."""
        return self.empty(nbytes)[0]

    def _reserve(self, nbytes: int) -> bool:
        with self._lock:
            if self.used + nbytes > self.budget:
                return False
            self.used += nbytes
            self.peak = max(self.peak, self.used)
            return True

    def _free(self, nbytes: int) -> None:
        with self._lock:
            self.used -= nbytes


class BufferPool:
    """Host memory that is reused when no tensor holds it; the system would clear new memory each time.

    Attributes:
        limit: Maximum number of bytes in the pool.
    """

    def __init__(self) -> None:
        self.limit = 0
        self._free: list[np.ndarray] = []
        self._kept = 0
        self._lock = threading.RLock()

    def lease(self, nbytes: int) -> Tensor:
        """Return memory that goes to the pool when its last tensor is freed."""
        with self._lock:
            fitting = [buffer for buffer in self._free if nbytes <= buffer.nbytes <= 2 * nbytes]
            chosen = min(fitting, key=lambda buffer: buffer.nbytes, default=None)
            if chosen is None:
                buffer = aligned_empty((nbytes,), np.dtype(np.uint8))
            else:
                self._free = [buffer for buffer in self._free if buffer is not chosen]
                self._kept -= chosen.nbytes
                buffer = chosen
        made = torch.from_numpy(buffer[:nbytes]) if nbytes else torch.empty(0, dtype=torch.uint8)
        weakref.finalize(made.untyped_storage(), self._give_back, buffer).atexit = False
        return made

    def _give_back(self, buffer: np.ndarray) -> None:
        with self._lock:
            self._free.append(buffer)
            self._kept += buffer.nbytes
            while self._kept > self.limit and self._free:
                self._kept -= self._free.pop(0).nbytes
