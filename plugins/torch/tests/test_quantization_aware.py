"""Quantization-aware training with torch's fake quantization: as by hand, over two phases."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import anyaccel as aa
from anyaccel.errors import StateError

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch moves it into a package of its own
    pytest.mark.filterwarnings("ignore::UserWarning:torch"),
]
X = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
Y = X[:, :1] - X[:, 1:2]


@pytest.fixture
def data() -> aa.FeatureSet:
    return aa.FeatureSet.from_dict("data", {"x": X, "y": Y}, ["x"], ["y"])


def prepared() -> Any:
    quantization = pytest.importorskip("torch.ao.quantization")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).train()
    net.qconfig = quantization.get_default_qat_qconfig("x86")
    return quantization.prepare_qat(net)


def graph_of(net: nn.Module, data: aa.FeatureSet) -> aa.ModelGraph:
    return aa.ModelGraph([aa.ModelNode("net", net, data.reference())], "adam")


def train(graph: aa.ModelGraph) -> None:
    losses = [aa.AppliedLoss("mse", on="net")]
    phase = aa.TrainPhase("t", data="all", losses=losses, sampler=aa.SimpleSampler(8), n_epochs=2)
    aa.Experiment("quantized", graph, progress="none").run_phase(phase)


def assert_same(actual: nn.Module, expected: nn.Module) -> None:
    for name, value in expected.state_dict().items():
        assert torch.equal(actual.state_dict()[name], value), name


def test_two_phases_equal_the_loop_by_hand_ranges_included(data: aa.FeatureSet) -> None:
    net = prepared()
    expected = copy.deepcopy(net)
    graph = graph_of(net, data)
    train(graph)
    train(graph)
    optimizer = torch.optim.Adam(expected.parameters(), lr=1e-3, fused=True)
    for _ in range(4):
        for i in range(0, 32, 8):
            optimizer.zero_grad()
            F.mse_loss(expected(torch.tensor(X[i : i + 8])), torch.tensor(Y[i : i + 8])).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    assert_same(net, expected)


def test_a_saved_state_is_refused_by_a_model_that_has_seen_no_batch(data: aa.FeatureSet) -> None:
    """Observers have the shape of their ranges after a batch only."""
    graph, fresh = graph_of(prepared(), data), graph_of(prepared(), data)
    train(graph)
    with pytest.raises(StateError, match=r"scale is float32\[8\] in the state and float32\[1\] in the graph"):
        fresh.load_state(graph.state())
