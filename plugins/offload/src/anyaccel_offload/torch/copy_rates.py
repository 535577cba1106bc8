"""Rates of copies, disks and computation for plans: measured if the device or the file is available, otherwise stated.

Each is measured once in a process, in about a tenth of a second. Devices of the same model are measured once, so that a
plan treats them equally.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from anyaccel_offload.torch.checkpoint_files import FileTensor
from anyaccel_offload.torch.model_blocks import places
from anyaccel_offload.torch.stored_tensor import StoredTensor
from anyaccel_torch.simulated.sim_device import KIND

_STATED = {"cpu": 12e9, "disk": 2e9}
"""Bytes per second from host memory (PCIe 3 with 16 lanes) and from a disk, if not measured."""
_WEIGHTS = {"cpu": 2e10}
"""Bytes of weights that a kind of device reads per second, if not measured; 1 TB/s for other kinds."""
_MEASURED = 2**26
_WIDTH = 4096  # of the float32 matrix with `_MEASURED` bytes
_PIECE = 2**22
_LEAST = 2**24  # bytes of the smallest file whose rate is measured
_LONGEST = 0.1  # maximum seconds of reading a file


class Rate(NamedTuple):
    """Bytes per second, and whether the rate was measured on this machine."""

    value: float
    is_measured: bool

    def __str__(self) -> str:
        return f"{self.value / 1e9:.3g} GB/s ({'measured' if self.is_measured else 'stated'})"


def copy_rate(device: torch.device, *, measure: bool = True) -> Rate:
    """Return the rate of copies from host memory to a device."""
    found = _measured_link(*_key(device)) if measure else None
    return Rate(_STATED["cpu"], False) if found is None else Rate(found, True)


def weight_rate(device: torch.device, *, measure: bool = True) -> Rate:
    """Return the rate at which a device computes with weights, for a matrix with one row, the smallest batch."""
    found = _measured_weights(*_key(device)) if measure else None
    return Rate(_WEIGHTS.get(device.type, 1e12), False) if found is None else Rate(found, True)


def disk_rate(model: nn.Module) -> Rate:
    """Return the rate of the disk with the largest tensor of a model in a file, or the stated rate."""
    saved = [place.tensor.saved for place in places(model) if isinstance(place.tensor, StoredTensor)]
    files = {it.file.path: it.nbytes for it in saved if isinstance(it, FileTensor)}
    found = _measured_file(max(files, key=lambda path: files[path])) if files else None
    return Rate(_STATED["disk"], False) if found is None else Rate(found, True)


def are_here(devices: Iterable[torch.device]) -> bool:
    """Return whether all of these devices are on this machine; for those of other machines, none is measured."""
    return all(_key(device)[1] for device in devices)


def rates_note(
    devices: Iterable[torch.device], copies_to: Iterable[torch.device], disk: Rate | None, *, measure: bool = True
) -> str:
    """Return the note of a plan about its rates."""
    parts = [f"{it} computes with weights at {weight_rate(it, measure=measure)}" for it in dict.fromkeys(devices)]
    parts += [f"copies to {it} {copy_rate(it, measure=measure)}" for it in dict.fromkeys(copies_to) if it.type != "cpu"]
    parts += [] if disk is None else [f"disk {disk}"]
    return f"rates: {', '.join(parts)}"


def _key(device: torch.device) -> tuple[str, str, int]:
    """Return the kind of a device, its model name, empty if the device is not here, and the first such device."""
    if device.type in ("meta", KIND):
        return device.type, "", 0
    if device.type == "cpu":
        return "cpu", "cpu", 0
    try:
        module: Any = torch.get_device_module(device)
        names = [str(module.get_device_name(i)) for i in range(module.device_count())]
        name = names[device.index or 0]
        return device.type, name, names.index(name)
    except (RuntimeError, AttributeError, NotImplementedError, IndexError):  # nothing of this kind is here
        return device.type, "", 0


@lru_cache
def _measured_link(kind: str, name: str, index: int) -> float | None:
    """Return the rate of copies from pinned memory; None for the CPU, and for a device that is not here."""
    if not name or kind == "cpu":
        return None
    try:
        host = torch.empty(_MEASURED, dtype=torch.uint8, pin_memory=True)
        there = torch.empty(_MEASURED, dtype=torch.uint8, device=torch.device(kind, index))
        return _MEASURED / _least_seconds(there.device, lambda: there.copy_(host, non_blocking=True))
    except (RuntimeError, AttributeError, NotImplementedError):  # memory is short
        return None


@lru_cache
def _measured_weights(kind: str, name: str, index: int) -> float | None:
    """Return the rate of a matrix multiplication with one row, beyond caches; None if no such device is here."""
    if not name:
        return None
    try:
        with torch.inference_mode():
            weight = torch.ones(_MEASURED // 4 // _WIDTH, _WIDTH, device=torch.device(kind, index))
            row = torch.ones(1, _WIDTH, device=weight.device)
            return _MEASURED / _least_seconds(weight.device, lambda: nn.functional.linear(row, weight))
    except (RuntimeError, AttributeError, NotImplementedError):  # memory is short
        return None


def _least_seconds(device: torch.device, work: Any) -> float:
    module: Any = None if device.type == "cpu" else torch.get_device_module(device)
    found = []
    for _ in range(4):
        if module is not None:
            module.synchronize(device)
        start = time.perf_counter()
        work()
        if module is not None:
            module.synchronize(device)
        found.append(time.perf_counter() - start)
    return min(found)


@lru_cache
def _measured_file(path: Path) -> float | None:
    """Return the rate of reading the middle of a file after it left the page cache; None if it cannot be dropped."""
    if not hasattr(os, "posix_fadvise"):
        return None
    try:
        with path.open("rb", buffering=0) as stream:
            nbytes = min(os.fstat(stream.fileno()).st_size, _MEASURED)
            if nbytes < _LEAST:
                return None
            begin = (os.fstat(stream.fileno()).st_size - nbytes) // 2
            os.posix_fadvise(stream.fileno(), begin, nbytes, os.POSIX_FADV_DONTNEED)
            stream.seek(begin)
            buffer, done, start = memoryview(bytearray(_PIECE)), 0, time.perf_counter()
            while done < nbytes and time.perf_counter() - start < _LONGEST:
                done += stream.readinto(buffer) or nbytes
            return float(min(done, nbytes) / (time.perf_counter() - start))
    except OSError:  # a note says so where it is used
        return None
