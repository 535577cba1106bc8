"""Memory of simulated devices: which there are, and what is on them until it is freed."""

# ruff: noqa: SLF001  (names inside torch, which inside.py asks for before)

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from anyaccel_torch.simulated.sim_device import KIND, SimulatedDevice, running

_counted: set[int] = set()


def there(device: Any) -> torch.device:
    """A device of torch; a simulated one with its index, if it is one of those that run.

    Raises:
        RuntimeError: it is not.
    """
    found = torch.device(device)
    if found.type != KIND:
        return found
    index = found.index or 0
    if index >= len(running()):
        raise RuntimeError(f"{KIND} error: invalid device ordinal {index}: there are {len(running())} devices")
    return torch.device(KIND, index)


def handle(device: torch.device) -> SimulatedDevice:
    """The handle of a simulated device."""
    return running()[device.index]


def take(held: Tensor, device: torch.device) -> None:
    """Count the memory of a tensor as that of a device, until it is freed; memory that is shared counts once.

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
    refused = handle(device).reserve(nbytes)
    if refused:
        raise torch.OutOfMemoryError(refused)
    _counted.add(key)
    weakref.finalize(storage, _freed, key, handle(device), nbytes).atexit = False


def _freed(key: int, device: SimulatedDevice, nbytes: int) -> None:
    _counted.discard(key)
    device.free(nbytes)
