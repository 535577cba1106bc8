"""A model of 1.5 times a memory cap, run forward from its files: rate beside a plain read, peak memory, bytes written.

    python tests/benchmarks/disk_offload.py --gib 6

The cap is one of the system (RLIMIT_DATA), set by this script, so that a model that were loaded would fail. Files are
dropped from the system's cache before each reading, of the model's and of the plain one.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import torch
from safetensors.torch import save_file
from torch import nn

from anyaccel_offload.torch import init_empty_weights, load_checkpoint_and_dispatch

sys.dont_write_bytecode = True
MIB = 2**20
SHARDS = 4


class Blocks(nn.Module):
    """A chain of square layers."""

    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return x


def status(name: str) -> int:
    """Bytes of a line of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(f"{name}:")).split()[1])


def written() -> int:
    """Bytes that this process has written to files, without what a file system notes, such as when one was read."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["wchar"])


def write_checkpoint(folder: Path, depth: int, width: int) -> None:
    """Shards with an index; one layer of values, each time multiplied by another number, so that it takes no memory."""
    index, values = {}, torch.randn(width, width) / width**0.5
    for shard in range(SHARDS):
        names = [f"layers.{i}.weight" for i in range(shard * depth // SHARDS, (shard + 1) * depth // SHARDS)]
        path = folder / f"model-{shard + 1:05d}-of-{SHARDS:05d}.safetensors"
        save_file({name: values * (1 + 0.1 * int(name.split(".")[1])) for name in names}, path)
        index |= dict.fromkeys(names, path.name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    os.sync()


def forget(folder: Path) -> None:
    """Have the system drop files from its cache."""
    for path in folder.glob("*.safetensors"):
        with path.open("rb") as stream:
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def plain_read(folder: Path, buffer: memoryview) -> None:
    """Read all files in order into a buffer that is kept: with a new one each time it takes up to 1.5 times as long."""
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb", buffering=0) as stream:
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
            while stream.readinto(buffer):
                pass


@contextmanager
def limited(nbytes: int) -> Iterator[None]:
    """Inside, this process can have so many more bytes of memory of its own."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (status("VmData") + nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def measure(folder: Path, depth: int, width: int, rounds: int) -> dict[str, float]:
    """The figures: rates are those of the best round, the ratio is that of rounds, a plain reading and a pass each."""
    size = 4 * depth * width**2
    x = torch.ones(1, width)
    Blocks(1, 8)(torch.ones(1, 8))
    cap, memory, output = int(size / 1.5), status("VmRSS"), written()
    plain, offloaded, buffer = [], [], memoryview(bytearray(MIB))
    plain_read(folder, buffer)
    with limited(cap), torch.no_grad():
        with init_empty_weights(include_buffers=True):
            model = Blocks(depth, width)
        load_checkpoint_and_dispatch(model, folder, {"": "disk"})
        for i in range(rounds):
            pair = {}
            for is_plain in (i % 2 == 0, i % 2 == 1):  # each comes first in every other pair
                forget(folder)
                begin = time.perf_counter()
                plain_read(folder, buffer) if is_plain else model(x)
                pair[is_plain] = time.perf_counter() - begin
            plain.append(pair[True])
            offloaded.append(pair[False])
    ratios = sorted(a / b for a, b in zip(plain, offloaded, strict=True))
    return {
        "model_mib": size / MIB,
        "cap_mib": cap / MIB,
        "peak_mib": (status("VmHWM") - memory) / MIB,
        "written_bytes": written() - output,
        "plain_mib_per_second": size / MIB / min(plain),
        "offloaded_mib_per_second": size / MIB / min(offloaded),
        "ratio": median(ratios),
        "ratio_least": ratios[0],
        "ratio_most": ratios[-1],
    }


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=6.0)
    parser.add_argument("--depth", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    given.gib = min(given.gib, 0.2) if given.quick else given.gib
    width = int((given.gib * 2**30 / 4 / given.depth) ** 0.5)
    folder = Path(tempfile.mkdtemp(dir=given.folder))
    try:
        if not os.fork():  # so that writing counts in another process
            write_checkpoint(folder, given.depth, width)
            os._exit(0)
        if os.wait()[1]:
            raise SystemExit("the checkpoint was not written")
        figures = measure(folder, given.depth, width, given.rounds)
        print(json.dumps(figures))
        if given.json is not None:
            given.json.write_text(json.dumps({"benchmark": "disk_offload", **figures}))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
