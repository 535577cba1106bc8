"""What loading costs beside a plain copy: 1,000,000 x 50 float32, from Arrow and from Parquet, to each framework's CPU.

Run it with `nox -s bench`, or `python tests/benchmarks/loading.py [--blocks N] [--rows N] [--json FILE]`. Frameworks
whose plugin is installed are measured, in one process and in interleaved blocks. Loading is from a feature set that
is there to a tensor that the framework owns; reading a Parquet file into a feature set is told apart, beside pyarrow.
Bytes are those that NumPy and Arrow allocated, and those by which the process grew.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import anyaccel as aa
from anyaccel.data import FeatureSet, Rows, loadable_array
from anyaccel.registry import registry

WIDTH = 50
NAMES = [f"c{i}" for i in range(WIDTH)]
FRAMEWORKS = ("numpy", "torch", "jax", "tensorflow")
CPU = aa.Device("cpu")
Block = Callable[[], Any]


def sources(array: np.ndarray, folder: Path) -> tuple[dict[str, tuple[Rows, list[str]]], dict[str, Path]]:
    """Feature sets by the way in which the same numbers lie in them, each with its columns; and files of them."""
    group = max(len(array) // 10, 1)
    flat = pa.FixedSizeListArray.from_arrays(pa.array(array.reshape(-1)), WIDTH)
    vectors = pa.table({"x": flat})
    table = pa.table({name: np.ascontiguousarray(array[:, i]) for i, name in enumerate(NAMES)})
    files = {"vectors": folder / "vectors.parquet", "columns": folder / "columns.parquet"}
    pq.write_table(vectors, files["vectors"], row_group_size=group)
    pq.write_table(table, files["columns"], row_group_size=group)
    wide = pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(array.reshape(-1).astype("float64")), WIDTH)})
    sets: dict[str, tuple[Rows, list[str]]] = {
        "Arrow, a column of vectors": (FeatureSet.from_arrow("a", vectors, ["x"]), ["x"]),
        "Arrow, 50 columns": (FeatureSet.from_arrow("a", table, NAMES), NAMES),
        "Arrow, vectors of float64": (FeatureSet.from_arrow("a", wide, ["x"]), ["x"]),
        "Parquet, a column of vectors": (FeatureSet.from_parquet("p", files["vectors"], ["x"]), ["x"]),
        "Parquet, 50 columns": (FeatureSet.from_parquet("p", files["columns"], NAMES), NAMES),
    }
    shuffled = np.random.default_rng(1).permutation(len(array))
    for name in ("Arrow, a column of vectors", "Arrow, 50 columns"):
        rows, names = sets[name]
        sets[f"{name}, shuffled rows"] = (rows.take(shuffled), names)
    return sets, files


def loading(framework: str, rows: Rows, names: list[str]) -> Block:
    """As a phase loads: the array is made in its final form, and given away if it is new; waited for at the end."""
    backend = registry().computing(framework, "cpu")

    def block() -> Any:
        array = loadable_array(rows, names, "float32")
        tensor = backend.from_host_owned(array, CPU) if array.flags.writeable else backend.from_host(array, CPU)
        backend.synchronize(CPU)
        return tensor

    return block


def plain(array: np.ndarray) -> dict[str, Block]:
    """What others do: a copy, the stack of columns that is written at first thought, and torch's own copy."""
    columns = [np.ascontiguousarray(array[:, i]) for i in range(WIDTH)]
    blocks: dict[str, Block] = {"a plain copy": array.copy, "np.stack of 50 columns": lambda: np.stack(columns, axis=1)}
    try:
        import torch
    except ImportError:
        return blocks
    return {**blocks, "torch.from_numpy(x).clone()": lambda: torch.from_numpy(array).clone()}


def interleaved(blocks: Mapping[str, Block], count: int) -> dict[str, list[float]]:
    """Seconds of each, in `count` rounds that take every one in turn."""
    times: dict[str, list[float]] = {name: [] for name in blocks}
    for number in range(count + 1):
        for name, block in blocks.items():
            began = time.perf_counter()
            made = block()
            times[name].append(time.perf_counter() - began)
            del made
        if not number:  # the first round is a warm-up
            times = {name: [] for name in blocks}
    return times


def copies(block: Block, nbytes: int) -> dict[str, float]:
    """Bytes as multiples of the array's: allocated by NumPy and Arrow at most at once, and grown by at the end."""
    gc.collect()
    arrow, resident = pa.total_allocated_bytes(), _resident()
    tracemalloc.start()
    made = block()
    peak = tracemalloc.get_traced_memory()[1] + max(pa.total_allocated_bytes() - arrow, 0)
    tracemalloc.stop()
    grown = _resident() - resident
    del made
    return {"allocated": peak / nbytes, "grown": grown / nbytes}


def _resident() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    except OSError:  # only Linux tells
        return 0


def reading(files: Mapping[str, Path], count: int) -> dict[str, dict[str, float]]:
    """Seconds from a file to a feature set, and those of pyarrow alone to a table."""
    blocks: dict[str, Block] = {}
    for name, path in files.items():
        names = ["x"] if name == "vectors" else NAMES
        blocks[f"{name}, feature set"] = lambda path=path, names=names: FeatureSet.from_parquet("p", path, names)
        blocks[f"{name}, pyarrow"] = lambda path=path: pq.read_table(path)
    return {name: {"median_s": statistics.median(one)} for name, one in interleaved(blocks, count).items()}


def main() -> None:
    """Measure, print a table, and write JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--quick", dest="blocks", action="store_const", const=1, help="one block, to see that it runs")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    array = np.random.default_rng(0).standard_normal((given.rows, WIDTH), dtype=np.float32)
    there = [name for name in FRAMEWORKS if registry().serves(name, "cpu")]
    with tempfile.TemporaryDirectory() as folder:
        sets, files = sources(array, Path(folder))
        read = reading(files, min(given.blocks, 5))
    blocks = plain(array) | {
        f"{how}: {framework}": loading(framework, rows, names)
        for how, (rows, names) in sets.items()
        for framework in there
    }
    times = interleaved(blocks, given.blocks)
    base = times["a plain copy"]
    told = {
        name: {
            "median_ms": statistics.median(one) * 1e3,
            "least_ms": min(one) * 1e3,
            "gb_per_s": array.nbytes / statistics.median(one) / 1e9,
            "median_ratio": statistics.median(a / b for a, b in zip(one, base, strict=True)),
            "least_ratio": min(one) / min(base),
            **copies(blocks[name], array.nbytes),
        }
        for name, one in times.items()
    }
    print(f"{given.rows:,} x {WIDTH} float32, {array.nbytes / 1e6:.0f} MB, {given.blocks} interleaved blocks")
    print(f"Python {platform.python_version()}, {', '.join(_versions())}")
    print(f"{'':48s} {'median':>9s} {'GB/s':>6s} {'ratio to a copy':>22s} {'allocated':>10s} {'grown':>6s}")
    for name, one in told.items():
        print(
            f"{name:48s} {one['median_ms']:6.1f} ms {one['gb_per_s']:6.2f} {one['median_ratio']:6.2f}, of the least"
            f" {one['least_ratio']:4.2f} {one['allocated']:9.2f} x {one['grown']:4.2f} x"
        )
    for name, seconds in read.items():
        print(f"reading Parquet, {name:31s} {seconds['median_s'] * 1e3:6.1f} ms")
    if given.json:
        given.json.write_text(json.dumps({"loading": told, "reading": read}, indent=2) + "\n")


def _versions() -> list[str]:
    found = []
    for name in ("numpy", "pyarrow", "torch", "jax", "tensorflow-cpu"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    main()
