"""Estimators learn from the same batches and are fitted to the same rows where these are streamed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from anyaccel import AppliedLoss, SimpleSampler
from anyaccel.data import FeatureSet
from anyaccel.experiment import Experiment
from anyaccel.graph import ModelGraph, ModelNode
from anyaccel.metrics import Metric
from anyaccel.numpy_backend import Dense, SequentialMLP, simulate
from anyaccel.phases import EvalPhase, Phase, TrainPhase
from anyaccel.phases.loading import residency as loader_factory
from anyaccel.phases.loading.streaming import StreamingLoader
from anyaccel.specs import Optimizer
from anyaccel_sklearn import Estimator, FitPhase

MSE = AppliedLoss("mse", on="net")


SIZES = [1, 200, 2**20]  # bytes of a block: one step, a few, everything


Blocks = Callable[[int], None]


def numbers(label: str = "data", n: int = 50, seed: int = 0) -> FeatureSet:
    """Features [3], a target, and labels of three classes; splits `train` (37 rows) and `val`."""
    draw = np.random.default_rng(seed)
    columns = {
        "x": draw.normal(size=(n, 3)).astype("float32"),
        "y": draw.normal(size=(n, 1)).astype("float32"),
        "k": np.arange(n) % 3,
    }
    made = FeatureSet.from_dict(label, columns, ["x"], ["y"], ["k"])
    made.add_splits({"train": np.arange(n)[: n * 3 // 4], "val": np.arange(n)[n * 3 // 4 :]})
    return made


def run(graph: ModelGraph, phase: Phase, **settings: Any) -> Any:
    return Experiment("e", graph, progress="none", **settings).run_phase(phase)


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> Blocks:
    """`blocks(64)`: streamed blocks are of that many bytes, and at least of one step."""
    return lambda nbytes: monkeypatch.setattr(loader_factory, "BLOCK_BYTES", nbytes)


@pytest.fixture
def spied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Steps of each block that was streamed."""
    seen: list[int] = []
    fill = StreamingLoader.fill

    def watch(self: StreamingLoader, block: Any, buffers: Any) -> Any:
        seen.append(sum(steps.n_steps for steps in block.steps))
        return fill(self, block, buffers)

    monkeypatch.setattr(StreamingLoader, "fill", watch)
    return seen


def one(model: Any = None, **settings: Any) -> ModelGraph:
    source = settings.pop("source", None) or numbers()
    node = ModelNode("net", model or SequentialMLP((1,), 2, 5, "tanh"), source.reference(["x"], ["y"]))
    return ModelGraph([node], Optimizer("adam", lr=0.03), seed=5, **settings)


def differ(one: Any, other: Any) -> list[str]:
    """Names of values that are not equal to the bit."""
    assert sorted(one) == sorted(other)
    return [name for name in one if not np.array_equal(one[name], other[name], equal_nan=True)]


def both(make: Callable[[], ModelGraph], phase: Callable[..., Phase]) -> tuple[list[Any], list[dict[str, np.ndarray]]]:
    """Results and states, resident and streamed."""
    results, states = [], []
    for residency in ("resident", "streamed"):
        graph = make()
        results.append(run(graph, phase(residency=residency)))
        states.append(graph.state())
    return results, states


SAMPLERS = {
    "in order": SimpleSampler(4),
    "shuffled": SimpleSampler(5, shuffle=True, seed=3),
    "dropped": SimpleSampler(5, shuffle=True, drop_last=True),
    "whole": SimpleSampler(100, shuffle=True),
    "single": SimpleSampler(1, shuffle=True),
}


class Steps:
    """Least squares by gradient steps, and a diary."""

    def __init__(self) -> None:
        self.diary: list[Any] = []

    def partial_fit(self, features: Any, targets: Any) -> None:
        self.diary.append((features.tolist(), targets.tolist()))
        if not hasattr(self, "coef_"):
            self.coef_ = np.zeros(features.shape[1])
        self.coef_ -= 0.01 * features.T @ (features @ self.coef_ - targets)

    def predict(self, features: Any) -> Any:
        return (features @ self.coef_).astype("float32")

    def fit(self, features: Any, targets: Any) -> None:
        self.diary.append((features.tolist(), targets.tolist()))
        self.coef_ = np.linalg.lstsq(features, targets, rcond=None)[0]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("alone", [True, False])
def test_estimators_learn_from_the_same_batches(alone: bool, size: int, blocks: Blocks) -> None:
    blocks(size)
    diaries = []

    def make() -> ModelGraph:
        source = numbers()
        nodes = [ModelNode("est", Steps(), source.reference(["x"], ["y"]))]
        if not alone:
            nodes = [ModelNode("net", Dense(1), source.reference(["x"], ["y"])), *nodes]
            nodes.append(ModelNode("after", Steps(), "net"))
        diaries.append([node.model.estimator.diary for node in nodes if isinstance(node.model, Estimator)])
        return ModelGraph(nodes, Optimizer("sgd", lr=0.1), seed=5)

    validation = EvalPhase("val", data="val", metrics=[Metric("mse", on="est")])
    results, states = both(
        make,
        lambda **more: TrainPhase(
            "t",
            data="train",
            losses=[] if alone else [MSE],
            sampler=SAMPLERS["shuffled"],
            epochs=2,
            validation=validation,
            **more,
        ),
    )
    assert differ(*states) == []
    assert diaries[0] == diaries[1] and all(len(diary) == 16 for diary in diaries[0])
    assert [epoch.validation for epoch in results[0].epochs] == [epoch.validation for epoch in results[1].epochs]


@pytest.mark.parametrize("size", SIZES)
def test_fits_are_the_same_when_streamed(size: int, blocks: Blocks, spied: list[int]) -> None:
    blocks(size)
    diaries = []
    for residency in ("resident", "streamed"):
        source = numbers()
        nodes = [
            ModelNode("net", Dense(2), source.reference(["x"], ["y"])),
            ModelNode("first", Steps(), "net"),
            ModelNode("second", Estimator(Steps()), "first"),
        ]
        graph = ModelGraph(nodes, seed=5)
        spied.clear()
        run(graph, FitPhase("f", data="train", batch_size=7, residency=residency))
        diaries.append([graph[name].model.estimator.diary for name in ("first", "second")])
    assert diaries[0] == diaries[1] and spied


def test_a_fit_streams_what_a_device_cannot_hold() -> None:
    made = ModelGraph([ModelNode("net", Dense(1), numbers(n=4000).reference(["x"], ["y"]))])
    made.add_node(ModelNode("est", Steps(), "net"))
    nbytes = 3000 * 3 * 4
    with simulate(1, capacity=nbytes // 4) as sims:
        result = run(made, FitPhase("p", data="train", batch_size=50, accelerator="sim:0"))
        assert sims[0].peak <= nbytes // 4
    assert [event.kind for event in result.events] == ["residency"]
