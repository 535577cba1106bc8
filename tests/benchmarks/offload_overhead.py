"""What an offloaded block costs on the CPU beyond its own compute, beside Accelerate: microseconds a block a call.

    python tests/benchmarks/offload_overhead.py

Blocks are tiny, so that only the bookkeeping is measured. Contestants take turns; the median of the rounds is shown.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

from anyaccel_torch.big_models import cpu_offload, disk_offload

DEPTH = 100


def chain() -> nn.Sequential:
    """A hundred layers of eight units."""
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(8, 8) for _ in range(DEPTH)])


def contestants(folder: Path) -> dict[str, nn.Module]:
    """The models, each with other hooks."""
    made = {
        "plain": chain(),
        "anyaccel, cpu_offload": cpu_offload(chain(), "cpu"),
        "anyaccel, disk_offload": disk_offload(chain(), folder / "a", "cpu"),
    }
    try:
        import accelerate
    except ImportError:
        return made
    made["accelerate, cpu_offload"] = accelerate.cpu_offload(chain(), "cpu")
    made["accelerate, disk_offload"] = accelerate.disk_offload(chain(), str(folder / "b"), "cpu")
    return made


def main() -> None:
    """Print a line for each contestant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    x = torch.ones(1, 8)
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        models = contestants(Path(folder))
        for _ in range(2 if given.quick else given.rounds):
            for name, model in models.items():
                begin = time.perf_counter()
                model(x)
                seconds.setdefault(name, []).append((time.perf_counter() - begin) / DEPTH * 1e6)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    for name, value in medians.items():
        print(f"{name:28} {value:7.1f} us a block, {value - medians['plain']:6.1f} more than plain")
    if given.json is not None:
        given.json.write_text(json.dumps({"benchmark": "offload_overhead", "us_a_block": medians}))


if __name__ == "__main__":
    main()
