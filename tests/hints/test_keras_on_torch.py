"""Hints of Keras on torch; `test_torch.py` runs this in a process of its own, as Keras has one framework in each."""

from __future__ import annotations

import os
import warnings
from typing import Any

import numpy as np
import pytest

import anyaccel as aa

pytest.importorskip("torch")
pytest.importorskip("anyaccel_torch")
keras: Any = pytest.importorskip("keras")

if os.environ.get("KERAS_BACKEND") != "torch" or keras.backend.backend() != "torch":
    pytest.skip("run by test_torch.py, in a process of its own", allow_module_level=True)

X = np.ones((8, 3), "float32")


def run(model: Any, loss: Any = "mse", *, compile: str = "off", **settings: Any) -> Any:
    data = aa.FeatureSet.from_dict("data", {"x": X, "y": X[:, :1]}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("net", model, data.reference(), **settings)], "sgd")
    losses = [aa.AppliedLoss(loss, on="net")]
    phase = aa.TrainPhase("train", data="all", losses=losses, accelerator="cpu", compile=compile)
    with warnings.catch_warnings():
        warnings.simplefilter("error", aa.errors.CompileWarning)
        return graph.run(phase, progress="none")


def net() -> Any:
    with keras.device("cpu"):
        return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])


def test_models_of_keras(hint: Any) -> None:
    import torch

    from anyaccel.device import Device
    from anyaccel_torch.backend import TorchBackend

    with hint("leave device_map, max_memory and offload out of the node"):
        run(net(), device_map={"": "cpu"})
    assert run(net()).loss.size
    with hint("use layers and losses of torch, or compile='off'"):
        run(net(), compile="steps")
    assert run(net(), compile="off").loss.size
    assert run(torch.nn.Linear(3, 1)).loss.size
    with hint("create the model inside keras.device(...) of that device"):
        TorchBackend().place(net(), Device("meta"))
    with keras.device("meta"):
        assert keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]).weights[0].value.is_meta
