"""A chip for torch is a few lines of placement; exchange and training are inherited."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

import anyaccel as aa
from anyaccel import registry as registries
from anyaccel.numpy_backend import NumpyBackend
from anyaccel.registry import Registry
from anyaccel_torch import SequentialMLP
from anyaccel_torch.backend import TorchBackend


class Chip(TorchBackend):
    """A pretended chip; torch calls it cpu."""

    kinds = ("chip",)

    def devices(self) -> list[aa.Device]:
        return [aa.Device("chip")]

    def device_string(self, device: aa.Device) -> str:
        return "cpu"


def test_graph_trains_on_a_chip_that_only_defines_placement(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin, torch_plugin = ModuleType("chip"), ModuleType("torch_plugin")
    plugin.contract = torch_plugin.contract = 2  # type: ignore[attr-defined]
    plugin.backends = aa.hookimpl(lambda: [Chip()])  # type: ignore[attr-defined]
    torch_plugin.backends = aa.hookimpl(lambda: [TorchBackend()])  # type: ignore[attr-defined]
    registry = Registry(NumpyBackend, lambda: ())
    registry.register(torch_plugin, "torch")
    registry.register(plugin, "chip")
    monkeypatch.setattr(registries, "_registry", [registry])
    x = np.random.default_rng(0).standard_normal((64, 4)).astype("float32")
    source = aa.FeatureSet.from_dict("data", {"x": x, "y": x[:, :1]}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("net", SequentialMLP(1), source.reference())], aa.Optimizer("adam", lr=1e-2))
    losses = [aa.AppliedLoss("mse", on="net")]
    phase = aa.TrainPhase("t", data=source, losses=losses, accelerator="chip", epochs=10)
    results = aa.Experiment("e", graph, progress="none").run_phase(phase)
    assert results.plan.device("net") == aa.Device("chip")
    assert results.loss[-1] < results.loss[0]
