"""Mixed precision in every framework, and in one graph over several."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.precision import ComputesPrecision
from anyaccel.registry import registry

PLUGINS = {"torch": "anyaccel_torch", "jax": "anyaccel_jax", "tensorflow": "anyaccel_tensorflow"}


def mlp(framework: str, *arguments: Any, **settings: Any) -> Any:
    module = import_module(PLUGINS.get(framework, "anyaccel"))
    return module.SequentialMLP(*arguments, **settings)


@pytest.fixture(scope="module")
def digits() -> aa.FeatureSet:
    x, y = pytest.importorskip("sklearn.datasets").load_digits(return_X_y=True)
    data = aa.FeatureSet.from_dict("digits", {"x": (x / 16).astype("float32"), "y": y}, ["x"], ["y"])
    data.split_random({"train": 0.75, "test": 0.25}, seed=0)
    return data


def accuracy(framework: str, data: aa.FeatureSet, precision: str | None) -> float:
    model = mlp(framework, (10,), n_layers=2, hidden_dim=48)
    graph = aa.ModelGraph([aa.ModelNode("net", model, data.reference())], aa.Optimizer("adam", lr=3e-3), seed=3)
    losses = [aa.AppliedLoss("cross_entropy", on="net")]
    graph.run(aa.TrainPhase("train", data="train", losses=losses, epochs=8, precision=precision))
    return graph.run(aa.EvalPhase("test", data="test", metrics=["accuracy"], precision=precision)).metrics["accuracy"]


def test_digits_are_learned_as_well_in_mixed_precision(framework: str, digits: aa.FeatureSet) -> None:
    """To the accuracy of float32 within half a point."""
    if not isinstance(registry().computing(framework), ComputesPrecision):
        pytest.skip(f"{framework} computes in its own precision alone")
    plain = accuracy(framework, digits, None)
    assert plain > 0.9
    for precision in ("bf16-mixed", "fp16-mixed"):
        assert abs(accuracy(framework, digits, precision) - plain) <= 0.005, precision


def chain(data: aa.FeatureSet) -> aa.ModelGraph:
    nodes = [
        aa.ModelNode(
            "encoder", mlp("torch", (16,), n_layers=2, hidden_dim=16), data.reference(), precision="fp16-mixed"
        ),
        aa.ModelNode("body", mlp("jax", (16,), n_layers=2, hidden_dim=16), "encoder", precision="bf16-mixed"),
        aa.ModelNode("head", mlp("tensorflow", (1,), n_layers=1), "body"),
    ]
    return aa.ModelGraph(nodes, aa.Optimizer("adam", lr=1e-2, clip_norm=0.5), seed=1)


def table(*, spoiled: bool) -> aa.FeatureSet:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 5)).astype("float32")
    y = x[:, :1] * x[:, 1:2]
    if spoiled:
        x[[20, 50]] = 1e6
    return aa.FeatureSet.from_dict("data", {"x": x, "y": y}, ["x"], ["y"])


def trained(graph: aa.ModelGraph, data: aa.FeatureSet, **settings: Any) -> aa.TrainResults:
    losses, sampler = [aa.AppliedLoss("mse", on="head")], aa.SimpleSampler(8)
    return graph.run(aa.TrainPhase("train", data=data, losses=losses, sampler=sampler, **settings))


@pytest.mark.usefixtures("three")
def test_one_loss_scale_holds_in_a_graph_of_several_frameworks() -> None:
    """Gradients that cross are of scaled losses, and a step is skipped in all frameworks or in none."""
    data = table(spoiled=True)
    graph = chain(data)
    results = trained(graph, data, epochs=2, loss_scale=1024.0, on_nan="ignore")
    assert {label: state.step for label, state in graph.optimizer_states.items()} == dict.fromkeys(
        ("encoder", "body", "head"), 12
    )
    told = [event.message for event in results.events if event.kind == "precision"]
    assert [message.split(" because")[0] for message in told] == ["2 of 8 steps were skipped"] * 2
    assert told[-1].endswith("scaled by 64")


@pytest.mark.usefixtures("three")
def test_a_scale_changes_nothing_but_rounding() -> None:
    data = table(spoiled=False)
    losses = [trained(chain(data), data, epochs=4, loss_scale=scale).loss for scale in (1.0, 4096.0)]
    np.testing.assert_allclose(losses[1], losses[0], rtol=2e-3)


@pytest.mark.usefixtures("three")
def test_what_crosses_is_float32() -> None:
    data = table(spoiled=False)
    losses = [aa.AppliedLoss("mse", on="head")]
    plan = aa.Experiment("e", chain(data)).plan(aa.TrainPhase("train", data=data, losses=losses))
    assert {crossing.nbytes for crossing in plan.crossings} == {16 * 4}
