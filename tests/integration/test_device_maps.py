"""Nodes with a device map in graphs of several frameworks: torch divides its models, the others refuse."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import anyaccel as aa
from anyaccel.cli.main import group
from anyaccel.errors import CapabilityError

X = np.linspace(-1, 1, 24, dtype="float32").reshape(6, 4)


def experiment(name: str, **settings: Any) -> tuple[aa.Experiment, aa.EvalPhase]:
    pytest.importorskip(name)
    model = importlib.import_module(f"anyaccel_{name}").SequentialMLP((1,), n_layers=2, hidden_dim=4)
    data = aa.FeatureSet.from_dict("data", {"x": X, "y": X[:, :1]}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("net", model, data.reference(), accelerator="cpu", **settings)], seed=1)
    losses = aa.AppliedLoss("mse", on="net")
    return aa.Experiment("test", graph, progress="none"), aa.EvalPhase("eval", data=data, losses=losses)


@pytest.mark.parametrize("name", ["jax", "tensorflow"])
@pytest.mark.parametrize("settings", [{"device_map": {"": "cpu"}}, {"offload": "cpu"}, {"max_memory": {"cpu": "1GB"}}])
def test_frameworks_that_cannot_divide_models_say_so(name: str, settings: dict[str, Any]) -> None:
    divided, phase = experiment(name, **settings)
    says = f"node 'net' has a device_map, but is computed by {name}, which cannot split models"
    with pytest.raises(CapabilityError, match=says) as raised:
        divided.run_phase(phase)
    assert "leave device_map, max_memory and offload out" in raised.value.hint


def test_keras_models_are_refused_on_every_backend() -> None:
    keras = pytest.importorskip("keras")
    backend = keras.backend.backend()
    pytest.importorskip(f"anyaccel_{backend}")
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    data = aa.FeatureSet.from_dict("data", {"x": X, "y": X[:, :1]}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("net", model, data.reference(), accelerator="cpu", device_map="auto")])
    phase = aa.EvalPhase("eval", data=data, losses=aa.AppliedLoss("mse", on="net"))
    says = (
        "a Keras model, which stores parameters separately"
        if backend == "torch"
        else f"computed by {backend}, which cannot"
    )
    with pytest.raises(CapabilityError, match=says) as raised:
        aa.Experiment("test", graph, progress="none").run_phase(phase)
    assert "leave device_map, max_memory and offload out" in raised.value.hint


MODULE = """
from anyaccel_{name} import SequentialMLP

def build():
    return SequentialMLP((1,), n_layers=2, hidden_dim=4)
"""


@pytest.mark.parametrize("name", ["jax", "tensorflow"])
def test_the_command_refuses_models_that_are_not_divided(name: str, tmp_path: Path) -> None:
    pytest.importorskip(name)
    path = tmp_path / f"net_of_{name}.py"
    path.write_text(MODULE.format(name=name))
    result = CliRunner().invoke(group, ["device-map", f"{path}:build", "--on", "2x 24GB, cpu 64GB"])
    shown = " ".join(result.output.split())
    assert result.exit_code not in (0, 1) and f"{name} cannot split models" in shown
    assert "make the blocks nodes of a graph" in shown


def test_torch_divides_and_gives_the_same_losses() -> None:
    divided, phase = experiment("torch", device_map={"": "cpu"})
    plain, _ = experiment("torch")
    assert divided.plan(phase)["net"].offload is not None
    assert divided.run_phase(phase).losses == plain.run_phase(phase).losses
