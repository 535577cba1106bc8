"""Hints of the trackers for Weights & Biases and MLflow."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyaccel as aa

X = np.random.default_rng(0).standard_normal((24, 3)).astype("float32")
DATA = {"x": X, "y": X.sum(1)}
OFFLINE = {"WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"}


def fit(**settings: Any) -> Any:
    return aa.fit(aa.SequentialMLP(), DATA, target="y", loss="mse", epochs=1, progress="none", **settings)


def test_projects_of_wandb(hint: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    anyaccel_wandb = pytest.importorskip("anyaccel_wandb")
    monkeypatch.chdir(tmp_path)
    with hint("write the name, such as 'digits'"):
        anyaccel_wandb.WandbLogger(3)
    assert anyaccel_wandb.WandbLogger("digits")
    with monkeypatch.context() as broken:
        broken.setattr(wandb, "init", lambda **_: 1 / 0)
        with hint("log in with `wandb login`, or write to a local folder: WandbLogger(..., mode='offline')"):
            fit(callbacks=[anyaccel_wandb.WandbLogger("digits")])
    for name, value in OFFLINE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("WANDB_MODE")
    fit(callbacks=[anyaccel_wandb.WandbLogger("digits", mode="offline")])  # where nobody has done `wandb login`
    wandb.teardown()
    assert list(tmp_path.glob("wandb/offline-run-*"))


def test_experiments_of_mlflow(hint: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    anyaccel_mlflow = pytest.importorskip("anyaccel_mlflow")
    monkeypatch.chdir(tmp_path)
    with hint("write the name, such as 'digits'"):
        anyaccel_mlflow.MLflowLogger(3)
    logger = anyaccel_mlflow.MLflowLogger("digits")
    mlflow.set_tracking_uri("sqlite:////dev/null/mlflow.db")
    with hint("set another store: mlflow.set_tracking_uri('sqlite:///mlflow.db')"):
        fit(callbacks=[logger])
    mlflow.set_tracking_uri("sqlite:///mlflow.db")
    fitted = fit(callbacks=[logger])
    assert mlflow.search_runs(experiment_names=["digits"], output_format="list")
    with hint("pass the result of aa.fit"):
        anyaccel_mlflow.save_model(fitted.graph, tmp_path / "model")
    returned = aa.fit(aa.SequentialMLP(), DATA, target="y", loss="mse", epochs=1, progress="none")
    anyaccel_mlflow.save_model(returned, tmp_path / "model")


def test_models_of_the_users_in_mlflow(hint: Any, tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    anyaccel_mlflow = pytest.importorskip("anyaccel_mlflow")
    torch = pytest.importorskip("torch")

    def make() -> Any:
        return torch.nn.Sequential(torch.nn.Linear(3, 1))

    fitted = aa.fit(make(), DATA, target="y", loss="mse", epochs=1, progress="none")
    anyaccel_mlflow.save_model(fitted, tmp_path / "model")
    uri = str(tmp_path / "model")
    with hint("load it with anyaccel_mlflow.load_model(uri, models={'model': net})"):
        mlflow.pyfunc.load_model(uri)
    net = make()
    loaded = anyaccel_mlflow.load_model(uri, models={"model": net})
    assert (loaded.predict(DATA) == fitted.predict(DATA)).all()


LOGS = """
import {0}
{0}.log_to("digits")
"""


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_plugin_that_is_not_loaded(name: str, hint: Any, tmp_path: Path) -> None:
    pytest.importorskip(f"anyaccel_{name}")

    def logging_with(plugins: str) -> str:
        environment = {**os.environ, "ANYACCEL_PLUGINS": plugins}
        command = [sys.executable, "-c", LOGS.format(f"anyaccel_{name}")]
        return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True).stderr

    with hint("add it to ANYACCEL_PLUGINS: ANYACCEL_PLUGINS={}; or add to phases the callback {}") as printed:
        printed.text = logging_with("none")
    assert not logging_with(name)  # ANYACCEL_PLUGINS
