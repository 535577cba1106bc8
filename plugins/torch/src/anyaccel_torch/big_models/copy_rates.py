"""Rates at which weights come to a device, for plans: measured where the device is here, else stated."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import Any

import torch

from anyaccel_torch.simulated.sim_device import KIND

STATED = {"cpu": 12e9, "disk": 2e9}
"""Bytes per second from host memory (PCIe 3 with 16 lanes) and from a disk, where nothing was measured."""
_MEASURED = 2**26
_SCANNED = {"cpu": 2e10}
"""Bytes of weights that a kind of device reads in a second; as the planner has it for others."""


def copy_rate(device: torch.device, tier: str) -> float:
    """Bytes per second from a tier to a device."""
    link = _measured(device) or STATED["cpu"]
    return min(link, STATED["disk"]) if tier == "disk" else link


def weight_rate(device: torch.device) -> float:
    """Bytes of weights per second that a device computes with, about right for one row."""
    return _SCANNED.get(device.type, 1e12)


def is_measured(device: torch.device) -> bool:
    """Whether the rate from host memory is that of this machine."""
    return _measured(device) is not None


@lru_cache
def _measured(device: torch.device) -> float | None:
    """The rate of copies from page-locked memory, None for the CPU, for simulated devices, and where none is here."""
    if device.type in ("cpu", "meta", KIND):
        return None
    try:
        module: Any = torch.get_device_module(device)
        if (device.index or 0) >= module.device_count():
            return None
        host = torch.empty(_MEASURED, dtype=torch.uint8, pin_memory=True)
        there = torch.empty(_MEASURED, dtype=torch.uint8, device=device)
        return _MEASURED / min(_timed(module, device, host, there) for _ in range(4))
    except (RuntimeError, AttributeError, NotImplementedError):  # memory is short, or nothing of this kind is here
        return None


def _timed(module: Any, device: torch.device, host: torch.Tensor, there: torch.Tensor) -> float:
    module.synchronize(device)
    start = time.perf_counter()
    there.copy_(host, non_blocking=True)
    module.synchronize(device)
    return time.perf_counter() - start
