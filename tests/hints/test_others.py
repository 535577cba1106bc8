"""Hints of the plugins for MPS, Ray and TensorBoard."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.device import Device
from anyaccel.segment import LossTerm, Operation, ParameterGroup, Segment, TensorSpec
from anyaccel.specs import Loss

X = np.random.default_rng(0).standard_normal((16, 3)).astype("float32")


def run(**settings: Any) -> Any:
    data = aa.FeatureSet.from_dict("data", {"x": X, "y": X[:, :1]}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP(1), data.reference())], "sgd")
    phase = aa.TrainPhase("train", data="all", losses=[aa.AppliedLoss("mse", on="net")], **settings)
    return graph.run(phase, progress="none")


def test_folders_of_tensorboard(hint: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    tensorboard = pytest.importorskip("anyaccel_tensorboard")
    for wrong in (3, "https://example.org/runs"):
        with hint("name a local folder, such as 'runs'"):
            tensorboard.TensorBoard(wrong)
        monkeypatch.chdir(tmp_path)
        assert run(callbacks=[tensorboard.TensorBoard("runs")]).loss.size
        assert list((tmp_path / "runs").iterdir())
    with hint("write the folder without '~'"):
        tensorboard.TensorBoard("~nobody-of-this-name/runs")
    assert tensorboard.TensorBoard(str(tmp_path / "runs"))


LOGS = """
import anyaccel_tensorboard
anyaccel_tensorboard.log_to("runs")
"""


def test_a_plugin_that_is_not_loaded(hint: Any, tmp_path: Path) -> None:
    tensorboard = pytest.importorskip("anyaccel_tensorboard")

    def logging_with(plugins: str) -> str:
        environment = {**os.environ, "ANYACCEL_PLUGINS": plugins}
        command = [sys.executable, "-c", LOGS]
        return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True).stderr

    with hint("add it to ANYACCEL_PLUGINS: ANYACCEL_PLUGINS={}; or add to phases the callback {}") as printed:
        printed.text = logging_with("none")
    assert not logging_with("tensorboard")  # ANYACCEL_PLUGINS
    folder = tmp_path / "runs"
    assert run(callbacks=[tensorboard.TensorBoard(folder)]).loss.size


def test_places_of_ray(hint: Any) -> None:
    launcher = pytest.importorskip("anyaccel_ray.launcher")
    with hint("add nodes with ray start --address=HEAD:6379, or request fewer --replicas"):
        launcher.check_places({"CPU": 2.0}, 3)
    launcher.check_places({"CPU": 2.0 + 1.0}, 3)  # as after `ray start --address=...` on another node
    launcher.check_places({"CPU": 2.0}, 2)  # --replicas 2


def test_dtypes_and_operators_of_mps(hint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    mps = pytest.importorskip("anyaccel_mps")
    from anyaccel_mps.operator_check import check_operators
    from anyaccel_mps.operator_support import OperatorSupport

    class OnCpu(mps.MpsBackend):  # type: ignore[name-defined,misc]
        """Has torch's CPU as its device."""

        def device_string(self, device: Device) -> str:
            return "cpu"

    backend, device, array = OnCpu(), Device("mps"), np.ones(2)
    with hint("convert it first: array.astype({})"):
        backend.from_host(array, device)
    assert backend.from_host(array.astype("float32"), device).sum() == 2

    class Table(OperatorSupport):
        """Of a Mac without `mode`."""

        def lacks(self, operator: Any) -> bool:
            return "mode" in str(operator)

    class LinearThen(torch.nn.Module):
        def __init__(self, function: Any) -> None:
            super().__init__()
            self.linear, self.function = torch.nn.Linear(3, 1), function

        def forward(self, x: Any) -> Any:
            return self.function(self.linear(x))

    def segment_of(model: Any) -> Segment:
        form = {"x": (TensorSpec((3,), "float32"), device), "y": (TensorSpec((1,), "float32"), device)}
        term = LossTerm("l", "net", Loss("mse"), ("net", "y"), device)
        group = ParameterGroup("g", aa.Optimizer("sgd"), ("net",))
        return Segment("s", (Operation("net", model, ("x",), ("net",), device),), form, ("net",), (term,), (group,))

    monkeypatch.delenv("PYTORCH_ENABLE_MPS_FALLBACK", raising=False)
    lacking = LinearThen(lambda x: x.mode(1)[0][:, None])
    with hint(
        "set accelerator='cpu' on the node, use other layers, or start Python with {}=1 to compute these operators on "
        "the CPU, slowly and with a warning"
    ):
        check_operators(segment_of(lacking), Table("CPU"))
    check_operators(segment_of(LinearThen(torch.tanh)), Table("CPU"))
    monkeypatch.setenv("PYTORCH_ENABLE_MPS_FALLBACK", "1")
    with pytest.warns(aa.errors.FallbackWarning):
        check_operators(segment_of(lacking), Table("CPU"))
    data = aa.FeatureSet.from_dict("data", {"x": X, "y": X[:, :1]}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("net", lacking, data.reference(), accelerator="cpu")], "sgd")
    phase = aa.TrainPhase("train", data="all", losses=[aa.AppliedLoss("mse", on="net")])
    assert graph.run(phase, progress="none").loss.size
