"""Streams of samplers: training and evaluating with pairs and triplets, which columns are loaded, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from neighbours import Neighbours, Threes

from anyaccel import AppliedLoss, EpochOrders, Sampler, SimpleSampler
from anyaccel.data import FeatureSet, Reference
from anyaccel.errors import ColumnError, PhaseError, SamplerError
from anyaccel.experiment import Experiment
from anyaccel.graph import ConcatNode, ModelGraph, ModelNode
from anyaccel.metrics import Metric
from anyaccel.numpy_backend import Dense
from anyaccel.phases import EvalPhase, Phase, TrainPhase
from anyaccel.phases.loading.host_columns import make_host_columns
from anyaccel.phases.loading.loader import load
from anyaccel.specs import Optimizer

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


class Seen:
    """A custom NumPy loss that records its inputs; its gradient is zero."""

    __name__ = "seen"

    def __init__(self) -> None:
        self.calls: list[tuple[list[int], ...]] = []

    def __call__(self, *given: Any) -> Any:
        self.calls.append(tuple(np.asarray(element).reshape(-1).round(6).tolist() for element in given))
        return np.zeros(()), len(given[0]), tuple(np.zeros_like(member) for member in given)

    @property
    def rows(self) -> list[Any]:
        """All rows of each input."""
        return [[item for call in self.calls for item in call[i]] for i in range(len(self.calls[0]))]


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


def built(graph: ModelGraph) -> ModelGraph:
    """Built, with weights of the identity."""
    graph.build()
    node = graph["n0"]
    assert isinstance(node, ModelNode)
    node.model.parameters.update(weight=np.ones((1, 1)), bias=np.zeros(1))
    return graph


def test_the_rows_of_the_streams_are_those_of_the_sampler(source: FeatureSet) -> None:
    graph, seen = built(siamese(source, None, "pair")), Seen()
    sampler = Neighbours(5, seed=4)
    inputs = ["outputs", "n1", "data.label", "data.label@pair", "targets"]
    phase = TrainPhase("t", data=source, losses=[AppliedLoss(seen, "n0", inputs)], sampler=sampler, epochs=2)
    results = run(graph, phase)
    assert [epoch.steps for epoch in results.epochs] == [3, 3]
    draws = sampler.epoch_orders({"data": source})
    anchors, pairs = (np.concatenate(each) for each in zip(*(sampler.shuffled(draws, e) for e in (0, 1)), strict=True))
    one, other, label, label_of_pair, y = seen.rows
    assert one == anchors.tolist() and other == pairs.tolist()
    assert label == LABELS[anchors].tolist() == label_of_pair
    assert y == (anchors * 0.5).tolist()


def test_targets_follow_the_stream_of_their_node(source: FeatureSet) -> None:
    graph, seen = built(siamese(source, None, "pair")), Seen()
    losses = [AppliedLoss(seen, "n1"), AppliedLoss("mse", "n0", inputs=["outputs", "n1"])]
    run(graph, TrainPhase("t", data=source, losses=losses, sampler=Neighbours(6)))
    outputs, targets = seen.rows
    assert targets[:6] == [0.5 * value for value in outputs[:6]]


def test_rows_of_a_split_are_drawn_within_it(source: FeatureSet) -> None:
    graph, seen = built(siamese(source, "anchor", "positive", "negative")), Seen()
    loss = AppliedLoss(seen, "n0", ["outputs", "n1", "n2"])
    run(graph, TrainPhase("t", data="low", losses=[loss], sampler=Threes(3)))
    anchors, positives, negatives = (np.array(entry).astype(int) for entry in seen.rows)
    assert sorted(anchors) == list(range(8)) and max(*positives, *negatives) < 8
    assert (LABELS[anchors] == LABELS[positives]).all() and (LABELS[anchors] == LABELS[negatives]).all()


@pytest.mark.parametrize("where", ["cpu", "sim:1"])
@pytest.mark.usefixtures("sims")
def test_two_nodes_outputs_are_compared_as_by_hand(where: str, source: FeatureSet) -> None:
    graph = siamese(source, None, "pair", model=Dense(1, dtype="float64"))
    graph.build()
    weight = graph["n0"].model.parameters["weight"].item()  # type: ignore[union-attr]
    sampler = Neighbours(4, drop_last=True, seed=2)
    losses = [AppliedLoss("mse", "n0", ["outputs", "n1"])]
    results = run(graph, TrainPhase("t", data=source, losses=losses, sampler=sampler, epochs=2, accelerator=where))
    result, draws = [], sampler.epoch_orders({"data": source})
    for epoch in (0, 1):
        anchors, pairs = (order.astype("float64").reshape(-1, 4) for order in sampler.shuffled(draws, epoch))
        means = []
        for a, b in zip(anchors, pairs, strict=True):
            means.append(np.mean((weight * (a - b)) ** 2))
            weight -= 0.01 * np.mean(2 * weight * (a - b) ** 2)
        result.append(np.mean(means))
    np.testing.assert_allclose(results.loss, result, rtol=1e-10)
    np.testing.assert_allclose(graph.state()["n0/parameters/weight"].item(), weight, rtol=1e-10)


# -- evaluation ------------------------------------------------------------------------------------------------------


def distance(outputs: np.ndarray, targets: np.ndarray) -> float:
    return float(np.abs(outputs - targets).max())


def test_pairs_are_evaluated_in_order_with_their_rows(source: FeatureSet) -> None:
    graph = built(siamese(source, None, "pair"))
    sampler = Neighbours(5, rounds=2, seed=1)
    metrics = [Metric(distance, "n0", "data.x", "anchors"), Metric(distance, "n1", "data.x@pair", "pairs")]
    metrics.append(Metric(distance, "n1", label="targets"))
    loss = AppliedLoss("mse", "n0", ["outputs", "n1"])
    results = run(graph, EvalPhase("e", data="low", sampler=sampler, losses=[loss], metrics=metrics))
    anchors, pairs = sampler.epoch_orders({"data": source["low"]}).orders(0)
    assert results.prediction("n0").reshape(-1).tolist() == anchors.tolist() == sorted(anchors)
    assert results.prediction("n1").reshape(-1).tolist() == pairs.tolist()
    assert results.rows["data"].array("id").tolist() == anchors.tolist()
    assert results.rows["data@pair"].array("id").tolist() == pairs.tolist()
    assert results.metrics == {"anchors": 0.0, "pairs": 0.0, "targets": np.abs(pairs * 0.5).max()}
    np.testing.assert_allclose(results.loss, np.mean(np.square(anchors - pairs)))
    table = results.to_arrow()
    assert table.column("id").to_pylist() == anchors.tolist()
    assert table.column("id@pair").to_pylist() == pairs.tolist()


def test_without_a_sampler_every_stream_reads_the_rows_as_they_are(source: FeatureSet) -> None:
    graph = built(siamese(source, None, "pair", "negative"))
    for phase in (EvalPhase("e", data="high"), EvalPhase("e", data="high", sampler=SimpleSampler(3, shuffle=True))):
        results = run(graph, phase)
        for name in ("n0", "n1", "n2"):
            assert results.prediction(name).reshape(-1).tolist() == [8, 9, 10, 11]


@pytest.mark.parametrize("as_phase", [False, True])
def test_a_validation_split_is_evaluated_by_its_own_pairs(as_phase: bool, source: FeatureSet) -> None:
    graph = built(siamese(source, None, "pair"))
    sampler = Neighbours(5, seed=7)
    own = EvalPhase("v", data="high", sampler=Neighbours(9, seed=7)) if as_phase else "high"
    loss = AppliedLoss("mse", "n0", ["outputs", "n1"])
    phase = TrainPhase("t", data="low", losses=[loss], sampler=sampler, validation=own, epochs=2)
    results = run(graph, phase)
    anchors, pairs = sampler.epoch_orders({"data": source["high"]}).orders(0)
    assert anchors.tolist() == [0, 1, 2, 3] and pairs.tolist() == [3, 1, 2, 0]  # rows 8 and 11 have label 2
    weight = graph.state()["n0/parameters/weight"].item()
    np.testing.assert_allclose(results.figure("val_loss")[-1], np.mean(np.square(weight * (anchors - pairs))))


def test_a_validation_may_take_rows_as_they_are(source: FeatureSet) -> None:
    graph = built(siamese(source, None, "pair"))
    loss = AppliedLoss("mse", "n0", ["outputs", "n1"])
    sampler = Neighbours(5)
    phase = TrainPhase("t", data="low", losses=[loss], sampler=sampler, validation=EvalPhase("v", data="high"))
    assert run(graph, phase).figure("val_loss").tolist() == [0.0]


# -- the plan --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("sims")
def test_the_plan_shows_streams_and_a_column_is_there_once(source: FeatureSet) -> None:
    graph = siamese(source, "anchor", "pair")
    losses = [AppliedLoss("mse", "n0"), AppliedLoss("mse", "n1", label="other")]
    phase = TrainPhase("t", data=source, losses=losses, sampler=Neighbours(4), accelerator="sim:0")
    plan = Experiment("e", graph).plan(phase)
    assert [(column.name, column.stream) for column in plan.columns] == [
        ("data.x", ""),
        ("data.x@pair", "pair"),
        ("data.y", ""),
        ("data.y@pair", "pair"),
    ]
    assert "load  data.x@pair -> numpy sim:0" in str(plan) and plan.to_dict()["columns"][1]["stream"] == "pair"
    tensors = load(plan, make_host_columns(plan, {"data": source}, {}))
    assert tensors["data.x"] is tensors["data.x@pair"] and tensors["data.y"] is tensors["data.y@pair"]


def test_a_column_whose_name_looks_like_a_stream(source: FeatureSet) -> None:
    odd = FeatureSet.from_dict("odd", {"x": np.ones((4, 1)), "y@pair": np.zeros((4, 1))}, ["x"], ["y@pair"])
    graph = ModelGraph([ModelNode("n0", Dense(1, dtype="float64"), odd.reference())], "sgd")
    loss = AppliedLoss("mse", "n0", ["outputs", "odd.y@pair"])
    plan = Experiment("e", graph).plan(TrainPhase("t", data=odd, losses=[loss]))
    assert [(assignment.name, assignment.stream) for assignment in plan.columns] == [("odd.x", ""), ("odd.y@pair", "")]


def test_references_keep_their_stream_in_configurations(source: FeatureSet) -> None:
    one = source.reference(["x"], stream="pair")
    assert Reference.from_config(one.get_config(), {"data": source}) == one != source.reference(["x"])
    assert "stream" not in source.reference(["x"]).get_config()


# -- bad input -------------------------------------------------------------------------------------------------------


def refused(error: type[Exception], make: Callable[[], Any]) -> str:
    with pytest.raises(error) as caught:
        make()
    return str(caught.value)


def planned(graph: ModelGraph, phase: Phase) -> Any:
    return Experiment("e", graph).plan(phase)


def test_unknown_streams_are_refused(source: FeatureSet) -> None:
    losses = [AppliedLoss("mse", "n0", ["outputs", "n1"])]
    graph = siamese(source, None, "pare")
    phase = TrainPhase("t", data=source, losses=losses, sampler=Neighbours(4))
    message = refused(SamplerError, lambda: planned(graph, phase))
    assert message == (
        "the sampler of 'data' has no stream 'pare'. Available: anchor, pair. Hint: did you mean 'pair'?"
    )
    simple = TrainPhase("t", data=source, losses=losses, batch_size=4)
    message = refused(SamplerError, lambda: planned(siamese(source, None, "pair"), simple))
    assert (
        "Available: anchor. Hint: use a sampler with this stream, such as a PairSampler or a TripletSampler" in message
    )
    evaluated = EvalPhase("e", data=source, sampler=Threes(4))
    message = refused(SamplerError, lambda: planned(siamese(source, None, "pair"), evaluated))
    assert "Available: anchor, positive, negative" in message


def test_losses_and_metrics_may_name_streams(source: FeatureSet) -> None:
    sampler = Neighbours(4)
    graph = siamese(source, None, "pair")
    loss = AppliedLoss("mse", "n0", ["outputs", "data.y@pear"])
    phase = TrainPhase("t", data=source, losses=[loss], sampler=sampler)
    assert "did you mean 'pair'?" in refused(SamplerError, lambda: planned(graph, phase))
    judged = EvalPhase("e", data=source, sampler=sampler, metrics=[Metric("mse", "n0", "data.y@negative")])
    assert "has no stream 'negative'" in refused(SamplerError, lambda: planned(graph, judged))
    missing = AppliedLoss("mse", "n0", ["outputs", "data.z@pair"])
    phase = TrainPhase("t", data=source, losses=[missing], sampler=sampler)
    assert "'data' has no column 'z'" in refused(ColumnError, lambda: planned(graph, phase))


def test_a_validation_whose_sampler_lacks_a_stream_is_refused(source: FeatureSet) -> None:
    triplets = Threes(4)
    losses = [AppliedLoss("mse", "n0", ["outputs", "n1"])]
    own = EvalPhase("v", data="high", sampler=triplets)
    phase = TrainPhase("t", data="low", losses=losses, sampler=Neighbours(4), validation=own)
    message = refused(SamplerError, lambda: planned(siamese(source, None, "pair"), phase))
    assert "the sampler of 'data' has no stream 'pair'" in message and "anchor, positive, negative" in message


@pytest.mark.parametrize("stream", ["", 3, "a@b"])
def test_invalid_names_of_streams_are_refused(stream: Any, source: FeatureSet) -> None:
    message = refused(SamplerError, lambda: source.reference(stream=stream))
    assert f"reads the stream {stream!r}, which is not a valid name" in message


def test_targets_of_two_streams_are_refused_as_ambiguous(source: FeatureSet) -> None:
    left, right = (
        ModelNode(name, Dense(1, dtype="float64"), source.reference(["x"], ["y"], stream=stream))
        for name, stream in (("l", None), ("r", "pair"))
    )
    head = ModelNode("n0", Dense(1, dtype="float64"), "both")
    graph = ModelGraph([left, right, ConcatNode("both", ["l", "r"]), head], "sgd")
    phase = TrainPhase("t", data=source, losses=[AppliedLoss("mse", "n0")], sampler=Neighbours(4))
    message = refused(ColumnError, lambda: planned(graph, phase))
    assert "Available: data.y, data.y@pair. Hint: name one of these in inputs=" in message


class Stubborn(Sampler):
    """A custom sampler."""

    streams = ("first", "second")
    batch_size, shuffle, drop_last, seed = 2, False, False, 0

    def __init__(self, *orders: Any, n: int = 4) -> None:
        self.orders, self.n = orders, n

    def epoch_orders(self, rows: Any) -> EpochOrders:
        return EpochOrders(self.n, lambda epoch: self.orders)

    def get_config(self) -> dict[str, Any]:
        return {}


def test_a_custom_sampler_trains(source: FeatureSet) -> None:
    graph, seen = built(siamese(source, None, "second")), Seen()
    sampler = Stubborn(np.array([3, 3, 0, 1]), np.array([0, 1, 2, 3]))
    run(graph, TrainPhase("t", data=source, losses=[AppliedLoss(seen, "n0", ["outputs", "n1"])], sampler=sampler))
    assert seen.rows == [[3, 3, 0, 1], [0, 1, 2, 3]]


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        (Stubborn(np.arange(4)), "Stubborn drew int64[4]; streams first, second, 4 rows of each"),
        (Stubborn(np.arange(4), np.arange(3)), "Stubborn drew int64[4], int64[3]"),
        (Stubborn(np.arange(4), np.arange(4) * 1.0), "Stubborn drew int64[4], float64[4]"),
        (Stubborn(np.arange(4), np.arange(4) + 9), "Stubborn drew row 12 for 'second'; 12 rows"),
        (Stubborn(np.arange(4) - 1, np.arange(4)), "Stubborn drew row -1 for 'first'"),
    ],
)
def test_invalid_orders_of_a_sampler_are_refused(sampler: Sampler, message: str, source: FeatureSet) -> None:
    losses = [AppliedLoss("mse", "n0", ["outputs", "n1"])]
    graph = siamese(source, None, "second")
    for phase in (
        TrainPhase("t", data=source, losses=losses, sampler=sampler),
        EvalPhase("e", data=source, sampler=sampler),
    ):
        assert message in refused(SamplerError, lambda p=phase: run(graph, p))


@pytest.mark.parametrize("batch_size", [8, 1024])
def test_a_batch_size_beside_a_sampler_is_refused(source: FeatureSet, batch_size: int) -> None:
    message = refused(PhaseError, lambda: EvalPhase("e", data=source, sampler=Neighbours(4), batch_size=batch_size))
    assert "phase 'e' has both a sampler and a batch_size. Hint: leave batch_size out" in message


def test_results_compare_pairs_with_the_columns_of_their_stream(source: FeatureSet) -> None:
    graph = built(siamese(source, None, "pair"))
    sampler = Neighbours(5, seed=1)
    results = run(graph, EvalPhase("e", data="low", sampler=sampler))
    assert results.compared == {"n0": ("data", ("y",)), "n1": ("data@pair", ("y",))}
    plain = run(graph, EvalPhase("e", data="low"))
    assert plain.compared["n1"] == ("data", ("y",)) and list(plain.rows) == ["data"]
