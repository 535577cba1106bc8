"""Rows of different length: each batch is padded to its own longest row, as in a loop by hand."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import anyaccel as aa
from anyaccel_jax import Function

ROWS, BATCH, EPOCHS = 45, 8, 3
RANDOM = np.random.default_rng(0)
TOKENS = [RANDOM.integers(1, 50, size=n).astype("int32") for n in RANDOM.integers(1, 19, size=ROWS)]
Y = np.array([[row.sum() % 3] for row in TOKENS], "float32")
SAMPLER = aa.SimpleSampler(BATCH, shuffle=True, seed=3)
PAD = aa.Pad(0, multiple_of=4, mask="mask")


def apply(parameters: Any, ids: Any, mask: Any) -> Any:
    """A mean over all places, also padded ones: another length gives other numbers."""
    return jnp.tanh(parameters["e"][ids] * mask[..., None]).mean(1) @ parameters["w"]


def parameters() -> dict[str, Any]:
    one, two = jax.random.split(jax.random.key(0))
    return {"e": jax.random.normal(one, (50, 4)), "w": jax.random.normal(two, (4, 1))}


def padded(rows: Any) -> tuple[Any, Any]:
    width = -(-max(len(TOKENS[row]) for row in rows) // 4) * 4
    ids, mask = np.zeros((2, len(rows), width), "int32")
    for place, row in enumerate(rows):
        ids[place, : len(TOKENS[row])], mask[place, : len(TOKENS[row])] = TOKENS[row], 1
    return ids, mask


def by_hand() -> tuple[list[float], Any]:
    values, means = parameters(), []
    step = jax.jit(jax.value_and_grad(lambda p, ids, mask, y: ((apply(p, ids, mask) - y) ** 2).mean()))
    for epoch in range(EPOCHS):
        order, total = SAMPLER.order(ROWS, epoch), 0.0
        for rows in np.split(order, range(BATCH, ROWS, BATCH)):
            loss, gradients = step(values, *padded(rows), Y[rows])
            values = jax.tree.map(lambda value, gradient: value - 0.1 * gradient, values, gradients)
            total += float(loss) * len(rows)
        means.append(total / ROWS)
    return means, values


def sources() -> dict[str, Any]:
    items = [{"ids": row, "y": y} for row, y in zip(TOKENS, Y, strict=True)]
    return {
        "rows": aa.FeatureSet.from_dict("texts", {"ids": TOKENS, "y": Y}, ["ids"], ["y"], pad={"ids": PAD}),
        "items": aa.MapSource("texts", items, features="ids", target="y", pad={"ids": PAD}),
    }


@pytest.mark.parametrize(("kind", "compile_"), [("rows", "auto"), ("rows", "off"), ("items", "auto")])
def test_training_is_that_of_a_loop_by_hand(kind: str, compile_: str) -> None:
    data, model = sources()[kind], Function(apply, parameters())
    node = aa.ModelNode("net", model, {"ids": data.reference("ids"), "mask": data.reference("mask")})
    phase = aa.TrainPhase(
        "t",
        data="all" if kind == "rows" else data,
        losses=aa.AppliedLoss("mse", on="net"),
        sampler=SAMPLER,
        epochs=EPOCHS,
        compile=compile_,
    )
    results = aa.Experiment("e", aa.ModelGraph([node], aa.Optimizer("sgd", lr=0.1)), progress="none").run_phase(phase)
    means, expected = by_hand()
    np.testing.assert_allclose(results.loss, means, rtol=1e-5)
    for name, value in expected.items():
        np.testing.assert_allclose(model.parameters[name], value, rtol=1e-5, atol=1e-6)
