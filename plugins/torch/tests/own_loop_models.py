"""Models and rows of the tests of own loops; no anyaccel in them, so that a loop by hand has the same."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset


def rows_of(n: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Inputs [n, 5] and targets [n, 1]."""
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(n, 5, generator=generator, dtype=torch.float64)
    y = x.sum(1, keepdim=True) + 0.1 * torch.randn(n, 1, generator=generator, dtype=torch.float64)
    return x.to(dtype), y.to(dtype)


def masked_rows() -> tuple[Tensor, Tensor, Tensor]:
    """Rows of which some count; in the first batch none of the first three, which are of the first of two processes."""
    x, y = rows_of(24)
    mask = torch.ones(24, 1, dtype=torch.float64)
    mask[::2] = mask[0:3] = mask[6:9] = 0.0
    return x, y, mask


def network(seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """Two layers; the same weights each time, and the global generator as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1)).to(dtype)


def normalizing() -> nn.Sequential:
    """With batch normalization."""
    first, _, last = network(3)
    return nn.Sequential(first, nn.BatchNorm1d(8, dtype=torch.float64), last)


class Net(nn.Module):
    """Is trained through a method, and has a part that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = network(1)
        self.unused = nn.Linear(2, 2).double()
        nn.init.ones_(self.unused.weight)
        nn.init.ones_(self.unused.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.mse_loss(self.layers(x), y)


class Generator(nn.Module):
    """Makes rows of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5).double()
        with torch.no_grad():
            self.layer.weight.copy_(rows_of(5)[0])
            self.layer.bias.zero_()

    def forward(self, z: Tensor) -> Tensor:
        return torch.tanh(self.layer(z))


class Rows(Dataset[dict[str, Any]]):
    """Rows that know their number."""

    def __init__(self, n: int) -> None:
        self._n = n

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"x": torch.full((2,), float(i)), "text": str(i)}
