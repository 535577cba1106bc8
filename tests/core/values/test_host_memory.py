"""Host memory: limits read from simulated systems, and arrays that frameworks can use without a copy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from anyaccel.host_memory import HostMemory, aligned_empty, host_memory, is_aligned, is_dense, is_own

GIB = 2**30
MEMINFO = f"MemTotal: {64 * 2**20} kB\nMemFree: {2**20} kB\nMemAvailable: {40 * 2**20} kB\nHugePages_Total: 0\n"
V1, V2 = "sys/fs/cgroup/memory", "sys/fs/cgroup"


def system(root: Path, files: Mapping[str, str]) -> Path:
    """A tree of files as Linux has them."""
    for name, text in {"proc/meminfo": MEMINFO, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return root


def v2(folder: str, limit: object, used: int, cache: int = 0) -> dict[str, str]:
    at = f"{V2}/{folder}".rstrip("/")
    stat = f"anon {used}\ninactive_file {cache}\nactive_file 5\n"
    return {f"{at}/memory.max": f"{limit}\n", f"{at}/memory.current": f"{used}\n", f"{at}/memory.stat": stat}


def v1(folder: str, limit: int, used: int, cache: int = 0) -> dict[str, str]:
    at = f"{V1}/{folder}".rstrip("/")
    stat = f"inactive_file 1\ntotal_inactive_file {cache}\n"
    files = {"limit_in_bytes": limit, "usage_in_bytes": used}
    return {**{f"{at}/memory.{name}": f"{value}\n" for name, value in files.items()}, f"{at}/memory.stat": stat}


def own(path: str, controllers: str = "") -> dict[str, str]:
    return {"proc/self/cgroup": f"{'0' if not controllers else '4'}:{controllers}:{path}\n"}


def limits(address_space: str, used: int) -> dict[str, str]:
    lines = f"Limit Soft Limit Hard Limit Units\nMax address space         {address_space}  unlimited  bytes\n"
    return {"proc/self/limits": lines, "proc/self/status": f"Name:\tpython\nVmSize:\t {used // 1024} kB\n"}


def test_available_memory_counts_as_free(tmp_path: Path) -> None:
    assert host_memory(system(tmp_path, {})) == HostMemory(64 * GIB, 40 * GIB)


def test_without_available_memory_unused_memory_is_free(tmp_path: Path) -> None:
    root = system(tmp_path, {"proc/meminfo": "MemTotal: 2048 kB\nMemFree: 1024 kB\nnonsense\n"})
    assert host_memory(root) == HostMemory(2 * 2**20, 2**20)


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        # a container sees its own group where groups are mounted, whatever it is told of its path
        (v2("", 8 * GIB, 3 * GIB) | own("/"), (8, 5)),
        (v2("", 8 * GIB, 3 * GIB) | own("/kubepods/pod7"), (8, 5)),
        (v2("", 8 * GIB, 3 * GIB) | own("/../pod7"), (8, 5)),
        # caches that can be dropped are free
        (v2("", 8 * GIB, 6 * GIB, cache=2 * GIB) | own("/"), (8, 4)),
        # no limit, and one that is no limit as the machine has less
        (v2("job", "max", 3 * GIB) | own("/job"), (64, 40)),
        (v2("job", 256 * GIB, 3 * GIB) | own("/job"), (64, 40)),
        # the groups above have limits of their own: the strictest counts, of both figures
        (v2("job/step", 32 * GIB, GIB) | v2("job", 16 * GIB, 12 * GIB) | own("/job/step"), (16, 4)),
        (v2("job/step", 8 * GIB, GIB) | v2("job", 48 * GIB, 46 * GIB) | own("/job/step"), (8, 2)),
        # more than the limit is in use for a while
        (v2("", 8 * GIB, 9 * GIB) | own("/"), (8, 0)),
        # version 1, where no limit is nearly 2**63
        (v1("docker/7", 4 * GIB, 3 * GIB, cache=GIB) | own("/docker/7", "memory"), (4, 2)),
        (v1("", 4 * GIB, GIB) | own("/docker/7", "cpu,memory"), (4, 3)),
        (v1("", 0x7FFFFFFFFFFFF000, GIB) | own("/", "memory"), (64, 40)),
        # both at once: version 2 beside the controllers of version 1
        (v1("a", 4 * GIB, GIB) | {"proc/self/cgroup": "4:memory:/a\n2:cpu:/a\n0::/a\n"}, (4, 3)),
        ({**v2("unified/a", 6 * GIB, GIB), **own("/a")}, (6, 5)),
        # the address space of the process, of which it has reserved some (`ulimit -v`)
        (limits("10737418240", 7 * GIB), (10, 3)),
        (limits("unlimited", 7 * GIB), (64, 40)),
        # nothing that is understood
        ({"proc/self/cgroup": "\x00\n::\n0\n", **v2("", "many", 1)}, (64, 40)),
    ],
)
def test_limits_of_control_groups(tmp_path: Path, files: Mapping[str, str], wanted: tuple[int, int]) -> None:
    assert host_memory(system(tmp_path, files)) == HostMemory(wanted[0] * GIB, wanted[1] * GIB)


def test_without_proc_memory_comes_from_sysconf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = {"SC_PHYS_PAGES": 100, "SC_AVPHYS_PAGES": 30, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr("os.sysconf", pages.__getitem__, raising=False)
    assert host_memory(tmp_path) == HostMemory(409600, 122880)


def test_unknown_memory_is_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.sysconf", raising=False)
    assert host_memory(tmp_path) == HostMemory(0, 0)


def test_this_machine_has_memory() -> None:
    found = host_memory()
    assert 0 <= found.free <= found.total


# -- arrays ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (3,), (7, 5), (0, 4)])
@pytest.mark.parametrize("dtype", ["float32", "int8", "complex128", "bool"])
def test_arrays_are_aligned(shape: tuple[int, ...], dtype: str) -> None:
    for _ in range(5):
        made = aligned_empty(shape, dtype)
        assert (made.shape, made.dtype) == (shape, dtype)
        assert is_aligned(made) and is_own(made)


def test_which_arrays_a_framework_may_own() -> None:
    array = np.zeros((4, 6), "float32")
    assert is_own(array) and is_own(array[1:3]) and is_own(array.reshape(-1).view("int32"))
    sealed = array.copy()
    sealed.flags.writeable = False
    for other in (array.T, array[:, :3], array[::2], sealed, array.astype(">f4")):
        assert not is_dense(other) and not is_own(other)
    borrowed = np.frombuffer(bytearray(16), "float32")
    assert is_dense(borrowed) and not is_own(borrowed)
    odd = np.zeros(17, "uint8")[1:].view("float32")
    assert not is_dense(odd) and not is_aligned(odd)
