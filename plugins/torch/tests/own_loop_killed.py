"""A loop that is killed within an epoch, and goes on: FOLDER, or - for none; the update to die after, or 0; FILE."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import anyaccel as aa


class Augmented(Dataset[tuple[Tensor, Tensor]]):
    """Rows that are changed at random, by the generators of torch, NumPy and Python."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        x = torch.linspace(-1, 1, 5) * i / 60 + torch.rand(5) + np.random.rand() + random.random()
        return x, x.sum()[None]


def train(
    folder: str | None,
    stop: int,
    workers: int,
    seed: int | None,
    sharding: str = "none",
    epochs: int = 3,
    tell: Callable[[int, float], object] = lambda step, loss: None,
) -> list[list[float]]:
    """Updates that are done before each step, and losses."""
    if seed is None:
        torch.manual_seed(5)
        np.random.seed(5)
        random.seed(5)
    loop = aa.Loop("cpu", framework="torch", seed=seed, accumulate=2, sharding=sharding)
    net = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.8)
    loader = DataLoader(Augmented(), batch_size=7, shuffle=True, num_workers=workers)
    net, optimizer, schedule, loader = loop.prepare(net, optimizer, schedule, loader)
    told = []
    for _ in loop.epochs(epochs, save=folder, every=2):
        for x, y in loader:
            loss = F.mse_loss(net(x), y)
            told.append([loop.step, float(loop.reduce(loss.detach()))])
            tell(*told[-1])
            loop.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            if stop and loop.step >= stop:
                if loop.num_processes == 1:
                    return told
                if loop.process_index == loop.num_processes - 1:
                    os.kill(os.getpid(), signal.SIGKILL)
    return told


if __name__ == "__main__":
    folder, stop, file = sys.argv[1:]
    told = train(None if folder == "-" else folder, int(stop), 1, 7)
    if aa.Loop(framework="torch").is_main_process:
        Path(file).write_text(json.dumps(told))
