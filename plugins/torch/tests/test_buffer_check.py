"""Buffers that training changes, where a step is computed in parts: told by name, with what leaves it out."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import anyaccel as aa

X = np.random.default_rng(0).normal(size=(32, 6)).astype("float32")


class Codebook(nn.Module):
    """As of vector quantization: codes that move towards the rows that are nearest to them, without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 2)
        self.register_buffer("codes", torch.randn(4, 6))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            nearest = torch.cdist(x, self.codes).argmin(1)
            self.calls += 1
            self.codes[nearest[0]] = 0.9 * self.codes[nearest[0]] + 0.1 * x[nearest == nearest[0]].mean(0)
        return self.head(x)


class Counting(nn.Linear):
    def __init__(self) -> None:
        super().__init__(6, 2)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x)


def trained(make: Callable[[], nn.Module], **settings: Any) -> tuple[np.ndarray, list[str]]:
    """Losses of the epochs, and what is warned of."""
    torch.manual_seed(0)
    data = aa.FeatureSet.from_dict("data", {"x": X, "y": X[:, :2]}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("net", make(), data.reference())], aa.Optimizer("sgd", lr=0.1), seed=0)
    losses = [aa.AppliedLoss("mse", on="net")]
    settings = {"sampler": aa.SimpleSampler(8), "epochs": 2, **settings}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", category=FutureWarning)  # torch's, of the older of two spectral norms
        phase = aa.TrainPhase("t", data=data, losses=losses, **settings)
        result = aa.Experiment("e", graph, progress="none").run_phase(phase)
    assert all(each.filename == __file__ for each in told)
    return np.asarray(result.loss), [str(each.message) for each in told]


MAKERS = {
    "parametrization": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(6, 2)),
    "hook": lambda: nn.utils.spectral_norm(nn.Linear(6, 2)),
    "codebook": Codebook,
    "BatchNorm": lambda: nn.Sequential(nn.Linear(6, 2), nn.BatchNorm1d(2)),
}
FIRST = {"parametrization": "parametrizations.weight.0._u", "hook": "weight_u", "codebook": "codes"}


@pytest.mark.parametrize("name", MAKERS)
def test_accumulated_batches_change_a_buffer_once_each_and_are_told(name: str) -> None:
    losses, (message,) = trained(MAKERS[name], accumulate=2)
    whole, nothing = trained(MAKERS[name], sampler=aa.SimpleSampler(16))
    assert nothing == []
    assert name == "codebook" or not np.allclose(losses, whole, rtol=1e-6), "there is something to tell"
    buffer = FIRST.get(name, "1.running_mean")
    assert f"phase 't' accumulates batches, and the buffer 'net/buffers/{buffer}' " in message
    assert (
        "in every call of the model, 2 times per step. A step would differ from one on the whole batch. Hint:"
        in message
    )
    assert message.endswith("or leave accumulate out")


@pytest.mark.parametrize("name", ["parametrization", "hook", "codebook"])
def test_shards_of_a_fixed_order_are_told(name: str) -> None:
    _, (message,) = trained(MAKERS[name], deterministic=True)
    assert f"phase 't' splits each batch into 8 shards, and the buffer 'net/buffers/{FIRST[name]}' " in message
    assert "8 times per step" in message and message.endswith("or leave deterministic out")


@pytest.mark.parametrize("settings", [{"accumulate": 2}, {"deterministic": True}], ids=str)
@pytest.mark.parametrize("make", [lambda: nn.Linear(6, 2), Counting])
def test_counters_and_models_without_buffers_are_not_told(
    make: Callable[[], nn.Module], settings: dict[str, Any]
) -> None:
    assert trained(make, **settings)[1] == []


def test_a_frozen_model_is_not_told() -> None:
    data = aa.FeatureSet.from_dict("data", {"x": X, "y": X[:, :2]}, ["x"], ["y"])
    norm = aa.ModelNode("norm", nn.BatchNorm1d(6), data.reference())
    graph = aa.ModelGraph([norm, aa.ModelNode("net", nn.Linear(6, 2), norm)], aa.Optimizer("sgd", lr=0.1))
    graph.freeze("norm")
    losses = [aa.AppliedLoss("mse", on="net")]
    phase = aa.TrainPhase("t", data=data, losses=losses, sampler=aa.SimpleSampler(8), accumulate=2)
    aa.Experiment("e", graph, progress="none").run_phase(phase)


def test_the_check_changes_no_number() -> None:
    torch.manual_seed(0)
    by_hand = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 2))
    optimizer, expected = torch.optim.SGD(by_hand.parameters(), 0.1), []
    for start in range(0, 32, 16):
        parts = [torch.from_numpy(X[i : i + 8]) for i in (start, start + 8)]
        values = [((by_hand(part) - part[:, :2]) ** 2).mean() for part in parts]
        expected.append(sum(value.item() for value in values) / 2)
        (sum(values) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    losses, _ = trained(MAKERS["parametrization"], accumulate=2, epochs=1)
    np.testing.assert_allclose(losses, [np.mean(expected)], rtol=1e-6)
