"""Optimizers that are functions: `functools.partial` of a class, a factory of the user's own; and LBFGS in a step."""

from __future__ import annotations

import copy
import functools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import anyaccel as aa
from anyaccel.errors import GraphError, SpecError

X = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
Y = X[:, :1] - X[:, 1:2]


@pytest.fixture
def data() -> aa.FeatureSet:
    return aa.FeatureSet.from_dict("data", {"x": X, "y": Y}, ["x"], ["y"])


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(4, 1)


def train(net: nn.Module, data: aa.FeatureSet, optimizer: Any, **settings: Any) -> Any:
    graph = aa.ModelGraph([aa.ModelNode("net", net, data.reference())], optimizer)
    settings = {"losses": [aa.AppliedLoss("mse", on="net")], "sampler": aa.SimpleSampler(8), "epochs": 3, **settings}
    return aa.Experiment("made", graph, progress="none").run_phase(aa.TrainPhase("t", data="all", **settings))


def by_hand(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(3):
        for i in range(0, 32, 8):
            optimizer.zero_grad()
            F.mse_loss(net(torch.tensor(X[i : i + 8])), torch.tensor(Y[i : i + 8])).backward()  # type: ignore[no-untyped-call]
            optimizer.step()


def decoupled(parameters: Any, lr: float, decay: float = 0.1) -> torch.optim.Optimizer:
    """A factory: no decay of biases."""
    given = list(parameters)
    groups = [
        {"params": [p for p in given if p.ndim > 1], "weight_decay": decay},
        {"params": [p for p in given if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr)


MADE = {
    "partial": (
        aa.Optimizer(functools.partial(torch.optim.NAdam, betas=(0.8, 0.9)), lr=0.05),
        lambda net: torch.optim.NAdam(net.parameters(), lr=0.05, betas=(0.8, 0.9)),
    ),
    "factory": (aa.Optimizer(decoupled, lr=0.05, decay=0.3), lambda net: decoupled(net.parameters(), 0.05, 0.3)),
    "lambda": (
        aa.Optimizer(lambda parameters, lr: torch.optim.Adagrad(parameters, lr=lr), lr=0.05),
        lambda net: torch.optim.Adagrad(net.parameters(), lr=0.05),
    ),
}


@pytest.mark.parametrize("name", MADE)
def test_what_makes_an_optimizer_trains_as_by_hand(name: str, data: aa.FeatureSet) -> None:
    optimizer, make = MADE[name]
    net = linear()
    expected = copy.deepcopy(net)
    train(net, data, optimizer)
    by_hand(expected, make(expected))
    torch.testing.assert_close(net.weight, expected.weight)
    torch.testing.assert_close(net.bias, expected.bias)


def test_an_object_that_begins_again_without_its_moments_says_so(data: aa.FeatureSet) -> None:
    """In a second graph, and in a loop of one's own; not in another phase of the graph that has them."""
    net = linear()
    adam = torch.optim.Adam(net.parameters(), lr=0.05)
    graph = aa.ModelGraph([aa.ModelNode("net", net, data.reference())], adam)
    phase = aa.TrainPhase("t", data="all", losses=[aa.AppliedLoss("mse", on="net")], epochs=1)
    graph.run(phase, progress="none")
    graph.run(phase, progress="none")
    with pytest.warns(UserWarning, match="the Adam has already trained another graph, .* starts without"):
        train(net, data, adam)
    with pytest.warns(UserWarning, match="the Adam has already trained another graph, .* starts without") as warned:
        by_hand(net, adam)
    assert warned[0].filename == __file__
    net = linear()
    adam = torch.optim.Adam(net.parameters(), lr=0.05)
    train(net, data, adam)
    schedule = torch.optim.lr_scheduler.StepLR(adam, 10)  # wraps step()
    with pytest.warns(UserWarning, match="the Adam has already trained another graph, .* starts without") as warned:
        by_hand(net, adam)
    assert warned[0].filename == __file__ and schedule.last_epoch == 0


def test_an_object_without_moments_loses_nothing(data: aa.FeatureSet) -> None:
    net = linear()
    sgd = torch.optim.SGD(net.parameters(), lr=0.05)
    train(net, data, sgd)
    train(net, data, sgd)
    by_hand(net, sgd)


def test_a_function_that_makes_none_is_refused(data: aa.FeatureSet) -> None:
    with pytest.raises(SpecError, match=r"<lambda> is not an optimizer of torch\. Available: sgd"):
        train(linear(), data, aa.Optimizer(lambda parameters, lr: None))


def test_lbfgs_is_refused_with_a_hint_that_works(data: aa.FeatureSet) -> None:
    with pytest.raises(SpecError, match=r"LBFGS needs a closure .*Hint: .*custom step: TrainPhase\(step=function\)"):
        train(linear(), data, aa.Optimizer(torch.optim.LBFGS))
    made: dict[str, torch.optim.Optimizer] = {}

    def step(models: Any, batch: Any, optimizers: Any) -> Tensor:
        lbfgs = made.setdefault("net", torch.optim.LBFGS(models["net"].parameters(), lr=0.5))
        return _lbfgs_step(models["net"], lbfgs, batch["x"], batch["y"])

    net = linear()
    expected = copy.deepcopy(net)
    train(net, data, "sgd", step=step, losses=[])
    optimizer = torch.optim.LBFGS(expected.parameters(), lr=0.5)
    for _ in range(3):
        for i in range(0, 32, 8):
            _lbfgs_step(expected, optimizer, torch.tensor(X[i : i + 8]), torch.tensor(Y[i : i + 8]))
    assert torch.equal(net.weight, expected.weight)


def _lbfgs_step(net: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    return optimizer.step(closure)  # type: ignore[arg-type, return-value]


def test_an_exported_program_has_no_modes_and_trains_once_it_has(data: aa.FeatureSet) -> None:
    net = linear()
    rows = torch.export.Dim("rows")
    exported: Any = torch.export.export(net, (torch.ones(2, 4),), dynamic_shapes=({0: rows},)).module()
    with pytest.raises(GraphError, match=r"cannot change between training and evaluation mode.*Hint: .*lambda \*mode"):
        train(exported, data, "adam")
    exported.train = exported.eval = lambda *mode: exported
    train(net, data, "adam")
    train(exported, data, "adam")
    torch.testing.assert_close(exported.get_parameter("weight"), net.weight)
