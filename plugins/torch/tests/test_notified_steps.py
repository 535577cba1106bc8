"""Uncompiled steps of one call, each of which a `step_end` hook hears: the numbers of steps that nobody listens to."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import anyaccel as aa
from anyaccel_torch.program import TorchProgram

ROWS, BATCH = 96, 4
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, 5)).astype("float32")
Y = (X @ RNG.normal(size=(5, 1))).astype("float32")


class Listens(aa.Callback):
    def __init__(self, act: Any = None) -> None:
        self.act = act
        self.losses: list[float] = []

    def step_end(self, run: aa.Run) -> None:
        self.losses.append(run.step_losses()["net"])
        if self.act is not None:
            self.act(run)


@pytest.fixture
def data() -> aa.FeatureSet:
    return aa.FeatureSet.from_dict("data", {"x": X, "y": Y}, ["x"], ["y"])


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    asked: list[int] = []
    plain = TorchProgram.train_and_notify

    def counted(self: Any, columns: Any, orders: Any, start: int, n_steps: int, *rest: Any) -> Any:
        asked.append(n_steps)
        return plain(self, columns, orders, start, n_steps, *rest)

    monkeypatch.setattr(TorchProgram, "train_and_notify", counted)
    return asked


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))


def train(net: nn.Module, data: aa.FeatureSet, *callbacks: aa.Callback, **settings: Any) -> Any:
    graph = aa.ModelGraph([aa.ModelNode("net", net, data.reference())], "adam")
    given: dict[str, Any] = {"sampler": aa.SimpleSampler(BATCH), "compile": "off", "epochs": 2, **settings}
    losses = [aa.AppliedLoss("mse", on="net")]
    return graph.run(aa.TrainPhase("t", data="all", losses=losses, callbacks=callbacks, **given), progress="none")


def assert_same(actual: nn.Module, expected: nn.Module) -> None:
    for name, value in expected.state_dict().items():
        assert torch.equal(actual.state_dict()[name], value), name


def test_a_listened_training_equals_the_loop_by_hand(data: aa.FeatureSet, calls: list[int]) -> None:
    net, listens = network(), Listens()
    expected = copy.deepcopy(net)
    train(net, data, listens)
    assert sum(calls) == 2 * ROWS // BATCH
    assert max(calls) > 1
    optimizer, losses = torch.optim.Adam(expected.parameters(), lr=1e-3, fused=True), []
    for _ in range(2):
        for i in range(0, ROWS, BATCH):
            loss = F.mse_loss(expected(torch.tensor(X[i : i + BATCH])), torch.tensor(Y[i : i + BATCH]))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.item())
    assert_same(net, expected)
    assert listens.losses == losses


def test_a_listener_may_evaluate_the_model_and_leave_it_so(data: aa.FeatureSet) -> None:
    """BatchNorm would use other statistics, and keep its own, if the next step did not train."""

    def evaluate(run: aa.Run) -> None:
        with torch.no_grad():
            run.model("net").eval()(torch.tensor(X))

    net = network()
    expected = copy.deepcopy(net)
    train(net, data, Listens(evaluate))
    train(expected, data)
    assert_same(net, expected)


def test_an_error_of_a_listener_is_not_told_as_one_of_the_model(data: aa.FeatureSet) -> None:
    def fails(run: aa.Run) -> None:
        if run.step == 11:
            raise RuntimeError("shape mismatch in my own plot")

    with pytest.raises(RuntimeError, match=r"^shape mismatch in my own plot$") as raised:
        train(network(), data, Listens(fails))
    assert type(raised.value) is RuntimeError


def test_a_training_that_is_stopped_has_done_the_steps_that_were_told(data: aa.FeatureSet) -> None:
    net, other = network(), network()
    stopped = train(net, data, Listens(lambda run: run.stop("enough") if run.step == 10 else None))
    assert [epoch.steps for epoch in stopped.epochs] == [11]
    rows = aa.FeatureSet.from_dict("data", {"x": X[: 11 * BATCH], "y": Y[: 11 * BATCH]}, ["x"], ["y"])
    train(other, rows, epochs=1)
    assert_same(net, other)


def test_accumulated_batches_are_told_too(data: aa.FeatureSet) -> None:
    net, other, listens = network(), network(), Listens()
    with pytest.warns(UserWarning, match="accumulates batches, and the buffer 'net/buffers/1.running_mean'"):
        train(net, data, listens, accumulate=2)
    with pytest.warns(UserWarning, match="accumulates batches, and the buffer 'net/buffers/1.running_mean'"):
        train(other, data, accumulate=2)
    assert_same(net, other)
    assert len(listens.losses) == 2 * ROWS // BATCH // 2
