"""Keras layers on torch in `keras.RematScope`, on the CPU and on a simulated device, and `remat` of nodes with them."""

from __future__ import annotations

import json
import subprocess
import sys

import keras
import numpy as np
import pytest
import torch

import anyaccel as aa
from anyaccel.errors import CapabilityError, PhaseError

SCRIPT = """
import contextlib, json
import keras, numpy as np, torch
import anyaccel as aa
from anyaccel_torch import simulated

simulated.start(1, capacity=10**9)
x = np.random.default_rng(0).normal(size=(32, 6)).astype("float32")
data = aa.FeatureSet.from_dict("d", {"x": x, "y": x[:, :1]}, ["x"], ["y"])


class Weighted(keras.layers.Layer):
    def call(self, x):
        return keras.ops.tanh(x) * (1 + keras.ops.arange(6, dtype="float32"))  # has no input, and is made by Keras


def losses(device, again):
    keras.utils.set_random_seed(0)
    scope = keras.RematScope(mode="full") if again else contextlib.nullcontext()
    with keras.device(device), scope:
        dense = keras.layers.Dense
        net = keras.Sequential([dense(6), Weighted(), dense(6, "gelu"), dense(1)])
        net.build((None, 6))
    graph = aa.ModelGraph([aa.ModelNode("net", net, data.reference())], "sgd", seed=1)
    loss, settings = [aa.AppliedLoss("mse", on="net")], {"batch_size": 16, "epochs": 2, "compile": "off"}
    phase = aa.TrainPhase("t", data="all", losses=loss, accelerator=device, **settings)
    losses = list(aa.Experiment("e", graph, progress="none").run_phase(phase).loss)
    assert not any("rematerialized_call" in vars(layer) for layer in net.layers)
    return losses


print(json.dumps([losses(device, again) for device in ("cpu", "sim:0") for again in (False, True)]))
"""


@pytest.mark.whole
def test_layers_compute_again_on_the_device_of_their_call() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    first, *others = json.loads(done.stdout.splitlines()[-1])
    assert len(others) == 3 and all(losses == first for losses in others)


def graph(net: torch.nn.Module, **settings: str) -> tuple[aa.ModelGraph, aa.TrainPhase]:
    x = np.ones((32, 6), "float32")
    data = aa.FeatureSet.from_dict("d", {"x": x, "y": x[:, :1]}, ["x"], ["y"])
    losses = [aa.AppliedLoss("mse", on="net")]
    return aa.ModelGraph([aa.ModelNode("net", net, data.reference(), **settings)], "sgd"), aa.TrainPhase(
        "t", data="all", losses=losses
    )


@pytest.mark.usefixtures("keras_on_cpu")
def test_layers_that_would_draw_other_numbers_are_refused() -> None:
    """Keras 3 gives a gradient of another mask than the output's, which is seen without anyaccel."""
    with keras.RematScope(mode="full"):
        drop = keras.layers.Dropout(0.5, seed=1)
    x = torch.ones(8, 16, requires_grad=True)
    outputs = drop(x, training=True)
    outputs.sum().backward()
    is_wrong = not torch.equal(outputs.detach(), x.grad)
    assert is_wrong, "Keras is mended: take the refusal out"
    network, phase = graph(keras.Sequential([keras.layers.Dense(4), drop, keras.layers.Dense(1)]))
    with pytest.raises(PhaseError, match=r"a Dropout in keras.RematScope draws different numbers .*create it outside"):
        network.run(phase)


@pytest.mark.usefixtures("keras_on_cpu")
def test_remat_of_a_node_with_layers_of_keras_is_refused() -> None:
    net = torch.nn.Sequential(*(torch.nn.Sequential(keras.layers.Dense(6), torch.nn.Tanh()) for _ in range(2)))
    network, phase = graph(torch.nn.Sequential(net, torch.nn.Linear(6, 1)), remat="blocks")
    with pytest.raises(CapabilityError, match="remat='blocks', but torch finds no such parts in a Sequential"):
        network.run(phase)
