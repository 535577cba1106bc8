"""What saving and loading a state costs beside safetensors: 500 MB of float32, to a disk and back.

Run it with `nox -s bench`, or `python tests/benchmarks/saving.py [--rounds N] [--folder FOLDER] [--json FILE]`. All
take turns in one process, and the median of the rounds is told. `save_file` of safetensors returns before anything is
on the disk; beside it stands one that waits for the disk, as anyaccel does, and anyaccel without waiting. `load_file`
of safetensors.torch maps the file and reads nothing; beside it stand its bytes copied, and `load_file` of
safetensors.numpy, which reads. anyaccel reads into memory of its own and compares a CRC-32 of every tensor.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from anyaccel import saved_folder

Act = Callable[[], Any]


@contextmanager
def no_waiting() -> Iterator[None]:
    """Without waiting for the disk."""
    fsync, os.fsync = os.fsync, lambda descriptor: None
    try:
        yield
    finally:
        os.fsync = fsync


def to_disk(path: Path) -> None:
    """Wait until a file is on the disk."""
    descriptor = os.open(path, os.O_RDWR)
    os.fsync(descriptor)
    os.close(descriptor)


def writers(state: Mapping[str, np.ndarray], folder: Path) -> dict[str, Act]:
    """Ways to write a state."""
    plain = folder / "plain.safetensors"

    def unsynced() -> None:
        with no_waiting():
            saved_folder.write(folder / "ours", {"graph": {}}, state)

    def synced() -> None:
        save_file(dict(state), plain)
        to_disk(plain)

    acts: dict[str, Act] = {
        "save_file, numpy": lambda: save_file(dict(state), plain),
        "save_file, numpy, on the disk": synced,
        "anyaccel": lambda: saved_folder.write(folder / "ours", {"graph": {}}, state),
        "anyaccel, not on the disk": unsynced,
    }
    try:
        import torch
        from safetensors.torch import save_file as save_tensors
    except ImportError:
        return acts
    tensors = {name: torch.from_numpy(array) for name, array in state.items()}

    def tensors_synced() -> None:
        save_tensors(tensors, plain)
        to_disk(plain)

    return {
        "save_file, torch": lambda: save_tensors(tensors, plain),
        "save_file, torch, on the disk": tensors_synced,
    } | acts


def readers(folder: Path) -> dict[str, Act]:
    """Ways to read what was written."""
    plain = folder / "plain.safetensors"

    def hashed() -> Any:
        arrays = load_file(plain)
        return arrays, [zlib.crc32(array.data) for array in arrays.values()]

    acts: dict[str, Act] = {
        "load_file, numpy": lambda: load_file(plain),
        "load_file, numpy, and a CRC-32 of it": hashed,
        "anyaccel": lambda: saved_folder.read(folder / "ours", "graph"),
    }
    try:
        from safetensors.torch import load_file as load_tensors
    except ImportError:
        return acts
    copied: Act = lambda: [tensor.clone() for tensor in load_tensors(plain).values()]  # noqa: E731
    return {"load_file, torch (maps)": lambda: load_tensors(plain), "load_file, torch, copied": copied} | acts


def interleaved(acts: Mapping[str, Act], rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Seconds of each, and those of processors, in rounds that take every one in turn; the first is a warm-up."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in acts}
    for number in range(rounds + 1):
        for name, act in acts.items():
            began, busy = time.perf_counter(), time.process_time()
            made = act()
            if number:
                times[name].append((time.perf_counter() - began, time.process_time() - busy))
            del made
    return times


def main() -> None:
    """Measure, print a table, and write JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--quick", action="store_true", help="one round of 5 MB, to see that it runs")
    parser.add_argument("--folder", type=Path, help="on the disk to measure; a temporary one without it")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rounds, megabytes = (1, 5) if given.quick else (given.rounds, given.megabytes)
    draw = np.random.default_rng(0)
    state = {
        f"net/parameters/{i}.weight": draw.random(2**18, np.float32) for i in range(max(megabytes * 10**6 >> 20, 1))
    }
    nbytes = sum(array.nbytes for array in state.values())
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        tables = {"write": interleaved(writers(state, Path(folder)), rounds)}
        tables["read"] = interleaved(readers(Path(folder)), rounds)
    print(f"{nbytes / 1e6:.0f} MB in {len(state)} arrays, {rounds} interleaved rounds")
    told: dict[str, dict[str, float]] = {}
    for kind, times in tables.items():
        for name, pairs in times.items():
            median, busy = (statistics.median(each) for each in zip(*pairs, strict=True))
            told[f"{kind}: {name}"] = {"median_s": median, "processor_s": busy, "gb_per_s": nbytes / median / 1e9}
            rate = f"{nbytes / median / 1e9:7.2f} GB/s"
            print(f"{kind:6s} {name:40s} {median:7.3f} s {rate}, {busy:6.3f} s of processors")
    if given.json:
        given.json.write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main()
