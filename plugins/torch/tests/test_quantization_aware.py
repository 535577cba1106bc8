"""Quantization-aware training with torch's fake quantization: as by hand, over two phases."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
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


def layers() -> list[nn.Module]:
    return [nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)]


def prepared(network: Callable[[], list[nn.Module]] = layers) -> Any:
    quantization = pytest.importorskip("torch.ao.quantization")
    torch.manual_seed(0)
    net = nn.Sequential(*network()).train()
    net.qconfig = quantization.get_default_qat_qconfig("x86")
    return quantization.prepare_qat(net)


def graph_of(net: nn.Module, data: aa.FeatureSet) -> aa.ModelGraph:
    return aa.ModelGraph([aa.ModelNode("net", net, data.reference())], "adam")


def train(graph: aa.ModelGraph) -> None:
    losses = [aa.AppliedLoss("mse", on="net")]
    phase = aa.TrainPhase("t", data="all", losses=losses, sampler=aa.SimpleSampler(8), epochs=2)
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


def test_a_saved_state_goes_on_in_a_fresh_model_to_the_bit(data: aa.FeatureSet) -> None:
    """Observers have the shape of their ranges after a batch only."""
    graph, fresh = graph_of(prepared(), data), graph_of(prepared(), data)
    train(graph)
    state = graph.state()
    assert state["net/buffers/0.weight_fake_quant.scale"].shape == (8,)
    assert fresh.state()["net/buffers/0.weight_fake_quant.scale"].shape == (1,)
    fresh.load_state(state)
    assert_same(fresh["net"].model, graph["net"].model)
    train(graph)
    train(fresh)
    assert_same(fresh["net"].model, graph["net"].model)


def test_a_run_goes_on_from_a_checkpoint_in_a_fresh_model(data: aa.FeatureSet, tmp_path: Path) -> None:
    class Breaks(aa.Callback):
        in_epoch = 1

        def step_end(self, run: aa.Run) -> None:
            if (run.epoch, run.step) == (self.in_epoch, 1):
                raise InterruptedError("in the middle")

    def phase(**settings: Any) -> aa.TrainPhase:
        losses = [aa.AppliedLoss("mse", on="net")]
        return aa.TrainPhase("t", data="all", losses=losses, sampler=aa.SimpleSampler(8), epochs=3, **settings)

    whole = graph_of(prepared(), data)
    whole.run(phase(), progress="none")
    breaks = Breaks()
    broken = phase(checkpoint=aa.Checkpoint(tmp_path / "run", every=1), callbacks=[breaks])
    with pytest.raises(InterruptedError):
        graph_of(prepared(), data).run(broken, progress="none")
    breaks.in_epoch = -1
    fresh = graph_of(prepared(), data)
    resumed = fresh.run(broken, resume="auto", progress="none")
    assert any(event.kind == "checkpoint" and "resumes" in event.message for event in resumed.events)
    assert_same(fresh["net"].model, whole["net"].model)


def test_a_quantized_network_of_convolutions_is_saved_and_loaded_with_a_fresh_model(tmp_path: Path) -> None:
    images = np.random.default_rng(0).normal(size=(16, 3, 8, 8)).astype("float32")
    data = aa.FeatureSet.from_dict("data", {"x": images, "y": images[:, :1, 0, 0]}, ["x"], ["y"])

    def network() -> Any:
        return [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 1)]

    graph = graph_of(prepared(network), data)
    train(graph)
    graph.save(tmp_path / "saved")
    loaded = aa.ModelGraph.load(tmp_path / "saved", models={"net": prepared(network)}, feature_sets=[data])
    assert_same(loaded["net"].model, graph["net"].model)
    quantization = pytest.importorskip("torch.ao.quantization")
    one, other = (quantization.convert(each["net"].model.eval()) for each in (graph, loaded))
    assert torch.equal(one[4].weight(), other[4].weight())  # what is served in 8 bits


def test_other_differences_of_shape_are_refused_as_ever(data: aa.FeatureSet) -> None:
    graph, fresh = graph_of(prepared(), data), graph_of(prepared(), data)
    train(graph)
    state = graph.state()
    state["net/buffers/0.weight_fake_quant.fake_quant_enabled"] = np.ones(3, np.int64)
    before = {name: value.copy() for name, value in fresh.state().items()}
    with pytest.raises(StateError, match=r"fake_quant_enabled is int64\[3\] in the state and int64\[1\] in the graph"):
        fresh.load_state(state)
    after = fresh.state()
    assert all(np.array_equal(after[name], value) for name, value in before.items())
