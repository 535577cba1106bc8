"""Memory on simulated devices, counted until it is freed."""

# ruff: noqa: SLF001  (private names of torch, which `registration` checks first)

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from anyaccel_torch.simulated.sim_device import KIND, SimulatedDevice, running

_counted: set[int] = set()


def parse_device(device: Any) -> torch.device:
    """Return a torch device; a simulated one gets an index.

    Raises:
        RuntimeError: the simulated device does not exist.
    """
    parsed = torch.device(device)
    if parsed.type != KIND:
        return parsed
    index = parsed.index or 0
    if index >= len(running()):
        raise RuntimeError(f"{KIND} error: invalid device ordinal {index}: there are {len(running())} devices")
    return torch.device(KIND, index)


def handle_of(device: torch.device) -> SimulatedDevice:
    """The handle of a simulated device."""
    return running()[device.index]


def reserve(held: Tensor, device: torch.device) -> None:
    """Count the memory of a tensor as a device's until it is freed; shared memory counts once.

    Raises:
        torch.OutOfMemoryError: it does not fit.
        NotImplementedError: it is sparse.
    """
    if held.layout is not torch.strided:
        raise NotImplementedError(f"simulated devices have no sparse tensors: {held.layout} on {device}")
    storage = held.untyped_storage()
    key, nbytes = storage._cdata, storage.nbytes()
    if not nbytes or key in _counted:
        return
    reason = handle_of(device).reserve(nbytes)
    if reason:
        raise torch.OutOfMemoryError(reason)
    _counted.add(key)
    weakref.finalize(storage, _free, key, handle_of(device), nbytes).atexit = False


def _free(key: int, device: SimulatedDevice, nbytes: int) -> None:
    _counted.discard(key)
    device.free(nbytes)
