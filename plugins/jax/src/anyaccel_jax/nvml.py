"""NVIDIA's own library for what is on this machine: it answers without starting CUDA."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple


class Gpu(NamedTuple):
    """One GPU: product name, UUID as nvidia-smi writes it, and bytes of memory."""

    name: str
    uuid: str
    total: int
    free: int


class _Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


def count() -> int:
    """GPUs that CUDA will show to this process; 0 where there is no driver."""
    return len(visible())


def visible() -> list[Gpu]:
    """GPUs in CUDA's order under `CUDA_VISIBLE_DEVICES`; none where there is no driver."""
    with _library() as library:
        found = [] if library is None else list(_gpus(library))
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    return found if wanted is None else chosen(found, wanted)


def chosen(found: list[Gpu], wanted: str) -> list[Gpu]:
    """Those that `CUDA_VISIBLE_DEVICES` names, by number or by the beginning of the UUID; up to the first unknown."""
    kept: list[Gpu] = []
    for word in (part.strip() for part in wanted.split(",")):
        by_number = found[int(word) : int(word) + 1] if word.isdigit() else []
        match = by_number or [gpu for gpu in found if word.startswith("GPU-") and gpu.uuid.startswith(word)]
        if len(match) != 1 or match[0] in kept:
            break
        kept.append(match[0])
    return kept


@contextmanager
def _library() -> Iterator[Any]:
    try:
        library = ctypes.CDLL("nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1")
    except OSError:
        yield None
        return
    if library.nvmlInit_v2():
        yield None
        return
    try:
        yield library
    finally:
        library.nvmlShutdown()


def _gpus(library: Any) -> Iterator[Gpu]:
    number = ctypes.c_uint()
    if library.nvmlDeviceGetCount_v2(ctypes.byref(number)):
        return
    for index in range(number.value):
        handle, memory = ctypes.c_void_p(), _Memory()
        if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
            continue
        library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
        name, uuid = (_text(call, handle) for call in (library.nvmlDeviceGetName, library.nvmlDeviceGetUUID))
        yield Gpu(name, uuid, memory.total, memory.free)


def _text(call: Any, handle: ctypes.c_void_p) -> str:
    room = ctypes.create_string_buffer(96)
    return "" if call(handle, room, len(room)) else room.value.decode()
