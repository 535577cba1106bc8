"""Weighted losses in a graph of two frameworks: accumulated batches are one batch of what counts in all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.registry import registry

ROWS = 24
RNG = np.random.default_rng(0)
MASK = np.arange(4) < RNG.integers(0, 5, ROWS)[:, None]
COLUMNS = {
    "x": RNG.normal(size=(ROWS, 3)).astype("float32"),
    "tokens": np.where(MASK, RNG.integers(0, 3, (ROWS, 4)), -100),
    "code": RNG.normal(size=(ROWS, 5)).astype("float32"),
    "mask": MASK,
    "w": RNG.random(ROWS).astype("float32"),
}
TOKENS = aa.Loss("cross_entropy", ignore_index=-100, class_weights=[1, 2, 3])
LOSSES = [
    aa.AppliedLoss(TOKENS, "head", ["outputs", "data.tokens"]),
    aa.AppliedLoss("mse", "encoder", ["outputs", "data.code"], 0.3, sample_weight="data.w"),
    aa.AppliedLoss("mae", "encoder", ["outputs", "data.code"], 0.2, "plain"),
]


def model(framework: str, *shape: int) -> Any:
    cls: Any = registry().computing(framework).models()["SequentialMLP"]
    return cls(output_shape=shape, n_layers=2, hidden_dim=8, activation="tanh")


def trained(frameworks: tuple[str, str], size: int, accumulate: int) -> tuple[list[float], Any, dict[str, Any]]:
    data = aa.FeatureSet.from_dict("data", COLUMNS, ["x"], ["tokens", "code"], ["mask", "w"])
    nodes = [
        aa.ModelNode("encoder", model(frameworks[0], 5), data.reference("x")),
        aa.ModelNode("head", model(frameworks[1], 4, 3), "encoder"),
    ]
    graph = aa.ModelGraph(nodes, aa.Optimizer("sgd", lr=0.3), seed=1)
    sampler = aa.SimpleSampler(size)
    phase = aa.TrainPhase("t", data="all", losses=LOSSES, sampler=sampler, epochs=2, accumulate=accumulate)
    losses = aa.Experiment("e", graph, progress="none").run_phase(phase).loss
    evaluated = aa.Experiment("e", graph, progress="none").run_phase(
        aa.EvalPhase("v", data="all", losses=LOSSES, batch_size=7)
    )
    return list(losses), evaluated.losses, graph.state()


@pytest.mark.across
@pytest.mark.parametrize("frameworks", [("torch", "jax"), ("jax", "tensorflow"), ("tensorflow", "torch")])
def test_accumulated_batches_over_two_frameworks_are_one_batch_of_what_counts(frameworks):
    for framework in {"torch", *frameworks}:
        pytest.importorskip(f"anyaccel_{framework}")
    losses, evaluated, state = trained(("torch", "torch"), 15, 1)
    ours, evaluated_ours, state_ours = trained(frameworks, 5, 3)
    assert ours == pytest.approx(losses, rel=1e-5)
    assert evaluated_ours == pytest.approx(evaluated, rel=1e-5)
    for name, array in state.items():
        if "/parameters/" in name:
            np.testing.assert_allclose(state_ours[name], array, rtol=1e-4, atol=1e-6, err_msg=name)
