"""Batches that the model in training makes itself (`read_ahead=0`): it has its current values then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

import anyaccel as aa
from anyaccel_jax import Function


def episodes(answer: Callable[[Any], Any]) -> Callable[[], Iterator[Any]]:
    def batches() -> Iterator[Any]:
        draw = np.random.default_rng(5)
        for _ in range(5):
            x = draw.normal(size=(4, 3)).astype("float32")
            yield x, np.asarray(answer(x)) * 0.5 + 1

    return batches


def test_the_model_has_its_current_values_when_it_makes_a_batch() -> None:
    model = Function(lambda p, x: x @ p["w"], {"w": jnp.ones((3, 1))})
    source = aa.IterableSource("src", episodes(model), features="x", target="y", read_ahead=0)
    graph = aa.ModelGraph([aa.ModelNode("net", model, source.reference())], aa.Optimizer("sgd", lr=0.1))
    phase = aa.TrainPhase("t", data=source, losses=[aa.AppliedLoss("mse", on="net")])
    aa.Experiment("e", graph, progress="none").run_phase(phase)
    own = {"w": np.ones((3, 1), "float32")}
    for x, y in episodes(lambda x: x @ own["w"])():
        own["w"] = own["w"] - 0.1 * 2 * x.T @ (x @ own["w"] - y) / len(x)
    np.testing.assert_allclose(model.parameters["w"], own["w"], rtol=1e-4)
