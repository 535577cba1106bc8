"""Outputs that a model gives in training only: named, trained as a loop by hand does, and refused where unnamed."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import anyaccel as aa
from anyaccel.errors import PhaseError

WEIGHT = 0.4
LOSSES = [
    aa.AppliedLoss("mse", on="net", inputs=["outputs.main", "targets"]),
    aa.AppliedLoss("mse", on="net", inputs=["outputs.aux", "targets"], weight=WEIGHT, label="aux"),
]


def glorot(seed: int) -> Any:
    return keras.initializers.GlorotUniform(seed)


class KerasNet(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.body = keras.layers.Dense(5, "tanh", kernel_initializer=glorot(3))
        self.main = keras.layers.Dense(1, kernel_initializer=glorot(4))
        self.aux = keras.layers.Dense(1, kernel_initializer=glorot(5))

    def call(self, x: Any, training: bool = False) -> Any:
        features = self.body(x)
        main, aux = self.main(features), self.aux(features)
        return (main, aux) if training else main


class PlainNet(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = tf.Variable(glorot(3)((3, 1)))
        self.other = tf.Variable(glorot(4)((3, 1)))

    def __call__(self, x: Any, training: bool = False) -> Any:
        main = x @ self.weight
        return {"main": main, "aux": x @ self.other} if training else main


def made(kind: type) -> Any:
    model = kind()
    model(tf.zeros((2, 3)), training=True)
    return model


@pytest.fixture
def source() -> aa.FeatureSet:
    x = np.random.default_rng(0).standard_normal((24, 3)).astype("float32")
    source = aa.FeatureSet.from_dict("data", {"x": x, "y": x[:, :1] * 2}, ["x"], ["y"])
    source.split_random({"train": 2 / 3, "val": 1 / 3})
    return source


def train(source: aa.FeatureSet, model: Any, losses: Any, outputs: Any = None, **settings: Any) -> Any:
    node = aa.ModelNode("net", model, source.reference(), outputs=outputs)
    sampler = aa.SimpleSampler(8)
    phase = aa.TrainPhase("train", data="train", losses=losses, sampler=sampler, epochs=2, validation="val", **settings)
    graph = aa.ModelGraph([node], aa.Optimizer("sgd", lr=0.1))
    return aa.Experiment("test", graph, progress="none").run_phase(phase)


def by_hand(source: aa.FeatureSet, model: Any) -> list[float]:
    x, y = (source.split("train").array(name) for name in "xy")
    means = []
    for _ in range(2):
        losses = []
        for rows in (slice(0, 8), slice(8, 16)):
            with tf.GradientTape() as tape:
                outputs = model(tf.constant(x[rows]), training=True)
                main, aux = outputs.values() if isinstance(outputs, dict) else outputs
                loss = tf.reduce_mean((main - y[rows]) ** 2) + WEIGHT * tf.reduce_mean((aux - y[rows]) ** 2)
            variables = model.trainable_variables
            for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
                variable.assign_sub(0.1 * gradient)
            losses.append(float(loss))
        means.append(float(np.mean(losses)))
    return means


@pytest.mark.parametrize("kind", [KerasNet, PlainNet])
@pytest.mark.parametrize("compile", ["off", "steps"])
def test_named_outputs_of_training_are_trained_as_by_hand(source: aa.FeatureSet, kind: type, compile: str) -> None:
    given, own = made(kind), made(kind)
    result = train(source, given, LOSSES, ["main", "aux"], compile=compile)
    np.testing.assert_allclose(result.loss, by_hand(source, own), rtol=1e-5)
    for mine, other in zip(given.trainable_variables, own.trainable_variables, strict=True):
        np.testing.assert_allclose(mine.numpy(), other.numpy(), rtol=1e-4, atol=1e-6)
    x, y = (source.split("val").array(name) for name in "xy")
    np.testing.assert_allclose(result.figure("val_loss")[-1], np.mean((own(x).numpy() - y) ** 2), rtol=1e-4)


@pytest.mark.parametrize("kind", [KerasNet, PlainNet])
def test_outputs_of_training_without_names_are_refused(source: aa.FeatureSet, kind: type) -> None:
    with pytest.raises(PhaseError) as caught:
        train(source, made(kind), [aa.AppliedLoss("mse", on="net")])
    assert "returns 2 outputs (float32[1], float32[1] per sample) in training, but 1 output" in str(caught.value)
    names = "['main', 'aux']" if kind is PlainNet else "['out0', 'out1']"
    assert f"outputs={names}" in caught.value.hint
