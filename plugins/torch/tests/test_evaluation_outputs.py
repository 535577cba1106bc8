"""Outputs that a module gives in evaluation only, such as caches: kept there, and read by nothing that trains."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import anyaccel as aa
from anyaccel.errors import PhaseError

ROWS, BATCH = 24, 8


class Cached(nn.Module):
    """As RWKV and XLNet: the cache is there in evaluation, in training None."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> dict[str, Any]:
        hidden = torch.tanh(self.body(x))
        return {"cache": None if self.training else hidden, "logits": self.head(hidden)}


@pytest.fixture
def data() -> aa.FeatureSet:
    random = np.random.default_rng(0)
    x = random.standard_normal((ROWS, 4)).astype("float32")
    data = aa.FeatureSet.from_dict("data", {"x": x, "y": (x[:, 0] > 0).astype("int64")}, "x", "y")
    data.add_splits({"train": np.arange(16), "val": np.arange(16, ROWS)})
    return data


def made(data: aa.FeatureSet, model: nn.Module, *more: aa.ModelNode) -> aa.ModelGraph:
    node = aa.ModelNode("net", model, {"x": data.reference("x")})
    return aa.ModelGraph([node, *more], aa.Optimizer("sgd", lr=0.1))


def phase(losses: Any, **settings: Any) -> aa.TrainPhase:
    return aa.TrainPhase(
        "train", data="train", losses=losses, sampler=aa.SimpleSampler(BATCH), epochs=2, validation="val", **settings
    )


def run(graph: aa.ModelGraph, one: Any) -> Any:
    return aa.Experiment("test", graph, progress="none").run_phase(one)


ON_LOGITS = aa.AppliedLoss("cross_entropy", on="net", inputs=["outputs.logits", "targets"])


def test_a_module_with_a_cache_trains_and_validates_as_by_hand(data: aa.FeatureSet) -> None:
    torch.manual_seed(0)
    model = Cached()
    own = copy.deepcopy(model)
    result = run(made(data, model), phase(ON_LOGITS))
    x, y = torch.from_numpy(data.array("x").copy()), torch.from_numpy(data.array("y").copy())
    optimizer, validated = torch.optim.SGD(own.parameters(), lr=0.1), []
    for _ in range(2):
        for start in (0, 8):
            loss = nn.functional.cross_entropy(own.train()(x[start : start + 8])["logits"], y[start : start + 8])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        validated.append(nn.functional.cross_entropy(own.eval()(x[16:])["logits"], y[16:]).item())
    np.testing.assert_allclose(result.figure("val_loss"), validated, rtol=1e-5)
    for mine, other in zip(model.parameters(), own.parameters(), strict=True):
        torch.testing.assert_close(mine, other)


def test_the_cache_is_an_output_of_an_evaluation(data: aa.FeatureSet) -> None:
    model = Cached()
    graph = made(data, model)
    run(graph, phase(ON_LOGITS))
    predicted = run(graph, aa.EvalPhase("predict", data="val", outputs="net"))
    with torch.no_grad():
        expected = model.eval()(torch.from_numpy(data.array("x")[16:].copy()))
    for name in ("cache", "logits"):
        np.testing.assert_allclose(predicted.prediction(f"net.{name}"), expected[name].numpy(), rtol=1e-5)


def test_a_loss_on_the_cache_is_refused(data: aa.FeatureSet) -> None:
    losses = [ON_LOGITS, aa.AppliedLoss("mse", on="net", inputs=["outputs.cache", "outputs.cache"], label="cache")]
    with pytest.raises(
        PhaseError, match=r"returns 'cache' in evaluation, but not in training.*Available: net\.logits"
    ) as told:
        run(made(data, Cached()), phase(losses))
    assert "freeze 'net'" in told.value.hint


def test_a_trained_node_whose_cache_feeds_another_is_refused_and_frozen_is_not(data: aa.FeatureSet) -> None:
    graph = made(data, Cached(), aa.ModelNode("head", nn.Linear(6, 2), "net.cache"))
    loss = aa.AppliedLoss("cross_entropy", on="head")
    with pytest.raises(PhaseError, match="returns 'cache' in evaluation, but not in training"):
        run(graph, phase(loss))
    graph.freeze("net")  # as the hint says
    assert np.isfinite(run(graph, phase(loss)).loss).all()
