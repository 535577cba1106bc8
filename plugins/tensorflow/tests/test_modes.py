"""Modes of Keras models on TensorFlow: a frozen node runs in the mode asked for; modes of their own they have none."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import anyaccel as aa
from anyaccel.errors import GraphError

ROWS, BATCH = 16, 4


def table() -> aa.FeatureSet:
    draw = np.random.default_rng(0)
    columns = {"x": draw.normal(size=(ROWS, 3)), "y": draw.normal(size=(ROWS, 1))}
    return aa.FeatureSet.from_dict("data", {k: v.astype("float32") for k, v in columns.items()}, ["x"], ["y"])


def generator_and_critic() -> tuple[keras.Model, keras.Model]:
    keras.utils.set_random_seed(0)
    layers = keras.layers
    critic = keras.Sequential([keras.Input((4,)), layers.Dense(5), layers.BatchNormalization(), layers.Dense(1)])
    return keras.Sequential([keras.Input((3,)), layers.Dense(4)]), critic


def run(graph: aa.ModelGraph) -> None:
    losses = [aa.AppliedLoss("mse", on="net")]
    phase = aa.TrainPhase("t", data="all", losses=losses, sampler=aa.SimpleSampler(BATCH), compile="off")
    aa.Experiment("e", graph, progress="none").run_phase(phase)


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_a_frozen_keras_model_runs_in_the_mode_asked_for(mode: str) -> None:
    data, (generator, critic), (own_generator, own_critic) = table(), generator_and_critic(), generator_and_critic()
    x, y = (data.array(name).reshape(ROWS, -1) for name in ("x", "y"))
    for start in range(0, ROWS, BATCH):
        rows = slice(start, start + BATCH)
        with tf.GradientTape() as tape:
            made = own_generator(x[rows], training=True)
            loss = tf.reduce_mean((own_critic(made, training=mode == "train") - y[rows]) ** 2)
        variables = own_generator.trainable_variables
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(0.1 * gradient)
    nodes = [aa.ModelNode("generator", generator, data.reference()), aa.ModelNode("net", critic, "generator")]
    run(aa.ModelGraph(nodes, aa.Optimizer("sgd", lr=0.1)).freeze("net", mode=mode))
    for model, expected in ((generator, own_generator), (critic, own_critic)):
        for value, other in zip(model.get_weights(), expected.get_weights(), strict=True):
            np.testing.assert_allclose(value, other, rtol=1e-5, atol=1e-6)


def test_modes_as_is_are_refused() -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    graph = aa.ModelGraph([aa.ModelNode("net", model, table().reference(), modes="as_is")], "sgd")
    with pytest.raises(GraphError, match="modes='as_is' is not supported for models of tensorflow"):
        run(graph)
