"""Hints of files, estimators, the environment and closed outputs."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import anyaccel as aa

X = np.random.default_rng(0).standard_normal((16, 3)).astype("float32")


def run(model: Any) -> Any:
    data = aa.FeatureSet.from_dict("data", {"x": X, "y": X[:, :1]}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("net", model, data.reference())], "sgd")
    phase = aa.TrainPhase("train", data="all", losses=[aa.AppliedLoss("mse", on="net")])
    return graph.run(phase, progress="none")


def test_estimators_in_others(hint: Any) -> None:
    ensemble = pytest.importorskip("sklearn.ensemble")
    linear_model = pytest.importorskip("sklearn.linear_model")
    with hint("pass the estimator directly: {}(...) without Estimator(...)"):
        aa.Estimator(ensemble.BaggingRegressor(aa.Estimator(linear_model.LinearRegression())))
    assert aa.Estimator(ensemble.BaggingRegressor(linear_model.LinearRegression()))


def test_variables(hint: Any, cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setenv("ANYACCEL_DEVICE", "somewhere else")
        with hint("set {}=cpu or {}=gpu:0"):
            run(aa.SequentialMLP(1))
        patched.setenv("ANYACCEL_DEVICE", "cpu")
        assert run(aa.SequentialMLP(1)).loss.size
    with monkeypatch.context() as patched:
        patched.setenv("ANYACCEL_QQQQQQ", "1")
        with hint("anyaccel reads {}") as printed:
            printed.text = cli("doctor").output
        patched.delenv("ANYACCEL_QQQQQQ")
        assert "ANYACCEL_QQQQQQ" not in cli("doctor").output
    with monkeypatch.context() as patched:
        patched.setenv("ANYACCEL_PLUGINS", "qqqqqq")
        with hint("`anyaccel plugins` lists those installed") as printed:
            printed.text = cli("doctor").output
        assert (answer := cli("plugins")).exit_code == 0, answer.output


def test_a_closed_output(hint: Any) -> None:
    command = f"exec {shlex.quote(sys.executable)} -m anyaccel --version"
    with hint("run anyaccel with standard output open") as printed:
        printed.text = subprocess.run(
            ["/bin/sh", "-c", f"{command} >&-"], stderr=subprocess.PIPE, text=True, env={**os.environ}
        ).stderr
    assert subprocess.run(["/bin/sh", "-c", command], stdout=subprocess.PIPE).returncode == 0
