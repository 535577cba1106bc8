"""run.measure_step with torch: operations and activations, beside counts by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import anyaccel as aa
from anyaccel.errors import PhaseError

ROWS, BATCH = 96, 32


class Measuring(aa.Callback):
    def __init__(self):
        self.stats = []

    def after_loading(self, run):
        self.stats.append(run.stats)
        self.stats.append(run.measure_step())

    def epoch_end(self, run):
        self.stats.append(run.stats)


def measured(*modules, shape=(6,), remat="", **settings):
    x = np.random.default_rng(0).normal(size=(ROWS, *shape)).astype("float32")
    data = aa.FeatureSet.from_dict("d", {"x": x, "y": x.reshape(ROWS, -1)[:, :1]}, ["x"], ["y"])
    again = {"remat": remat} if remat else {}
    nodes = [aa.ModelNode("n0", modules[0], data.reference(), **again)]
    for i, module in enumerate(modules[1:], start=1):
        nodes.append(aa.ModelNode(f"n{i}", module, f"n{i - 1}"))
    watch = Measuring()
    losses = [aa.AppliedLoss("mse", on=nodes[-1].label)]
    phase = aa.TrainPhase(
        "t", data="all", losses=losses, batch_size=BATCH, callbacks=[watch], compile="off", **settings
    )
    results = aa.Experiment(aa.ModelGraph(nodes, "adam"), progress="none").run_phase(phase)
    return watch.stats, results


def test_operations_of_linear_layers_are_those_of_a_count_by_hand():
    (before, _, after), results = measured(
        torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh()), torch.nn.Linear(16, 1)
    )
    assert before.flops_per_step is None and "measure_step" in before.not_covered["flops_per_step"]
    forward = 2 * BATCH * (6 * 16 + 16 * 1)
    backward = 2 * BATCH * (6 * 16) + 2 * 2 * BATCH * 16 * 1  # nothing is wanted of the first layer's inputs
    assert after.flops_per_step == forward + backward
    epoch = results.epochs[-1]
    assert after.samples_per_second == pytest.approx(ROWS / epoch.seconds)
    assert after.model_flops_utilization is None
    assert "16-bit" in after.not_covered["model_flops_utilization"]


def test_operations_of_a_convolution_are_those_of_a_count_by_hand():
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(8 * 6 * 6, 1))
    (_, stats, _), _ = measured(net, shape=(3, 8, 8))
    convolution, linear = 2 * BATCH * 8 * 6 * 6 * 3 * 9, 2 * BATCH * 8 * 6 * 6
    assert stats.flops_per_step == 2 * convolution + 3 * linear


def test_activations_of_a_node_are_what_its_forward_pass_keeps():
    (before, stats, _), _ = measured(
        torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh()), torch.nn.Linear(16, 1)
    )
    assert [node.activations for node in before.nodes] == [None, None]
    # tanh keeps its output, which is that of the node; its input is freed. The head has its output alone.
    assert [node.activations for node in stats.nodes] == [BATCH * 16 * 4, BATCH * 1 * 4]
    assert "activations" in str(stats) and "operations per step" in str(stats)
    assert stats.to_dict()["nodes"][0]["activations"] == BATCH * 16 * 4


def test_operations_that_are_done_again_do_not_count_and_are_not_kept():
    def net():
        layers = [torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh()) for _ in range(4)]
        return torch.nn.Sequential(*layers, torch.nn.Linear(6, 1))

    (_, plain, _), _ = measured(net())
    (_, again, _), _ = measured(net(), remat="blocks")
    assert plain.flops_per_step == again.flops_per_step > 0
    assert again.nodes[0].activations <= plain.nodes[0].activations


def test_the_models_stay_as_they_are():
    net = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    plain = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    plain.load_state_dict(net.state_dict())
    _, measured_results = measured(net)
    x = np.random.default_rng(0).normal(size=(ROWS, 6)).astype("float32")
    data = aa.FeatureSet.from_dict("d", {"x": x, "y": x[:, :1]}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("n0", plain, data.reference())], "adam")
    losses = [aa.AppliedLoss("mse", on="n0")]
    phase = aa.TrainPhase("t", data="all", losses=losses, batch_size=BATCH, compile="off")
    results = aa.Experiment(graph, progress="none").run_phase(phase)
    assert [e.loss for e in results.epochs] == [e.loss for e in measured_results.epochs]
    for name, value in plain.state_dict().items():
        assert torch.equal(net.state_dict()[name], value), name


def test_utilization_is_operations_beside_the_rate_of_the_device(monkeypatch):
    from anyaccel.backend import DeviceInfo
    from anyaccel_torch import TorchBackend

    name = ["NVIDIA H100 PCIe"]
    monkeypatch.setattr(TorchBackend, "device_info", lambda self, device: DeviceInfo(name[0], "nvidia", ""))
    (_, _, stats), results = measured(torch.nn.Linear(6, 1), precision="bf16-mixed")
    epoch = results.epochs[-1]
    assert stats.flops_per_step == 2 * 2 * BATCH * 6
    expected = stats.flops_per_step * epoch.steps / epoch.seconds / 756.5e12
    assert stats.model_flops_utilization == pytest.approx(expected) and "of the peak rate" in str(stats)
    name[0] = "Some GPU"
    (_, _, stats), _ = measured(torch.nn.Linear(6, 1), precision="bf16-mixed")
    assert stats.model_flops_utilization is None
    assert stats.not_covered["model_flops_utilization"] == "the rate of Some GPU (cpu:0) in bf16 is unknown"


def test_what_cannot_be_measured_says_so():
    class OnValues(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(6, 1)

        def forward(self, x):
            return self.inner(x) if float(x.sum()) < 1e9 else x

    (_, stats, _), _ = measured(OnValues())
    assert stats.flops_per_step is None and "measuring a step failed" in stats.not_covered["flops_per_step"]

    class Watch(aa.Callback):
        def after_loading(self, run):
            run.measure_step()

    x = np.ones((8, 6), "float32")
    data = aa.FeatureSet.from_dict("d", {"x": x, "y": x[:, :1]}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("n", torch.nn.Linear(6, 1), data.reference())], "sgd")
    losses = [aa.AppliedLoss("mse", on="n")]
    with pytest.raises(PhaseError, match="no training steps to measure"):
        aa.Experiment(graph).run_phase(aa.EvalPhase("v", data="all", losses=losses, callbacks=[Watch()]))
