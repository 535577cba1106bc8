"""Loops of one's own beside loops by hand, Accelerate and Fabric: processor time of a step, in turns within one run.

python tests/benchmarks/own_loop.py                                  # one process, batches that are there
python tests/benchmarks/own_loop.py --data-loader                    # one process, a DataLoader
anyaccel run --replicas 2 tests/benchmarks/own_loop.py               # beside DistributedDataParallel by hand
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import anyaccel as aa

WIDTHS = {"0.1 MB": 100, "2 MB": 500, "26 MB": 1800}
ROWS, BATCH = 3200, 64
uses_data_loader = False  # by --data-loader


def parts(width: int) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))
    x = torch.randn(ROWS, 20)
    y = x.sum(1, keepdim=True)
    batches = list(zip(x.split(BATCH), y.split(BATCH), strict=True))
    if uses_data_loader:
        batches = DataLoader(TensorDataset(x, y), BATCH, shuffle=True)
    return net, torch.optim.SGD(net.parameters(), lr=0.01), batches


Epoch = Callable[[], Any]


def steps(net: Any, optimizer: Any, batches: Any, backward: Callable[[Any], Any]) -> Epoch:
    def epoch() -> Any:
        for x, y in batches:
            optimizer.zero_grad()
            loss = F.mse_loss(net(x), y)
            backward(loss)
            optimizer.step()
        return loss

    return epoch


def by_hand(width: int, rank: int, size: int) -> Epoch:
    net, optimizer, batches = parts(width)
    if size > 1:
        net = nn.parallel.DistributedDataParallel(net)
        batches = OwnRows(batches, rank, size)
    return steps(net, optimizer, batches, lambda loss: loss.backward())


class OwnRows:
    """The rows of one process of batches in memory, as a sampler takes them in each epoch."""

    def __init__(self, batches: list[Any], rank: int, size: int) -> None:
        self._batches, self._rows = batches, slice(BATCH * rank // size, BATCH * (rank + 1) // size)

    def __iter__(self) -> Any:
        rows = self._rows
        return ((x[rows], y[rows]) for x, y in self._batches)


def by_loop(width: int, loop: aa.Loop) -> Epoch:
    net, optimizer, batches = parts(width)
    if isinstance(batches, list):
        batches = Batches(batches)
    net, optimizer, loader = loop.prepare(net, optimizer, batches)
    return steps(net, optimizer, loader, loop.backward)


def without_loader(width: int, loop: aa.Loop) -> Epoch:
    """The loop as in `by_loop`, with batches that are by hand: what `backward` and `step` cost."""
    net, optimizer, batches = parts(width)
    net, optimizer = loop.prepare(net, optimizer)
    return steps(net, optimizer, batches, loop.backward)


def by_accelerate(width: int) -> Epoch:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    net, optimizer, batches = parts(width)
    if uses_data_loader:
        batches = accelerator.prepare(batches)
    net, optimizer = accelerator.prepare(net, optimizer)
    return steps(net, optimizer, batches, accelerator.backward)


def by_fabric(width: int) -> Epoch:
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    net, optimizer, batches = parts(width)
    if uses_data_loader:
        batches = fabric.setup_dataloaders(batches)
    net, optimizer = fabric.setup(net, optimizer)
    return steps(net, optimizer, batches, fabric.backward)


class Batches:
    """Batches in memory."""

    def __init__(self, batches: list[Any]) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Any:
        return iter(self._batches)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--data-loader", action="store_true", help="read rows by a DataLoader, in one process")
    options = parser.parse_args()
    global uses_data_loader  # of the whole run
    rounds, uses_data_loader = options.rounds, options.data_loader
    torch.set_num_threads(1)
    loop = aa.Loop("cpu", framework="torch")
    rank, size = loop.process_index, loop.num_processes
    for name, width in WIDTHS.items():
        made = {"by hand": by_hand(width, rank, size), "Loop": by_loop(width, loop)}
        if size == 1:
            made |= {"Loop, without its loader": without_loader(width, loop)}
            for peer, make in {"Accelerate": by_accelerate, "Fabric": by_fabric}.items():
                try:
                    made[peer] = make(width)
                except ImportError:
                    continue
        times: dict[str, list[float]] = {key: [] for key in made}
        for turn in range(rounds + 2):
            for key, epoch in made.items():
                began = time.process_time()
                epoch()
                if turn > 1:
                    times[key].append(time.process_time() - began)
        plain = times["by hand"]
        ratios = {
            key: round(statistics.median(a / b for a, b in zip(own, plain, strict=True)), 3)
            for key, own in times.items()
        }
        micro = round(statistics.median(plain) * 1e6 / (ROWS / BATCH))
        loop.print(json.dumps({"gradients": name, "processes": size, "microseconds by hand": micro, **ratios}))


if __name__ == "__main__":
    main()
