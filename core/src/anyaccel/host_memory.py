"""Host memory and cores that this process may use, and arrays that frameworks can use without a copy."""

from __future__ import annotations

import math
import os
import re
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

ALIGNMENT = 64  # bytes; XLA and TensorFlow use aligned memory without a copy, other frameworks any memory
_ROOT = Path("/")
# Each prediction reads these files, so they are searched by patterns and not line by line.
_MEMINFO = re.compile(r"^(MemTotal|MemAvailable|MemFree|VmSize):\s+(\d+)\b", re.MULTILINE)
_ADDRESS_SPACE = re.compile(r"^Max address space\s+(\d+)\s", re.MULTILINE)
_VERSION_2 = ("memory.max", "memory.current", "inactive_file")
_VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


class HostMemory(NamedTuple):
    """Bytes of host memory that this process may use, and how many of them are free; 0 if unknown."""

    total: int
    free: int


def host_memory(root: Path = _ROOT) -> HostMemory:
    """Return the current host memory, within the limits of the process (`ulimit -v`) and of its control groups.

    Free memory is the memory available without swapping, including the system's caches. `root` is the directory of
    `proc` and `sys`.
    """
    meminfo = {name: int(kilobytes) * 1024 for name, kilobytes in _MEMINFO.findall(_text(root / "proc/meminfo"))}
    total = meminfo.get("MemTotal", 0) or _pages("SC_PHYS_PAGES")
    free = meminfo.get("MemAvailable", 0) or meminfo.get("MemFree", 0) or _pages("SC_AVPHYS_PAGES")
    limits: list[tuple[int, int]] = []  # and what is used of each
    for limit in _ADDRESS_SPACE.findall(_text(root / "proc/self/limits")):
        status = dict(_MEMINFO.findall(_text(root / "proc/self/status")))
        limits.append((int(limit), int(status.get("VmSize", 0)) * 1024))
    for line in _text(root / "proc/self/cgroup").splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        is_version_1 = "memory" in controllers.split(",")
        name_of_limit, name_of_used, name_of_cached = _VERSION_1 if is_version_1 else _VERSION_2
        mounts = ("memory",) if is_version_1 else ("", "unified") if not controllers else ()
        for folder in _groups(root / "sys/fs/cgroup", mounts, path, name_of_limit):
            most, now = _text(folder / name_of_limit).strip(), _text(folder / name_of_used).strip()
            if most.isdecimal() and now.isdecimal() and int(most) < 2**60:  # version 1 says nearly 2**63 for no limit
                statistics = dict(line.partition(" ")[::2] for line in _text(folder / "memory.stat").splitlines())
                cached = statistics.get(name_of_cached, "").strip()  # what the system would give up
                limits.append((int(most), max(int(now) - (int(cached) if cached.isdecimal() else 0), 0)))
    for limit, used in limits:
        if limit < total or not total:
            total = limit
        free = min(free or limit, max(limit - used, 0))
    return HostMemory(total, min(free, total) if total else free)


def usable_cores() -> int:
    """Return the number of cores that this process may use, without a container's limit on processor time."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def aligned_empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return an uninitialised C-contiguous array that starts at a multiple of `ALIGNMENT` bytes."""
    numpy_dtype = np.dtype(dtype)
    nbytes = math.prod(shape) * numpy_dtype.itemsize
    buffer = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -buffer.ctypes.data % ALIGNMENT
    array: np.ndarray = buffer[start : start + nbytes].view(numpy_dtype).reshape(shape)
    return array


def is_aligned(array: np.ndarray) -> bool:
    """Whether an array is empty or starts at a multiple of `ALIGNMENT` bytes."""
    return not array.size or int(array.ctypes.data) % ALIGNMENT == 0


def is_dense(array: np.ndarray) -> bool:
    """Whether an array is writable, C-contiguous and in native byte order."""
    flags = array.flags
    return bool(flags.writeable and flags.c_contiguous and flags.aligned and array.dtype.isnative)


def is_own(array: np.ndarray) -> bool:
    """Whether a framework may take over an array's memory: the array is dense, and NumPy owns its memory."""
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    return is_dense(array) and bool(owner.flags.owndata)


@cache
def _groups(parent: Path, mounts: tuple[str, ...], path: str, limit: str) -> list[Path]:
    """Return control groups that have limits, up to each mount point, which in a container is often the group
    itself.
    """
    parts = [part for part in PurePosixPath(path).parts if part not in ("/", "..")]
    depths = range(len(parts), -1, -1)
    folders = (parent.joinpath(mount, *parts[:depth]) for mount in mounts for depth in depths)
    return [folder for folder in folders if (folder / limit).exists()]


def _text(path: Path) -> str:
    try:
        with path.open("rb", buffering=0) as file:  # a third of the time of read_text, in each prediction
            return file.read().decode("utf-8", "replace")
    except OSError:  # missing on this system, or not readable
        return ""


def _pages(name: str) -> int:
    """Return bytes of a number of memory pages from sysconf; 0 if unknown."""
    try:
        return max(os.sysconf(name), 0) * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not every system has sysconf, or this name
        return 0
