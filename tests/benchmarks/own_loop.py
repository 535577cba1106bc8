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
from contextlib import closing, suppress
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import anyaccel as aa

WIDTHS = {"0.1 MB": (100, 500), "2 MB": (500, 200), "26 MB": (1800, 50)}
"""Sizes of a model's gradients: its width, and the steps of an epoch, which takes about a second."""
BATCH = 64
uses_data_loader = False  # by --data-loader


def parts(width: int, n_steps: int) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))
    x = torch.randn(n_steps * BATCH, 20)
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


def by_hand(width: int, n_steps: int, rank: int, size: int) -> Epoch:
    net, optimizer, batches = parts(width, n_steps)
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


def by_loop(width: int, n_steps: int, loop: aa.Loop) -> Epoch:
    net, optimizer, batches = parts(width, n_steps)
    if isinstance(batches, list):
        batches = Batches(batches)
    net, optimizer, loader = loop.prepare(net, optimizer, batches)
    return steps(net, optimizer, loader, loop.backward)


def without_loader(width: int, n_steps: int, loop: aa.Loop) -> Epoch:
    """The loop as in `by_loop`, with batches that are by hand: what `backward` and `step` cost."""
    net, optimizer, batches = parts(width, n_steps)
    net, optimizer = loop.prepare(net, optimizer)
    return steps(net, optimizer, batches, loop.backward)


def by_accelerate(width: int, n_steps: int) -> Epoch:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    net, optimizer, batches = parts(width, n_steps)
    if uses_data_loader:
        batches = accelerator.prepare(batches)
    net, optimizer = accelerator.prepare(net, optimizer)
    return steps(net, optimizer, batches, accelerator.backward)


def by_fabric(width: int, n_steps: int) -> Epoch:
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    net, optimizer, batches = parts(width, n_steps)
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
    parser.add_argument("--builds", type=int, default=5, help="times to create all models: where memory lies matters")
    parser.add_argument("--rounds", type=int, default=4, help="epochs of each, in turns, after two that warm up")
    parser.add_argument("--steps", type=int, help="steps of an epoch")
    parser.add_argument("--data-loader", action="store_true", help="read rows by a DataLoader, in one process")
    options = parser.parse_args()
    global uses_data_loader  # of the whole run
    uses_data_loader = options.data_loader
    torch.set_num_threads(1)
    for name, (width, n_steps) in WIDTHS.items():
        n_steps = options.steps or n_steps
        times: dict[str, list[float]] = {}
        for _ in range(options.builds):
            with closing(aa.Loop("cpu", framework="torch")) as loop:
                epochs = all_ways(width, n_steps, loop)
                for turn in range(options.rounds + 2):
                    for key, epoch in epochs.items():
                        began = time.process_time()
                        epoch()
                        if turn > 1:
                            times.setdefault(key, []).append(time.process_time() - began)
                size, show = loop.num_processes, loop.print
        plain = times["by hand"]
        ratios = {
            key: round(statistics.median(a / b for a, b in zip(own, plain, strict=True)), 3)
            for key, own in times.items()
        }
        micro = round(statistics.median(plain) * 1e6 / n_steps)
        about = {"gradients": name, "processes": size, "steps": n_steps, "microseconds by hand": micro}
        show(json.dumps({**about, **ratios}))


def all_ways(width: int, n_steps: int, loop: aa.Loop) -> dict[str, Epoch]:
    """Return an epoch of each way, over new models."""
    rank, size = loop.process_index, loop.num_processes
    epochs = {"by hand": by_hand(width, n_steps, rank, size), "Loop": by_loop(width, n_steps, loop)}
    if size == 1:
        epochs["Loop, without its loader"] = without_loader(width, n_steps, loop)
        for peer, make in {"Accelerate": by_accelerate, "Fabric": by_fabric}.items():
            with suppress(ImportError):
                epochs[peer] = make(width, n_steps)
    return epochs


if __name__ == "__main__":
    main()
