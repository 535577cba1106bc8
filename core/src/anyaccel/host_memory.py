"""Memory of the host: how much of it this process may have, and arrays in it that a framework can compute from."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

ALIGNMENT = 64  # bytes; XLA and TensorFlow compute from memory that begins at multiples of it, others from any
_ROOT = Path("/")
_VERSION_2 = ("memory.max", "memory.current", "inactive_file")
_VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


class HostMemory(NamedTuple):
    """Bytes of the host's memory that this process may have, and those of them that are free; 0 where unknown."""

    total: int
    free: int


def host_memory(root: Path = _ROOT) -> HostMemory:
    """The memory of the host as of now, within the limits of the control groups that the process is in.

    Free is what can be had without swapping: the system's caches count as free. `root` is where `proc` and `sys` are.
    """
    told = _meminfo(root / "proc/meminfo")
    total = told.get("MemTotal", 0) or _pages("SC_PHYS_PAGES")
    free = told.get("MemAvailable", 0) or told.get("MemFree", 0) or _pages("SC_AVPHYS_PAGES")
    for limit, used in _limits(root):
        if limit < total or not total:
            total = limit
        free = min(free or limit, max(limit - used, 0))
    return HostMemory(total, min(free, total) if total else free)


def aligned_empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array of any content, [*shape] in C's order, that begins at a multiple of `ALIGNMENT` bytes."""
    kind = np.dtype(dtype)
    nbytes = math.prod(shape) * kind.itemsize
    room = np.empty(nbytes + ALIGNMENT, np.uint8)
    begin = -room.ctypes.data % ALIGNMENT
    made: np.ndarray = room[begin : begin + nbytes].view(kind).reshape(shape)
    return made


def is_aligned(array: np.ndarray) -> bool:
    """Whether an array begins at a multiple of `ALIGNMENT` bytes; one without numbers begins nowhere."""
    return not array.size or int(array.ctypes.data) % ALIGNMENT == 0


def is_dense(array: np.ndarray) -> bool:
    """Whether an array can be used as it lies: writable, in C's order without gaps, in the machine's byte order."""
    flags = array.flags
    return bool(flags.writeable and flags.c_contiguous and flags.aligned and array.dtype.isnative)


def is_own(array: np.ndarray) -> bool:
    """Whether a framework can compute from an array that is given away: dense, in memory of NumPy's own."""
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    return is_dense(array) and bool(owner.flags.owndata)


def _meminfo(path: Path) -> dict[str, int]:
    """Bytes by name, as Linux tells them in kB; nothing elsewhere."""
    lines = (line.split() for line in _text(path).splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) > 1 and words[1].isdecimal()}


def _limits(root: Path) -> Iterator[tuple[int, int]]:
    """Limit and use, in bytes, of every control group above the process that has a limit; caches are not in use."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        if "memory" in controllers.split(","):
            yield from _along(root / "sys/fs/cgroup/memory", path, *_VERSION_1)
        elif not controllers:
            for mount in ("sys/fs/cgroup", "sys/fs/cgroup/unified"):
                yield from _along(root / mount, path, *_VERSION_2)


def _along(mount: Path, path: str, limit: str, used: str, cache: str) -> Iterator[tuple[int, int]]:
    """From a control group up to where they are mounted, which inside a container is often its own."""
    parts = [part for part in PurePosixPath(path).parts if part not in ("/", "..")]
    for depth in range(len(parts), -1, -1):
        folder = mount.joinpath(*parts[:depth])
        most, now = _text(folder / limit).strip(), _text(folder / used).strip()
        if most.isdecimal() and now.isdecimal() and int(most) < 2**60:  # without a limit version 1 tells nearly 2**63
            yield int(most), max(int(now) - _stat(folder / "memory.stat").get(cache, 0), 0)


def _stat(path: Path) -> Mapping[str, int]:
    words = (line.split() for line in _text(path).splitlines())
    return {name: int(value) for name, value in (pair for pair in words if len(pair) == 2) if value.isdecimal()}


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:  # not on this system, or not for us to read
        return ""


def _pages(name: str) -> int:
    """Bytes of a count of memory pages; 0 where the system does not say."""
    try:
        return max(os.sysconf(name), 0) * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not every system has sysconf, or this name
        return 0
