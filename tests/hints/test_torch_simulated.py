"""Hints of what needs devices, on simulated ones; `test_torch.py` runs this in a process of its own.

Torch cannot be rid of the devices again.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import anyaccel as aa

torch = pytest.importorskip("torch")
pytest.importorskip("anyaccel_torch")

if os.environ.get("ANYACCEL_TORCH_SIMULATE") != "2":
    pytest.skip("run by test_torch.py, in a process of its own", allow_module_level=True)

from torch import Tensor, nn  # noqa: E402

from anyaccel_offload.torch import cpu_offload, dispatch_model, offload_of, remove_offload  # noqa: E402
from anyaccel_torch import simulated  # noqa: E402

DEVICES = simulated.start(2)
ONE, TWO = "sim:0", "sim:1"
X = np.ones((8, 3), "float32")


def chain() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(3)))


def evaluated(model: nn.Module, device: Any, **settings: Any) -> float:
    data = aa.FeatureSet.from_dict("data", {"x": X, "y": X}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("net", model, data.reference(), **settings)], "sgd")
    phase = aa.EvalPhase("eval", data="all", losses=[aa.AppliedLoss("mse", on="net")], accelerator=device)
    return float(graph.run(phase, progress="none").losses["net"])


def test_number_of_devices(hint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with hint("start(2) is enough for most tests"):
        simulated.start(0)
    assert len(simulated.start(2)) == 2


def test_offloaded_models(hint: Any) -> None:
    x = torch.ones(1, 3)
    model = cpu_offload(chain(), ONE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = model(x).sum()
    with torch.no_grad():
        model[2][0].weight.add_(1)
    with hint("call backward() before optimizer.step(), or run the forward pass again"):
        loss.backward()
    loss = model(x).sum()
    loss.backward()
    optimizer.step()
    model = cpu_offload(chain(), ONE)
    with hint("call remove_offload(model) first, change the model, and dispatch it again"):
        model.half()
    remove_offload(model)
    dispatch_model(model.float(), {"": ONE})(x.to(ONE))
    model = cpu_offload(chain(), ONE)
    with hint("use this accelerator: Accelerator({}), or call remove_offload(model)"):
        evaluated(model, TWO)
    there = evaluated(model, aa.Accelerator(ONE))
    assert evaluated(remove_offload(model), TWO) == pytest.approx(there)


class Constant(nn.Module):
    shift: Tensor

    def __init__(self, how: str) -> None:
        super().__init__()
        self.layer, self.how = nn.Linear(3, 3), how
        self.register_buffer("shift", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "register_buffer":
            return self.layer(x) + self.shift
        return self.layer(x) + (torch.zeros(3, device=x.device) if self.how == "device" else torch.zeros(3))


def test_tensors_on_several_devices(hint: Any) -> None:
    with hint(
        "create tensors on the device of the inputs, for example torch.zeros(3, device=x.device), and register "
        "constant "
        "tensors with register_buffer"
    ):
        evaluated(Constant("anywhere"), ONE)
    assert evaluated(Constant("device"), ONE) > 0  # torch.zeros(3, device=x.device)
    assert evaluated(Constant("register_buffer"), ONE) > 0


class Reads(nn.Module):
    """Reads a value, which there is none of while a plan is made."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return self.last(y * 2 if float(y.sum()) > 1e9 else y)


def test_maps(hint: Any) -> None:
    assert evaluated(Reads(), ONE, device_map={"": "cpu"}) > 0
    assert offload_of(chain()) is None


def test_models_on_several_devices(hint: Any) -> None:
    data = aa.FeatureSet.from_dict("data", {"x": X, "y": X}, ["x"], ["y"])

    def graph(model: nn.Module, **settings: Any) -> aa.ModelGraph:
        return aa.ModelGraph([aa.ModelNode("net", model, data.reference(), **settings)], "sgd")

    experiment = aa.Experiment("test", progress="none", graph=graph(chain(), device_map={"": TWO}))
    with hint("write ModelNode(..., accelerator={})"):
        experiment.run(aa.EvalPhase("test", data="all", accelerator=ONE))
    node = aa.ModelNode("net", chain(), data.reference(), device_map={"": TWO}, accelerator=TWO)
    assert aa.ModelGraph([node], "sgd").run(aa.EvalPhase("test", data="all", accelerator=ONE), progress="none")

    def with_replicas(**settings: Any) -> Any:
        given = graph(chain(), device_map="auto", max_memory={ONE: 2**20, TWO: 2**20, "cpu": 2**30})
        phase = aa.TrainPhase("train", data="all", losses=[aa.AppliedLoss("mse", on="net")], compile="off", **settings)
        return given.run(phase, progress="none")

    with hint("request one device, and name the others in max_memory"):
        with_replicas(accelerator=ONE, replicas=2)
    assert with_replicas(accelerator=ONE)  # the others are in max_memory
