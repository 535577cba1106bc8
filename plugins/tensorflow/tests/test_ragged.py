"""Rows of different length: each batch is padded to its own longest row, as in a loop by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import anyaccel as aa

ROWS, BATCH, EPOCHS = 45, 8, 2
RANDOM = np.random.default_rng(0)
TOKENS = [RANDOM.integers(1, 50, size=n) for n in RANDOM.integers(1, 19, size=ROWS)]
Y = np.array([[row.sum() % 3] for row in TOKENS], "float32")
SAMPLER = aa.SimpleSampler(BATCH, shuffle=True, seed=3)
TABLE, WEIGHT = RANDOM.normal(size=(50, 4)).astype("float32"), RANDOM.normal(size=(4, 1)).astype("float32")


class Mean(tf.Module):
    """A mean over all places, also padded ones: another length gives other numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.weight = tf.Variable(TABLE), tf.Variable(WEIGHT)

    def __call__(self, ids: Any, mask: Any) -> Any:
        x = tf.gather(self.table, ids) * tf.cast(mask, tf.float32)[..., None]
        return tf.reduce_mean(tf.tanh(x), 1) @ self.weight


def by_hand() -> tuple[list[float], Mean]:
    net, means = Mean(), []
    for epoch in range(EPOCHS):
        order, total = SAMPLER.order(ROWS, epoch), 0.0
        for rows in np.split(order, range(BATCH, ROWS, BATCH)):
            ragged = tf.ragged.constant([TOKENS[row].tolist() for row in rows])
            with tf.GradientTape() as tape:
                output = net(ragged.to_tensor(0), tf.ones_like(ragged).to_tensor(0))
                loss = tf.reduce_mean((output - Y[rows]) ** 2)
            variables = [net.table, net.weight]
            for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
                variable.assign_sub(0.1 * tf.convert_to_tensor(gradient))
            total += float(loss) * len(rows)
        means.append(total / ROWS)
    return means, net


@pytest.mark.parametrize("compile_", ["auto", "steps"])
def test_training_is_that_of_a_loop_with_ragged_tensors(compile_: str) -> None:
    pad = {"ids": aa.Pad(0, mask="mask")}
    data = aa.FeatureSet.from_dict("texts", {"ids": TOKENS, "y": Y}, ["ids"], ["y"], pad=pad)
    net = Mean()
    node = aa.ModelNode("net", net, {"ids": data.reference("ids"), "mask": data.reference("mask")})
    loss = aa.AppliedLoss("mse", on="net")
    phase = aa.TrainPhase("t", data="all", losses=loss, sampler=SAMPLER, epochs=EPOCHS, compile=compile_)
    results = aa.Experiment("e", aa.ModelGraph([node], aa.Optimizer("sgd", lr=0.1)), progress="none").run_phase(phase)
    means, expected = by_hand()
    np.testing.assert_allclose(results.loss, means, rtol=1e-5)
    np.testing.assert_allclose(net.table.numpy(), expected.table.numpy(), rtol=1e-4, atol=1e-6)
