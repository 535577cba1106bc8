"""TuneReportCallback in trials of Ray Tune on this machine: values and graphs are those of runs without Ray."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray")

import anyaccel as aa
from anyaccel.errors import PhaseError
from anyaccel_ray import TuneReportCallback

from . import tune_script

SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "PYTHONWARNINGS": "ignore",
    "RAY_TMPDIR": tempfile.mkdtemp(prefix="ray-"),  # sockets need short paths
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tune")
    environment = {**os.environ, **SETTINGS, "PYTHONPATH": str(Path(__file__).parent)}  # workers import the script
    command = [sys.executable, str(Path(__file__).with_name("tune_script.py")), str(made)]
    answer = subprocess.run(
        command, env=environment, cwd=made, capture_output=True, text=True, timeout=400, check=False
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return made


@pytest.fixture(scope="module")
def answer(folder: Path) -> dict[str, Any]:
    trials: dict[str, Any] = json.loads((folder / "answer.json").read_text())
    return trials


def state_of(checkpoint: str) -> dict[str, np.ndarray]:
    return dict(aa.ModelGraph.load(checkpoint).state())


@pytest.mark.slow
@pytest.mark.parametrize(("name", "hidden_dim"), [("small", 4), ("large", 16)])
def test_values_and_weights_are_those_of_a_run_without_ray(answer: dict[str, Any], name: str, hidden_dim: int) -> None:
    graph, results = tune_script.run(hidden_dim)
    assert answer[name]["error"] is None
    assert answer[name]["reported"]["loss"] == list(results.loss)
    assert answer[name]["reported"]["val_loss"] == list(results.figure("val_loss"))
    stored, expected = state_of(answer[name]["checkpoint"]), dict(graph.state())
    assert stored.keys() == expected.keys() and len(stored) > 4
    for key, value in expected.items():
        np.testing.assert_array_equal(stored[key], value, err_msg=key)


@pytest.mark.slow
def test_a_trial_that_failed_continues_from_its_checkpoint(answer: dict[str, Any]) -> None:
    _, results = tune_script.run(4)
    told = answer["failing"]
    assert told["error"] is None
    assert told["reported"]["val_loss"] == list(results.figure("val_loss"))  # each epoch once


@pytest.mark.slow
def test_metrics_are_renamed_and_nothing_is_saved_if_asked(answer: dict[str, Any]) -> None:
    _, results = tune_script.run(4)
    assert answer["mapped"]["reported"] == {"error": list(results.figure("val_loss"))}
    assert answer["mapped"]["checkpoint"] is None


@pytest.mark.slow
def test_a_trial_that_tune_stops_closes_its_run(answer: dict[str, Any], folder: Path) -> None:
    assert len(answer["stopped"]["reported"]["loss"]) == 2
    assert (folder / "small.txt").read_text() == "4 epochs, NoneType"
    assert (folder / "stopped.txt").read_text() == "2 epochs, SystemExit"


def test_a_checkpoint_has_the_values_of_its_epoch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also where torch computes, which has its own copy of the values while it runs."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("anyaccel_torch")
    from ray import tune

    def report(metrics: dict[str, float], *, checkpoint: Any) -> None:
        shutil.copytree(checkpoint.path, tmp_path / str(len(list(tmp_path.iterdir()))))

    def train(epochs: int, **settings: Any) -> Any:
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
        table = {"x": np.eye(4, dtype="float32")[np.arange(64) % 4], "y": np.arange(64, dtype="float32") % 4}
        return aa.fit(net, table, target="y", loss="mse", epochs=epochs, progress="none", **settings)

    monkeypatch.setattr(tune, "report", report)
    train(3, callbacks=[TuneReportCallback()])
    for epoch in range(3):
        graph = train(epoch + 1).graph
        copy = aa.ModelGraph.load(tmp_path / str(epoch), models={"model": graph["model"].model})
        for key, value in dict(graph.state()).items():
            np.testing.assert_array_equal(dict(copy.state())[key], value, err_msg=key)


def test_only_the_main_process_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray import tune

    class Other(aa.Callback):
        def phase_start(self, run: Any) -> None:
            run.is_main_process = False

    reports: list[Any] = []
    monkeypatch.setattr(tune, "report", lambda metrics, **_: reports.append(metrics))
    for callbacks, count in (([TuneReportCallback("loss")], 4), ([Other(), TuneReportCallback("loss")], 0)):
        tune_script.run(4, callbacks)
        assert len(reports) == count
        reports.clear()


@pytest.mark.parametrize("metrics", [3, [3], {"error": 3}, {3: "loss"}])
def test_metrics_are_names(metrics: Any) -> None:
    with pytest.raises(PhaseError, match="does not consist of names"):
        TuneReportCallback(metrics)


def test_a_value_that_epochs_do_not_have_is_an_error() -> None:
    with pytest.raises(PhaseError, match="TuneReportCallback monitors 'val_los'"):
        tune_script.run(4, [TuneReportCallback(["val_los"])])
