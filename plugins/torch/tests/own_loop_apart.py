"""Processes of which the last does something else, each case by its name; all end with an error that says who."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from own_loop_models import network, normalizing, rows_of
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, Sampler, TensorDataset

import anyaccel as aa
from anyaccel_torch.replica_group import TorchReplicaGroup

case, folder = sys.argv[1:]
if case == "late" and int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
    TorchReplicaGroup.separate_messages = lambda self: time.sleep(600)  # type: ignore[method-assign]
loop = aa.Loop("cpu", framework="torch")
is_other = loop.process_index == loop.num_processes - 1
net: Any = normalizing() if case == "norm" else network(1 if case == "weights" and is_other else 0)


class Stream(IterableDataset[Any]):
    """Rows of unknown number, of which the last process may have fewer."""

    def __iter__(self) -> Iterator[Any]:
        return iter(zip(*(part[: 19 if case == "stream" and is_other else 30] for part in rows_of(30)), strict=True))


class Own(Sampler[int]):
    """An order of a generator that nobody finds."""

    def __iter__(self) -> Iterator[int]:
        return iter(np.random.default_rng(int(is_other)).permutation(30).tolist())

    def __len__(self) -> int:
        return 30


class Wide(Stream):
    """Batches, of which the second is larger in the last process."""

    def __iter__(self) -> Iterator[Any]:
        return iter(zip(*(part.split([4, 6, 20] if is_other else [4, 4, 22]) for part in rows_of(30)), strict=True))


optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
x, y = rows_of(30)
if case == "split by hand":
    x, y = x[int(is_other) :: 2], y[int(is_other) :: 2]
n_rows = 20 if case == "length" and not is_other else 30
loader: Any = DataLoader(TensorDataset(*rows_of(n_rows)), batch_size=5)
if case == "split by hand":
    loader = DataLoader(TensorDataset(x, y), batch_size=5)
if case == "own order":
    loader = DataLoader(TensorDataset(x, y), batch_size=5, sampler=Own())
if case == "other batches":
    loader = list(x.flip(0).split(5) if is_other else x.split(5)).__iter__()
if case.startswith("stream"):
    loader = DataLoader(Wide() if "rows" in case else Stream(), batch_size=None if "rows" in case else 5)
net, optimizer, loader = loop.prepare(net, optimizer, loader)
if case == "frozen weights":
    loop.prepare(network(int(is_other)), frozen=True)
if case == "later weights" and is_other:
    torch.nn.init.zeros_(net[0].weight)
if case == "rates" and is_other:
    optimizer.param_groups[0]["lr"] = 0.01
if case == "by hand":
    print(sum(len(x) for x, _ in loop.prepare(DataLoader(TensorDataset(*rows_of(9)), batch_size=4))))
for number, (x, y) in enumerate(loader):
    if number == 2 and case == "raises" and is_other:
        raise ValueError("in the loss")
    if number == 2 and case == "killed" and is_other:
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 2 and case == "hangs" and is_other:
        time.sleep(600)
    if number == 2 and case == "alone":
        time.sleep(3)  # so that the first process, which waits in `save`, is the first whose waiting ends
    if number == 2 and case == "calls":
        loop.reduce(1.0) if is_other else loop.any(False)
    loss = F.mse_loss(net(x), y)
    if case == "plain":
        loss.backward()
    else:
        loop.backward(loss)
    optimizer.step()
    if number == 1 and case == "alone" and loop.is_main_process:
        loop.save(folder)
