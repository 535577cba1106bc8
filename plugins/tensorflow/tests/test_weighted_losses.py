"""Ignored targets, class and sample weights: as Keras's losses and a tape over the whole batch."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import anyaccel as aa

ROWS, TIME, CLASSES = 24, 5, 4
CLASS_WEIGHTS = [0.5, 2.0, 1.0, 0.25]
RNG = np.random.default_rng(0)
TOKENS = RNG.integers(0, CLASSES, (ROWS, TIME))
MASK = np.arange(TIME) < RNG.integers(0, TIME + 1, ROWS)[:, None]
ARRAYS = {
    "x": RNG.normal(size=(ROWS, TIME, 3)).astype("float32"),
    "tokens": np.where(MASK, TOKENS, -100),
    "w": RNG.random(ROWS).astype("float32"),
}


def by_hand(logits, rows):
    """Keras's loss of each token, and its weighted mean over the tokens that count."""
    losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-100, reduction="none")
    weights = MASK[rows] * np.array(CLASS_WEIGHTS)[TOKENS[rows]] * ARRAYS["w"][rows][:, None]
    return tf.reduce_sum(losses(ARRAYS["tokens"][rows], logits) * weights) / weights.sum()


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"compile": "steps"},
        {"accumulate": 4, "compile": "steps"},
        {"accumulate": 3, "residency": "streamed"},
        {"accumulate": 3, "residency": "streamed", "accelerator": "cpu:1"},
        {"deterministic": True, "accelerator": "cpu:1"},
    ],
)
def test_steps_are_those_of_keras_over_all_that_counts_in_the_batch(how):
    data = aa.FeatureSet.from_dict("data", ARRAYS, ["x"], ["tokens"], ["w"])
    spec = aa.Loss("cross_entropy", ignore_index=-100, class_weights=CLASS_WEIGHTS)
    loss = aa.AppliedLoss(spec, on="net", sample_weight="data.w")

    def run(lr):
        layer = keras.layers.Dense(CLASSES, kernel_initializer=keras.initializers.GlorotUniform(seed=0))
        graph = aa.ModelGraph([aa.ModelNode("net", layer, data.reference("x"))], aa.Optimizer("sgd", lr=lr))
        graph.build()
        before = [tf.constant(weight) for weight in layer.get_weights()]
        sampler = aa.SimpleSampler(12 // how.get("accumulate", 1))
        phase = aa.TrainPhase("train", data="all", losses=loss, sampler=sampler, **how)
        losses = aa.Experiment("test", graph, progress="none").run_phase(phase).loss
        return before, layer.get_weights(), losses[0]

    (kernel, bias), after, _ = run(0.5)
    for rows in np.arange(ROWS).reshape(2, 12):
        with tf.GradientTape() as tape:
            tape.watch([kernel, bias])
            mean = by_hand(ARRAYS["x"][rows] @ kernel + bias, rows)
        gradients = tape.gradient(mean, [kernel, bias])
        kernel, bias = kernel - 0.5 * gradients[0], bias - 0.5 * gradients[1]
    np.testing.assert_allclose(after[0], kernel, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(after[1], bias, rtol=1e-5, atol=1e-6)
    (kernel, bias), _, mean = run(1e-20)
    everything = np.arange(ROWS)
    assert mean == pytest.approx(float(by_hand(ARRAYS["x"][everything] @ kernel + bias, everything)), rel=1e-6)
