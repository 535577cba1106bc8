"""Training with the streams of pair and triplet samplers, and their configurations in phases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from anyaccel import (
    AppliedLoss,
    Beyond,
    Different,
    EvalPhase,
    FeatureSet,
    ModelGraph,
    ModelNode,
    Optimizer,
    PairSampler,
    Same,
    SimpleSampler,
    TrainPhase,
    TripletSampler,
)
from anyaccel.errors import SamplerError
from anyaccel.experiment import Experiment
from anyaccel.numpy_backend import Dense, Simulation
from anyaccel.phases import Phase

N = 12
LABELS = np.arange(N) % 3


@pytest.fixture
def source() -> FeatureSet:
    """Row numbers as features, and three labels; splits `low` (8 rows) and `high` (4 rows)."""
    x = np.arange(N, dtype="float64").reshape(N, 1)
    columns = {"x": x, "y": x * 0.5, "label": LABELS.astype("float64").reshape(N, 1), "id": np.arange(N)}
    made = FeatureSet.from_dict("data", columns, ["x"], ["y", "label"], ["id"])
    made.add_splits({"low": np.arange(8), "high": np.arange(8, 12)})
    return made


def siamese(source: FeatureSet, *streams: str | None, model: Any = None, **settings: Any) -> ModelGraph:
    """One model at several streams, as nodes n0, n1, ..."""
    one = model or unit()
    nodes = [
        ModelNode(f"n{i}", one, source.reference(["x"], ["y"], stream=stream), **settings)
        for i, stream in enumerate(streams)
    ]
    return ModelGraph(nodes, Optimizer("sgd", lr=0.01))


def unit() -> Dense:
    """The identity."""
    made = Dense(1, dtype="float64")
    made.parameters.update(weight=np.ones((1, 1)), bias=np.zeros(1))
    return made


def run(graph: ModelGraph, phase: Phase) -> Any:
    return Experiment("e", graph, progress="none").run_phase(phase)


def refused(error: type[Exception], make: Callable[[], Any]) -> str:
    with pytest.raises(error) as caught:
        make()
    return str(caught.value)


def triplet(anchor: Any, positive: Any, negative: Any) -> Any:
    """max(0, (a - p)^2 - (a - n)^2 + 1), with its gradients, for the reference."""
    gap = np.square(anchor - positive) - np.square(anchor - negative) + 1.0
    on = gap > 0
    gradients = 2 * (negative - positive) * on, 2 * (positive - anchor) * on, 2 * (anchor - negative) * on
    return np.sum(gap * on), len(anchor), gradients


def test_a_loss_over_three_streams_trains() -> None:
    kinds = np.arange(60) % 2
    x = np.random.default_rng(0).normal(size=(60, 3)) + np.array([[6.0, 0, 0]]) * kinds[:, None]
    tags = FeatureSet.from_dict("data", {"x": x, "k": ["ab"[kind] for kind in kinds]}, ["x"], [], ["k"])
    model = Dense(1, dtype="float64")
    nodes = [ModelNode(stream, model, tags.reference(stream=stream)) for stream in TripletSampler.streams]
    graph = ModelGraph(nodes, Optimizer("sgd", lr=0.02))
    loss = AppliedLoss(triplet, "anchor", ["outputs", "positive", "negative"])
    sampler = TripletSampler(8, Same("k"), Different("k"))
    results = run(graph, TrainPhase("t", data=tags, losses=[loss], sampler=sampler, epochs=40))
    assert results.loss[-1] < 0.5 * results.loss[0]


@pytest.mark.parametrize(
    "sampler",
    [
        PairSampler(4, [Same("label"), Beyond("y", 1)], Different("label")),
        TripletSampler(4, Same("label"), Different("y")),
    ],
)
def test_phases_keep_their_samplers_in_configurations(sampler: Any, source: FeatureSet) -> None:
    phase = TrainPhase("t", data="low", losses=[AppliedLoss("mse", "n0")], sampler=sampler, validation="high")
    back = Phase.from_config(phase.get_config())
    assert isinstance(back, TrainPhase) and back.validation is not None
    assert back.sampler == sampler == back.validation.sampler and back.get_config() == phase.get_config()


def test_a_sampler_without_pairs_is_refused_before_anything_moves(source: FeatureSet, sims: Simulation) -> None:
    phase = TrainPhase(
        "t",
        data=source,
        losses=[AppliedLoss("mse", "n0", ["outputs", "n1"])],
        sampler=PairSampler(4, Beyond("y", 100)),
        accelerator="sim:0",
    )
    graph = siamese(source, None, "pair")
    message = refused(SamplerError, lambda: run(graph, phase))
    assert "no row of 'data' has a partner by Beyond('y', 100)" in message
    assert isinstance(graph["n0"].model.parameters["weight"], np.ndarray)  # type: ignore[union-attr]


def test_samplers_and_schedule_are_in_the_configuration() -> None:
    losses = [AppliedLoss("mse", "na")]
    sampler = {"a": SimpleSampler(4, shuffle=True), "b": PairSampler(2, Same("k"))}
    phase = TrainPhase("t", data="all", losses=losses, sampler=sampler, schedule="zip_cycle", validation="last")
    back = Phase.from_config(phase.get_config())
    assert isinstance(back, TrainPhase) and (back.sampler, back.schedule) == (sampler, "zip_cycle")
    assert back.validation is not None and back.validation.sampler == {"b": sampler["b"]}
    assert back.get_config() == phase.get_config()


def test_a_validation_whose_rows_have_no_partners_is_refused(source: FeatureSet) -> None:
    source.add_split("three", [0, 1, 2])  # of three labels
    loss = AppliedLoss("mse", "n0", ["outputs", "n1"])
    phase = TrainPhase("t", data="low", losses=[loss], sampler=PairSampler(4, Same("label")), validation="three")
    message = refused(SamplerError, lambda: run(siamese(source, None, "pair"), phase))
    assert "no row of 'data' has a partner by Same('label')" in message


def test_pairs_are_drawn_in_every_epoch(source: FeatureSet) -> None:
    assert not PairSampler(2, Same("label")).epoch_orders({"data": source}).fixed


def test_rows_of_a_split_are_drawn_within_it(source: FeatureSet) -> None:
    results = run(
        siamese(source, "anchor", "positive", "negative"),
        EvalPhase("e", data="low", sampler=TripletSampler(3, Same("label"), Different("label"))),
    )
    anchors, positives, negatives = (
        results.rows[name].array("id") for name in ("data", "data@positive", "data@negative")
    )
    assert sorted(anchors) == list(range(8)) and max(*positives, *negatives) < 8
    assert (LABELS[anchors] == LABELS[positives]).all() and (LABELS[anchors] != LABELS[negatives]).all()
