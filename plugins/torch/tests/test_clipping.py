"""Gradients clipped by value: beside `torch.nn.utils.clip_grad_value_` in a loop by hand."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import anyaccel as aa

ROWS, BATCH, EPOCHS, LIMIT = 40, 8, 3, 0.02
X = np.random.default_rng(0).normal(size=(ROWS, 4)).astype("float32")
Y = X[:, :1] - 3 * X[:, 1:2]
OPTIMIZERS: dict[str, tuple[aa.Optimizer, Any]] = {
    "sgd": (aa.Optimizer("sgd", lr=0.1, clip_value=LIMIT), lambda p: torch.optim.SGD(p, lr=0.1)),
    "adamw": (
        aa.Optimizer("adamw", lr=0.01, weight_decay=0.1, clip_value=LIMIT),
        lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    ),
    "a class": (
        aa.Optimizer(torch.optim.RMSprop, lr=0.01, clip_value=LIMIT),
        lambda p: torch.optim.RMSprop(p, lr=0.01),
    ),
}


@pytest.fixture
def data() -> aa.FeatureSet:
    return aa.FeatureSet.from_dict("data", {"x": X, "y": Y}, ["x"], ["y"])


def mlp() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def by_hand(net: nn.Module, make: Any, accumulate: int = 1) -> int:
    """Train, and return how many elements of gradients were clipped."""
    optimizer, clipped = make(net.parameters()), 0
    for _ in range(EPOCHS):
        for i in range(0, ROWS, BATCH):
            optimizer.zero_grad()
            for part in range(i, i + BATCH, BATCH // accumulate):
                x, y = (torch.tensor(values[part : part + BATCH // accumulate]) for values in (X, Y))
                (F.mse_loss(net(x), y) / accumulate).backward()
            clipped += sum(int((p.grad.abs() > LIMIT).sum()) for p in net.parameters() if p.grad is not None)
            nn.utils.clip_grad_value_(net.parameters(), LIMIT)
            optimizer.step()
    return clipped


def train(net: nn.Module, data: aa.FeatureSet, spec: aa.Optimizer, **settings: Any) -> Any:
    graph = aa.ModelGraph([aa.ModelNode("net", net, data.reference())], spec)
    settings = {"losses": aa.AppliedLoss("mse", on="net"), "sampler": aa.SimpleSampler(BATCH), **settings}
    return graph.run(aa.TrainPhase(data="all", epochs=EPOCHS, **settings), progress="none")


def assert_close(actual: nn.Module, expected: nn.Module, tolerance: float = 1e-6) -> None:
    for name, value in expected.named_parameters():
        torch.testing.assert_close(actual.get_parameter(name), value, rtol=tolerance, atol=tolerance, msg=name)


@pytest.mark.parametrize(
    ("name", "compile_mode"),
    [
        ("sgd", "off"),
        ("adamw", "off"),
        ("a class", "off"),
        pytest.param("sgd", "steps", marks=pytest.mark.whole),
        ("adamw", "steps"),
    ],
)
def test_equals_clip_grad_value(name: str, compile_mode: str, data: aa.FeatureSet) -> None:
    spec, make = OPTIMIZERS[name]
    net = mlp()
    expected = copy.deepcopy(net)
    results = train(net, data, spec, compile=compile_mode)
    assert by_hand(expected, make) > 50
    assert_close(net, expected, 1e-6 if compile_mode == "off" else 2e-5)
    if compile_mode == "steps":
        assert any("compiled" in event.message for event in results.events if event.kind == "compile")


def test_accumulated_gradients_are_clipped_as_a_whole(data: aa.FeatureSet) -> None:
    spec, make = OPTIMIZERS["sgd"]
    net = mlp()
    expected = copy.deepcopy(net)
    train(net, data, spec, sampler=aa.SimpleSampler(BATCH // 2), accumulate=2)
    by_hand(expected, make, accumulate=2)
    assert_close(net, expected)


def test_the_optimizer_of_a_step_of_your_own_clips(data: aa.FeatureSet) -> None:
    def step(models: Any, batch: Any, optimizers: Any) -> dict[str, Any]:
        optimizers["net"].zero_grad()
        loss = F.mse_loss(models["net"](batch["x"]), batch["y"])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizers["net"].step()
        return {"loss": loss}

    spec, make = OPTIMIZERS["sgd"]
    net = mlp()
    expected = copy.deepcopy(net)
    train(net, data, spec, losses=(), step=step)
    by_hand(expected, make)
    assert_close(net, expected)


def test_two_nodes_are_clipped_as_one(data: aa.FeatureSet) -> None:
    """A value needs no norm over nodes."""
    spec, make = OPTIMIZERS["sgd"]
    net = mlp()
    expected = copy.deepcopy(net)
    nodes = [aa.ModelNode("a", net[:2], data.reference()), aa.ModelNode("b", net[2], "a")]
    phase = aa.TrainPhase(data="all", losses=aa.AppliedLoss("mse", on="b"), sampler=aa.SimpleSampler(BATCH))
    for _ in range(EPOCHS):
        aa.ModelGraph(nodes, spec).run(phase, progress="none")
    by_hand(expected, make)
    assert_close(net, expected)
