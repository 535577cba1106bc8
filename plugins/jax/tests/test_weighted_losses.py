"""Ignored targets, class and sample weights and masks: as optax and jax.grad over the whole batch."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen

import anyaccel as aa

ROWS, TIME, CLASSES = 24, 5, 4
CLASS_WEIGHTS = [0.5, 2.0, 1.0, 0.25]
RNG = np.random.default_rng(0)
TOKENS = RNG.integers(0, CLASSES, (ROWS, TIME)).astype("int32")
MASK = np.arange(TIME) < RNG.integers(0, TIME + 1, ROWS)[:, None]
ARRAYS = {
    "x": RNG.normal(size=(ROWS, TIME, 3)).astype("float32"),
    "tokens": np.where(MASK, TOKENS, -100).astype("int32"),
    "vector": np.where(MASK[..., None], RNG.normal(size=(ROWS, TIME, CLASSES)), np.nan).astype("float32"),
    "mask": MASK,
    "w": RNG.random(ROWS).astype("float32"),
}


def tokens_by_hand(logits, rows):
    """The mean of optax's loss, weighted by class and row, over the tokens that count."""
    counts = ARRAYS["tokens"][rows] != -100
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.where(counts, TOKENS[rows], 0))
    weights = counts * jnp.array(CLASS_WEIGHTS)[TOKENS[rows]] * ARRAYS["w"][rows][:, None]
    return (losses * weights).sum() / weights.sum()


def masked_by_hand(outputs, rows):
    counts = ARRAYS["mask"][rows][..., None]
    losses = optax.squared_error(outputs, jnp.where(counts, ARRAYS["vector"][rows], 0)).mean(-1, keepdims=True)
    return jnp.where(counts, losses, 0).sum() / counts.sum()


SPEC = aa.Loss("cross_entropy", ignore_index=-100, class_weights=CLASS_WEIGHTS)
CASES = {
    "tokens": (aa.AppliedLoss(SPEC, on="net", sample_weight="data.w"), tokens_by_hand),
    "vector": (aa.AppliedLoss("mse", on="net", mask="data.mask"), masked_by_hand),
}


@pytest.mark.parametrize("how", [{}, {"accumulate": 4}, {"accumulate": 3, "residency": "streamed"}], ids=str)
@pytest.mark.parametrize("target", CASES)
def test_steps_are_those_of_jax_over_all_that_counts_in_the_batch(target, how):
    loss, function = CASES[target]
    net = linen.Dense(CLASSES)
    data = aa.FeatureSet.from_dict("data", ARRAYS, ["x"], [target], [n for n in ARRAYS if n not in ("x", target)])

    def run(lr, **settings):
        graph = aa.ModelGraph([aa.ModelNode("net", net, data.reference("x"))], aa.Optimizer("sgd", lr=lr))
        graph.build()
        before = graph.state()
        sampler = aa.SimpleSampler(12 // how.get("accumulate", 1))
        phase = aa.TrainPhase("train", data="all", losses=loss, sampler=sampler, **settings)
        experiment = aa.Experiment("test", graph, progress="none")
        losses = experiment.run_phase(phase).loss
        evaluated = experiment.run_phase(aa.EvalPhase("eval", data="all", losses=loss, batch_size=7)).loss
        return before, graph.state(), losses, evaluated

    before, after, _, evaluated = run(0.5, **how)
    names = [name for name in before if name.endswith(("kernel", "bias"))]
    kernel, bias = (jnp.asarray(before[next(n for n in names if n.endswith(end))]) for end in ("kernel", "bias"))
    parameters = {"kernel": kernel, "bias": bias}

    def outputs(parameters, rows):
        return ARRAYS["x"][rows] @ parameters["kernel"] + parameters["bias"]

    for rows in np.arange(ROWS).reshape(2, 12):
        gradients = jax.grad(lambda p: function(outputs(p, rows), rows))(parameters)  # noqa: B023
        parameters = jax.tree.map(lambda p, g: p - 0.5 * g, parameters, gradients)
    for name in names:
        ours, theirs = after[name], parameters[name.rpartition("/")[2].rpartition(".")[2]]
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    everything = np.arange(ROWS)
    assert evaluated == pytest.approx(float(function(outputs(parameters, everything), everything)), rel=1e-5)
    before, _, losses, _ = run(1e-20, **how)
    kernel, bias = (jnp.asarray(before[next(n for n in names if n.endswith(end))]) for end in ("kernel", "bias"))
    expected = float(function(outputs({"kernel": kernel, "bias": bias}, everything), everything))
    assert losses[0] == pytest.approx(expected, rel=1e-6)


def test_a_batch_in_which_nothing_counts_changes_nothing():
    arrays = {**ARRAYS, "none": np.zeros(ROWS, bool)}
    data = aa.FeatureSet.from_dict("data", arrays, ["x"], ["tokens"], ["none"])
    graph = aa.ModelGraph([aa.ModelNode("net", linen.Dense(CLASSES), data.reference("x"))], aa.Optimizer("sgd", lr=0.5))
    graph.build()
    before = graph.state()
    loss = aa.AppliedLoss(aa.Loss("cross_entropy", ignore_index=-100), on="net", mask="data.none")
    phase = aa.TrainPhase("train", data="all", losses=loss, batch_size=8)
    with pytest.warns(aa.errors.NaNWarning, match="because nothing counts: all weights are 0"):
        aa.Experiment("test", graph, progress="none").run_phase(phase)
    for name, array in before.items():
        if name.endswith(("kernel", "bias")):
            np.testing.assert_array_equal(graph.state()[name], array)
