"""Averages of weights: beside torch's own AveragedModel, by hand."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

import anyaccel as aa
from anyaccel.errors import PhaseError

ROWS, BATCH, EPOCHS = 40, 8, 4
X = np.random.default_rng(0).normal(size=(ROWS, 4)).astype("float32")
Y = X[:, :1] - X[:, 1:2]
LOSSES = [aa.AppliedLoss("mse", on="net")]


@pytest.fixture
def data() -> aa.FeatureSet:
    return aa.FeatureSet.from_dict("data", {"x": X, "y": Y}, ["x"], ["y"])


def mlp() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))


def train(net: nn.Module, data: aa.FeatureSet, average: aa.WeightAveraging, **settings: Any) -> aa.Experiment:
    graph = aa.ModelGraph([aa.ModelNode("net", net, data.reference())], aa.Optimizer("sgd", lr=0.1))
    experiment = aa.Experiment("average", graph, progress="none")
    settings = {"losses": LOSSES, "sampler": aa.SimpleSampler(BATCH), "epochs": EPOCHS, **settings}
    experiment.run_phase(aa.TrainPhase("t", data="all", callbacks=[average], **settings))
    return experiment


def by_hand(net: nn.Module, average: AveragedModel, *, each_step: bool) -> float:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(EPOCHS):
        for i in range(0, ROWS, BATCH):
            optimizer.zero_grad()
            F.mse_loss(net(torch.tensor(X[i : i + BATCH])), torch.tensor(Y[i : i + BATCH])).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if each_step:
                average.update_parameters(net)
        if not each_step:
            average.update_parameters(net)
    average.eval()
    with torch.no_grad():
        return F.mse_loss(average(torch.tensor(X)), torch.tensor(Y)).item()


@pytest.mark.parametrize("decay", [0.9, None])
def test_equals_torchs_averaged_model(decay: float | None, data: aa.FeatureSet) -> None:
    net = mlp()
    expected = copy.deepcopy(net)
    function = None if decay is None else get_ema_multi_avg_fn(decay)
    reference = AveragedModel(expected, multi_avg_fn=function)  # type: ignore[arg-type]
    value = by_hand(expected, reference, each_step=decay is not None)

    average = aa.WeightAveraging(decay)
    experiment = train(net, data, average)
    graph = experiment.graph
    assert average.n_averaged == (EPOCHS * 5 if decay else EPOCHS)
    for name, parameter in expected.named_parameters():
        torch.testing.assert_close(net.get_parameter(name), parameter)
    before = copy.deepcopy(net.state_dict())
    with average.applied(graph):
        for name, parameter in reference.module.named_parameters():
            torch.testing.assert_close(net.get_parameter(name), parameter)
        tested = experiment.run_phase(aa.EvalPhase("test", data="all", losses=LOSSES))
    assert tested.loss == pytest.approx(value, rel=1e-5)
    for name, tensor in before.items():
        assert torch.equal(net.state_dict()[name], tensor)
    average.apply(graph)
    torch.testing.assert_close(net.get_parameter("0.weight"), reference.module.get_parameter("0.weight"))


def test_a_start_every_n_steps_and_phases_that_go_on(data: aa.FeatureSet) -> None:
    average = aa.WeightAveraging(0.5, every_n_steps=2, start_epoch=1)
    experiment = train(mlp(), data, average, epochs=3)
    assert average.n_averaged == 4  # steps 2 and 4 of two epochs
    phase = aa.TrainPhase("t", data="all", losses=LOSSES, batch_size=BATCH, epochs=2, callbacks=[average])
    experiment.run_phase(phase)
    assert average.n_averaged == 6


def test_frozen_nodes_are_left_out(data: aa.FeatureSet) -> None:
    nodes = [aa.ModelNode("body", nn.Linear(4, 3), data.reference()), aa.ModelNode("net", nn.Linear(3, 1), "body")]
    graph = aa.ModelGraph(nodes, "adam")
    graph.freeze("body")
    average = aa.WeightAveraging(0.9)
    phase = aa.TrainPhase("t", data="all", losses=LOSSES, callbacks=[average])
    aa.Experiment("average", graph, progress="none").run_phase(phase)
    only = aa.ModelGraph([aa.ModelNode("net", nn.Linear(4, 1), data.reference())])
    with pytest.raises(aa.errors.StateError):  # 'body' is not asked for, and the shapes of 'net' differ
        average.apply(only)


def test_an_average_that_is_empty_or_of_another_graph(data: aa.FeatureSet) -> None:
    graph = aa.ModelGraph([aa.ModelNode("other", mlp(), data.reference())], "adam")
    with pytest.raises(PhaseError, match=r"WeightAveraging is empty\. Available: other\. Hint: add it to"):
        aa.WeightAveraging().apply(graph)
    with pytest.raises(PhaseError, match=r"takes a ModelGraph, got 'graph'\. Hint: give experiment\.graph"):
        aa.WeightAveraging().apply("graph")  # type: ignore[arg-type]
    average = aa.WeightAveraging()
    train(mlp(), data, average)
    with (
        pytest.raises(PhaseError, match="computed for node 'net', which the graph does not have"),
        average.applied(graph),
    ):
        pass


def test_a_decay_out_of_range() -> None:
    with pytest.raises(PhaseError, match=r"WeightAveraging: decay=1 is not a number in \(0, 1\)\. Hint: write decay=0"):
        aa.WeightAveraging(1)


def test_a_node_that_is_trained_later_has_a_mean_of_its_own_epochs(data: aa.FeatureSet) -> None:
    torch.manual_seed(1)
    first = aa.ModelNode("first", nn.Linear(4, 4), data.reference())
    head = aa.ModelNode("head", nn.Linear(4, 1), first)
    graph = aa.ModelGraph([first, head], aa.Optimizer("sgd", lr=0.05)).freeze("head")
    average, weights = aa.WeightAveraging(), list[np.ndarray]()

    class Weights(aa.Callback):
        def epoch_end(self, run: Any) -> None:
            weights.append(run.model("head").weight.detach().numpy().copy())

    settings: dict[str, Any] = {"data": "all", "losses": aa.AppliedLoss("mse", on="head"), "epochs": 3}
    experiment = aa.Experiment("average", graph, progress="none")
    experiment.run_phase(aa.TrainPhase("one", callbacks=[average], **settings))
    graph.unfreeze("head")
    experiment.run_phase(aa.TrainPhase("two", callbacks=[average, Weights()], **settings))
    average.apply(graph)
    np.testing.assert_allclose(head.model.weight.detach().numpy(), np.mean(weights, axis=0), rtol=1e-6)


def test_statistics_of_the_averaged_weights_by_torchs_update_bn(data: aa.FeatureSet) -> None:
    """The module is the user's own: what `update_bn` writes is what the graph evaluates and saves."""
    net = mlp()
    expected = copy.deepcopy(net)
    reference = AveragedModel(expected)
    by_hand(expected, reference, each_step=False)
    average = aa.WeightAveraging()
    graph = train(net, data, average).graph
    batches = [torch.tensor(X[i : i + BATCH]) for i in range(0, ROWS, BATCH)]
    update_bn(batches, reference)
    average.apply(graph)
    stale = graph.run(aa.EvalPhase(data="all", losses=LOSSES), progress="none").loss
    update_bn(batches, net)
    with torch.no_grad():
        value = F.mse_loss(reference(torch.tensor(X)), torch.tensor(Y)).item()
    fresh = graph.run(aa.EvalPhase(data="all", losses=LOSSES), progress="none").loss
    assert fresh == pytest.approx(value, rel=1e-5)
    assert abs(stale - fresh) > 1e-4
    np.testing.assert_allclose(graph.state()["net/buffers/1.running_mean"], reference.module[1].running_mean, rtol=1e-5)
