"""Layers of Keras models that are switched off for a phase: what the optimizer kept for them lasts."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import anyaccel as aa

ROWS, BATCH = 16, 4


def table() -> aa.FeatureSet:
    draw = np.random.default_rng(0)
    columns = {"x": draw.normal(size=(ROWS, 3)), "y": draw.normal(size=(ROWS, 1))}
    return aa.FeatureSet.from_dict("data", {k: v.astype("float32") for k, v in columns.items()}, ["x"], ["y"])


def net() -> keras.Model:
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])


def by_hand(model: keras.Model, data: aa.FeatureSet, optimizer: keras.optimizers.Optimizer) -> None:
    """One epoch."""
    x, y = (data.array(name).reshape(ROWS, -1) for name in ("x", "y"))
    for start in range(0, ROWS, BATCH):
        rows = slice(start, start + BATCH)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x[rows], training=True) - y[rows]) ** 2)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))


@pytest.mark.parametrize("trained", [(True, False, True), (False, True, True)], ids=["off in between", "off at first"])
def test_a_layer_that_is_switched_off_for_a_phase_goes_on_where_it_was(trained: tuple[bool, ...]) -> None:
    data, model, reference = table(), net(), net()
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
    optimizer.build(reference.trainable_variables)
    graph = aa.ModelGraph([aa.ModelNode("net", model, data.reference())], aa.Optimizer("momentum", lr=0.05))
    losses = [aa.AppliedLoss("mse", on="net")]
    phase = aa.TrainPhase("t", data="all", losses=losses, sampler=aa.SimpleSampler(BATCH), compile="off")
    experiment = aa.Experiment("e", graph, progress="none")
    for on in trained:
        model.layers[0].trainable = reference.layers[0].trainable = on
        by_hand(reference, data, optimizer)
        experiment.run_phase(phase)
    for value, expected in zip(model.get_weights(), reference.get_weights(), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)
