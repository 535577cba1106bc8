"""Buffers that training changes, where batches are accumulated: told by name."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import anyaccel as aa

X = np.random.default_rng(0).normal(size=(16, 3)).astype("float32")


class Centred(keras.layers.Layer):
    """Moves a mean towards that of each batch, and subtracts it."""

    def build(self, shape: Any) -> None:
        self.mean = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False, name="mean")

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.mean.assign(0.9 * self.mean + 0.1 * keras.ops.mean(x, axis=0))
        return x - self.mean


def train(*layers: Any, **settings: Any) -> None:
    data = aa.FeatureSet.from_dict("d", {"x": X, "y": X[:, :1]}, ["x"], ["y"])
    model = keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(1)])
    graph = aa.ModelGraph([aa.ModelNode("net", model, data.reference())], aa.Optimizer("sgd", lr=0.1))
    losses = [aa.AppliedLoss("mse", on="net")]
    phase = aa.TrainPhase("t", data=data, losses=losses, sampler=aa.SimpleSampler(4), epochs=1, **settings)
    aa.Experiment("e", graph, progress="none").run_phase(phase)


@pytest.mark.parametrize("layer", [Centred, keras.layers.BatchNormalization])
def test_accumulated_batches_change_a_buffer_once_each_and_are_told(layer: Any) -> None:
    expected = r"phase 't' accumulates batches, and the buffer 'net/buffers/.*mean' .* in every call of the model, 2 t"
    with pytest.warns(UserWarning, match=expected):
        train(layer(), accumulate=2)


def test_random_numbers_of_dropout_are_not_told() -> None:
    train(keras.layers.Dropout(0.5), accumulate=2)
