"""`find_batch_size` in several processes, one of which runs out of memory somewhere; prints what each tried and got."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from own_loop_models import network, normalizing, rows_of
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

import anyaccel as aa

FITS = 8
"""The largest batch for which there is memory."""
CASES = ("data", "forward", "backward", "norm", "step", "end", "save", "all", "never")


def run_out() -> None:
    """An error of torch itself."""
    torch.empty(2**55)


class Rows(Dataset[Any]):
    """Rows that are read into memory, which may run out."""

    def __init__(self, fails: bool) -> None:
        self._rows, self._fails = TensorDataset(*rows_of(70)), fails

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, i: int) -> Any:
        if self._fails and i >= 25:
            raise MemoryError("8 bytes")
        return self._rows[i]


class Failing(nn.Module):
    """A model whose second pass may run out of memory."""

    def __init__(self, inner: nn.Module, fails: bool) -> None:
        super().__init__()
        self.inner, self.fails, self.n_passes = inner, fails, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.n_passes += 1
        if self.fails and self.n_passes == 2:
            run_out()
        outputs: torch.Tensor = self.inner(x)
        return outputs


def trained(loop: Any, case: str, folder: Path, size: int) -> list[Any]:
    """The losses and weights of a training with batches of a size."""
    fails = (size > FITS or case == "never") and (case == "all" or loop.process_index == loop.num_processes - 1)
    inner = normalizing() if case == "norm" else network()
    net: Any = Failing(inner, fails and case in ("forward", "norm", "all", "never"))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    rows = Rows(fails and case == "data")
    net, optimizer, loader = loop.prepare(net, optimizer, DataLoader(rows, batch_size=size))
    losses = []
    for number, (x, y) in enumerate(loader):
        outputs = net(x)
        if fails and case == "backward" and number == 1:
            outputs.register_hook(lambda _: run_out())
        loss = F.mse_loss(outputs, y)
        loop.backward(loss)
        if fails and case == "step" and number == 1:
            run_out()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loop.reduce(loss.detach())))
    if fails and case == "save":
        run_out()
    if case == "save":
        loop.save(folder / "checkpoint")
    if fails and case == "end":
        run_out()
    return [size, losses, [float(tensor.double().sum()) for tensor in net.state_dict().values()]]


def told(case: str, folder: Path) -> Any:
    """What one case comes to in this process."""
    loop = aa.Loop("cpu", framework="torch", sync_batchnorm=True)
    tried: list[int] = []

    def train(size: int) -> list[Any]:
        tried.append(size)
        return trained(loop, case, folder, size)

    try:
        return [tried, loop.step, loop.find_batch_size(train, start=4 if case == "never" else 32), loop.step]
    except (RuntimeError, MemoryError) as error:
        return [tried, str(error)]


def refusals() -> list[str]:
    """What is no search in several processes."""
    different, sharded = (aa.Loop("cpu", framework="torch", sharding=sharding) for sharding in ("none", "full"))
    errors = []
    for loop, start in ((different, 8 + different.process_index), (sharded, 8)):
        try:
            loop.find_batch_size(lambda size: size, start=start)
        except aa.errors.ConfigError as error:
            errors.append(str(error))
    return errors


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    results: dict[str, Any] = {case: told(case, folder) for case in CASES}
    results["refusals"] = refusals()
    rank = aa.Loop("cpu", framework="torch").process_index
    (folder / f"{rank}.json").write_text(json.dumps(results))
