"""Grouped convolutions are refused where TensorFlow's CPU has no gradients for them; what the hint says trains."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import anyaccel as aa
from anyaccel.errors import PhaseError

layers = keras.layers
X = np.random.default_rng(0).standard_normal((8, 6, 6, 4)).astype("float32")
Y = np.ones((8, 1), "float32")


def net(second: Any) -> Any:
    """The grouped convolution is the second layer: gradients of its inputs are needed."""
    return keras.Sequential([keras.Input((6, 6, 4)), layers.Conv2D(4, 1), second, layers.Flatten(), layers.Dense(1)])


def train(model: Any, compile: str, *, shuffle: bool = True) -> Any:
    data = aa.FeatureSet.from_dict("data", {"x": X, "y": Y}, "x", "y")
    graph = aa.ModelGraph([aa.ModelNode("net", model, data.reference("x"))], aa.Optimizer("sgd", lr=0.01))
    settings: Any = {
        "data": "all",
        "losses": aa.AppliedLoss("mse", on="net"),
        "sampler": aa.SimpleSampler(4, shuffle=shuffle),
    }
    phase = aa.TrainPhase("train", **settings, epochs=2, compile=compile)
    return aa.Experiment("model", graph, progress="none").run_phase(phase)


@pytest.mark.parametrize("compile", ["off", "auto"])
def test_a_grouped_convolution_is_refused_on_a_cpu_without_onednn(compile: str) -> None:
    message = (
        r"TensorFlow has no gradients of grouped convolutions on a CPU without oneDNN, nor in float64. Hint: train in "
        r"float32 with TF_ENABLE_ONEDNN_OPTS=1, use DepthwiseConv2D\(kernel_size\) if "
    )
    with pytest.raises(PhaseError, match=message):
        train(net(layers.Conv2D(4, 3, padding="same", groups=4)), compile)


WITH_ONEDNN = """
import sys
sys.path.insert(0, sys.argv[1])
from test_grouped_convolutions import X, Y, keras, layers, net, np, tf, train

for compile in ("off", "auto"):
    keras.utils.set_random_seed(1)
    model = net(layers.Conv2D(4, 3, padding="same", groups=2))
    own = keras.models.clone_model(model)
    own.set_weights(model.get_weights())
    result = train(model, compile, shuffle=False)
    own.compile(keras.optimizers.SGD(0.01), "mse")
    expected = own.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0).history["loss"]
    np.testing.assert_allclose(result.loss, expected, rtol=1e-5)
    for ours, theirs in zip(model.get_weights(), own.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
"""


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="oneDNN is on by default on x86 alone")
def test_it_trains_as_fit_does_with_onednn() -> None:
    """TensorFlow reads the setting when it is imported, and these tests run without."""
    environment = {**os.environ, "TF_ENABLE_ONEDNN_OPTS": "1"}
    command = [sys.executable, "-c", WITH_ONEDNN, str(Path(__file__).parent)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_depthwise_convolution_of_the_same_weights_computes_the_same_and_trains() -> None:
    grouped, depthwise = (
        net(layers.Conv2D(4, 3, padding="same", groups=4)),
        net(layers.DepthwiseConv2D(3, padding="same")),
    )
    for ours, theirs in zip(depthwise.weights, grouped.weights, strict=True):
        value = theirs.numpy()
        ours.assign(value.transpose(0, 1, 3, 2) if ours.shape != theirs.shape else value)
    np.testing.assert_allclose(depthwise(X), grouped(X), rtol=1e-4, atol=1e-5)
    before = float(tf.reduce_mean((depthwise(X) - Y) ** 2))
    train(depthwise, "off")
    assert float(tf.reduce_mean((depthwise(X) - Y) ** 2)) < before
