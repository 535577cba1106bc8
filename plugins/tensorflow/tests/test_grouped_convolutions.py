"""Grouped convolutions, whose inputs have no gradients on TensorFlow's CPU, are refused; what the hint says trains."""

from __future__ import annotations

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


def train(model: Any, compile: str) -> Any:
    data = aa.FeatureSet.from_dict("data", {"x": X, "y": Y}, "x", "y")
    graph = aa.ModelGraph([aa.ModelNode("net", model, data.reference("x"))], aa.Optimizer("sgd", lr=0.01))
    settings: Any = {"data": "all", "losses": aa.AppliedLoss("mse", on="net"), "sampler": aa.SimpleSampler(4)}
    phase = aa.TrainPhase("train", **settings, n_epochs=2, compile=compile)
    return aa.Experiment("model", graph, progress="none").run_phase(phase)


@pytest.mark.parametrize("compile", ["off", "auto"])
def test_a_grouped_convolution_is_refused_on_a_cpu(compile: str) -> None:
    message = (
        r"TensorFlow has no gradients of grouped convolutions on a CPU. Hint: use DepthwiseConv2D\(kernel_size\) where "
    )
    with pytest.raises(PhaseError, match=message):
        train(net(layers.Conv2D(4, 3, padding="same", groups=4)), compile)


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
