"""Samplers in turn over a graph of three frameworks: what a step lacks crosses no border; the numbers are NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anyaccel as aa
import anyaccel_jax
import anyaccel_tensorflow
import anyaccel_torch


def sets() -> dict[str, aa.FeatureSet]:
    drawn = np.random.default_rng(4)
    made = {}
    for label, n in (("a", 24), ("b", 9)):
        x, y = drawn.normal(size=(n, 5)).astype("float32"), drawn.normal(size=(n, 1)).astype("float32")
        made[label] = aa.FeatureSet.from_dict(label, {"x": x, "y": y, "k": np.arange(n) % 2}, ["x"], ["y"], ["k"])
    return made


def graph(encoder: Any, left: Any, right: Any) -> aa.ModelGraph:
    """One encoder for `a`, its pairs, and `b`; a head for each of `a` and `b`."""
    data, shared = sets(), encoder((4,))
    nodes = [
        aa.ModelNode("ea", shared, data["a"].reference()),
        aa.ModelNode("pair", shared, data["a"].reference(stream="pair")),
        aa.ModelNode("eb", shared, data["b"].reference()),
        aa.ModelNode("ha", left((1,)), "ea"),
        aa.ModelNode("hb", right((1,)), "eb"),
    ]
    return aa.ModelGraph(nodes, aa.Optimizer("adamw", lr=0.01, weight_decay=0.1, clip_norm=0.5), seed=3)


def trained(made: aa.ModelGraph, schedule: str) -> tuple[Any, dict[str, np.ndarray]]:
    phase = aa.TrainPhase(
        "t",
        data="all",
        losses=[
            aa.AppliedLoss("mse", on="ha"),
            aa.AppliedLoss("mse", on="hb", weight=2.0),
            aa.AppliedLoss("mse", on="ea", inputs=["outputs", "pair"], weight=0.1, label="alike"),
        ],
        sampler={"a": aa.PairSampler(8, aa.Same("k"), seed=1), "b": aa.SimpleSampler(4, shuffle=True)},
        schedule=schedule,
        n_epochs=3,
        validation=aa.EvalPhase("v", data="all", metrics=[aa.Metric("mse", on="hb")], batch_size=10),
    )
    results = aa.Experiment("e", made, progress="none").run_phase(phase)
    return results, {name: value for name, value in made.state().items() if "/parameters/" in name}


MIXES = {
    "torch, jax, tensorflow": (anyaccel_torch, anyaccel_jax, anyaccel_tensorflow),
    "jax alone": (anyaccel_jax,) * 3,
    "tensorflow alone": (anyaccel_tensorflow,) * 3,
    "torch alone": (anyaccel_torch,) * 3,
}


@pytest.mark.parametrize("schedule", ["zip_cycle", "alternate_cycle"])
@pytest.mark.parametrize("mix", MIXES)
def test_three_frameworks_take_turns_as_numpy_does(mix: str, schedule: str) -> None:
    expected, weights = trained(graph(*[aa.SequentialMLP] * 3), schedule)
    found, others = trained(graph(*[one.SequentialMLP for one in MIXES[mix]]), schedule)
    assert found.epochs[0].steps == expected.epochs[0].steps == (3 if schedule == "zip_cycle" else 6)
    assert found.figures == expected.figures
    for name in expected.figures:
        np.testing.assert_allclose(found.figure(name), expected.figure(name), rtol=2e-4, atol=1e-5, err_msg=name)
    assert set(others) == set(weights)
    for name, value in weights.items():
        np.testing.assert_allclose(others[name], value, rtol=1e-3, atol=1e-4, err_msg=name)
