"""Alternating samplers over a graph of three frameworks give the losses and weights of NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.registry import registry

SCHEDULES = {"zip_cycle": 3, "alternate_cycle": 6}


def feature_sets_of_two_sizes() -> dict[str, aa.FeatureSet]:
    random = np.random.default_rng(4)
    feature_sets = {}
    for label, n in (("a", 24), ("b", 9)):
        x, y = random.normal(size=(n, 5)).astype("float32"), random.normal(size=(n, 1)).astype("float32")
        feature_sets[label] = aa.FeatureSet.from_dict(
            label, {"x": x, "y": y, "k": np.arange(n) % 2}, ["x"], ["y"], ["k"]
        )
    return feature_sets


def make_graph(encoder: Any, left: Any, right: Any) -> aa.ModelGraph:
    """One encoder for `a`, its pairs, and `b`; a head for each of `a` and `b`."""
    data, shared = feature_sets_of_two_sizes(), encoder((4,))
    nodes = [
        aa.ModelNode("ea", shared, data["a"].reference()),
        aa.ModelNode("pair", shared, data["a"].reference(stream="pair")),
        aa.ModelNode("eb", shared, data["b"].reference()),
        aa.ModelNode("ha", left((1,)), "ea"),
        aa.ModelNode("hb", right((1,)), "eb"),
    ]
    return aa.ModelGraph(nodes, aa.Optimizer("adamw", lr=0.01, weight_decay=0.1, clip_norm=0.5), seed=3)


def train(graph: aa.ModelGraph, schedule: str) -> tuple[Any, dict[str, np.ndarray]]:
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
        epochs=3,
        validation=aa.EvalPhase("v", data="all", metrics=[aa.Metric("mse", on="hb")], batch_size=10),
    )
    results = aa.Experiment("e", graph, progress="none").run_phase(phase)
    return results, {name: value for name, value in graph.state().items() if "/parameters/" in name}


def assert_trains_like_numpy(frameworks: tuple[str, str, str], schedule: str) -> None:
    """Assert that an encoder and two heads of these frameworks train as in NumPy."""
    models: list[Any] = [registry().computing(name).models()["SequentialMLP"] for name in frameworks]
    expected, weights = train(make_graph(*[aa.SequentialMLP] * 3), schedule)
    actual, actual_weights = train(make_graph(*models), schedule)
    assert actual.epochs[0].steps == expected.epochs[0].steps == SCHEDULES[schedule]
    assert actual.figures == expected.figures
    for name in expected.figures:
        np.testing.assert_allclose(actual.figure(name), expected.figure(name), rtol=2e-4, atol=1e-5, err_msg=name)
    assert set(actual_weights) == set(weights)
    for name, value in weights.items():
        np.testing.assert_allclose(actual_weights[name], value, rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.mark.shared
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_framework_alternates_like_numpy(framework: str, schedule: str) -> None:
    assert_trains_like_numpy((framework,) * 3, schedule)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_three_frameworks_alternate_like_numpy(three: tuple[str, str, str], schedule: str) -> None:
    assert_trains_like_numpy(three, schedule)
