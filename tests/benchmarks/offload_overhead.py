"""What an offloaded block costs beyond its own compute, beside Accelerate: microseconds a block a call.

    python tests/benchmarks/offload_overhead.py
    python tests/benchmarks/offload_overhead.py --device cuda --width 8192 --depth 24

Blocks are tiny by default, so that only the bookkeeping is measured; wide ones on a GPU measure copies, whose rate is
shown. Contestants take turns; the median of the rounds counts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from anyaccel_offload.torch import cpu_offload, disk_offload


def chain(depth: int, width: int) -> nn.Sequential:
    """Layers of as many units."""
    layers = [nn.utils.skip_init(nn.Linear, width, width) for _ in range(depth)]
    for layer in layers:
        layer.requires_grad_(False)
        layer.weight.fill_(1 / width)
        layer.bias.fill_(0)
    return nn.Sequential(*layers)


def contestants(folder: Path, given: argparse.Namespace) -> Iterator[tuple[str, nn.Module]]:
    """The models, each with other hooks."""
    depth, width, device = given.depth, given.width, given.device
    yield "plain", chain(depth, width).to(device)
    yield "anyaccel, cpu_offload", cpu_offload(chain(depth, width), device)
    yield "anyaccel, disk_offload", disk_offload(chain(depth, width), folder / "a", device)
    try:
        import accelerate
    except ImportError:
        return
    yield "accelerate, cpu_offload", accelerate.cpu_offload(chain(depth, width), device)
    yield "accelerate, disk_offload", accelerate.disk_offload(chain(depth, width), str(folder / "b"), device)


def seconds_of_call(model: nn.Module, x: torch.Tensor) -> float:
    """Of one call, until its output is there."""
    begin = time.perf_counter()
    model(x)[0, 0].item()
    return time.perf_counter() - begin


def main() -> None:
    """Print a line for each contestant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--depth", type=int, default=100)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    x = torch.ones(1, given.width, device=given.device)
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        models = dict(contestants(Path(folder), given))
        for _ in range(2 if given.quick else given.rounds):
            for name, model in models.items():
                seconds.setdefault(name, []).append(seconds_of_call(model, x) / given.depth * 1e6)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    nbytes = 4 * (given.width + 1) * given.width
    for name, value in medians.items():
        more = f"{value - medians['plain']:9.1f} more than plain, {nbytes / value / 1e3:6.2f} GB/s of weights"
        print(f"{name:28} {value:9.1f} us a block, {more}")
    if given.json is not None:
        given.json.write_text(json.dumps({"benchmark": "offload_overhead", "us_a_block": medians}))


if __name__ == "__main__":
    main()
