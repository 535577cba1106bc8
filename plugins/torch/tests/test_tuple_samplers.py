"""Pair, triplet and alternating samplers with torch's losses, against loops by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import anyaccel as aa

ROWS = 24


@pytest.fixture
def source() -> aa.FeatureSet:
    """Two kinds of rows, as a text column and as a target."""
    drawn = np.random.default_rng(0)
    kinds = np.arange(ROWS) % 2
    x = (drawn.normal(size=(ROWS, 3)) + 2 * kinds[:, None]).astype("float32")
    columns = {"x": x, "kind": kinds.astype("float32").reshape(-1, 1), "name": [f"k{kind}" for kind in kinds]}
    return aa.FeatureSet.from_dict("data", columns, ["x"], ["kind"], ["name"])


def towers(source: aa.FeatureSet, *streams: str | None) -> tuple[aa.ModelGraph, nn.Module]:
    """One model, applied to each stream."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    nodes = [aa.ModelNode(f"n{i}", model, source.reference(stream=stream)) for i, stream in enumerate(streams)]
    return aa.ModelGraph(nodes, aa.Optimizer("sgd", lr=0.05)), model


def by_hand(model: nn.Module, source: aa.FeatureSet, sampler: Any, loss: Any, epochs: int) -> list[float]:
    """The same in plain torch; `loss` takes the outputs and rows of each stream."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x, drawn, result = torch.tensor(source.array("x")), sampler.epoch_orders({"data": source}), []
    for epoch in range(epochs):
        total = 0.0
        orders = [torch.tensor(order) for order in sampler.shuffled(drawn, epoch)]
        for rows in zip(*(order.split(sampler.batch_size) for order in orders), strict=True):
            optimizer.zero_grad()
            value = loss([model(x[indices]) for indices in rows], rows)
            value.backward()
            optimizer.step()
            total += value.item() * len(rows[0])
        result.append(total / drawn.n)
    return result


def margin(anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    """A plain function."""
    return nn.functional.triplet_margin_loss(anchor, positive, negative, margin=0.7)


@pytest.mark.parametrize("loss", [nn.TripletMarginLoss, nn.TripletMarginLoss(margin=0.7), margin])
@pytest.mark.parametrize("listened", [False, True])
def test_triplet_losses_train_as_by_hand(loss: Any, listened: bool, source: aa.FeatureSet) -> None:
    sampler = aa.TripletSampler(5, aa.Same("name"), aa.Different("name"), seed=2)
    graph, model = towers(source, None, "positive", "negative")
    graph.build()
    twin = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    twin.load_state_dict(model.state_dict())
    loss_module = loss() if isinstance(loss, type) else loss
    expected = by_hand(twin, source, sampler, lambda outputs, rows: loss_module(*outputs), 3)

    class Listener(aa.Callback):
        def step_end(self, run: Any) -> None:
            """One call per step."""

    phase = aa.TrainPhase(
        "t",
        data=source,
        losses=[aa.AppliedLoss(loss, "n0", ["outputs", "n1", "n2"])],
        sampler=sampler,
        epochs=3,
        callbacks=[Listener()] if listened else [],
    )
    results = aa.Experiment("e", graph, progress="none").run_phase(phase)
    np.testing.assert_allclose(results.loss, expected, rtol=1e-5)
    for parameter, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(parameter, other, rtol=1e-5, atol=1e-6)


def contrastive(left: Tensor, other: Tensor, kind: Tensor, other_kind: Tensor) -> Tensor:
    """Near if they are of one kind, else at least 1 apart."""
    distance = nn.functional.pairwise_distance(left, other)
    alike = (kind == other_kind).float().squeeze(1)
    return (alike * distance**2 + (1 - alike) * torch.relu(1 - distance) ** 2).mean()


def test_pair_loss_gets_columns_of_both_samples(source: aa.FeatureSet) -> None:
    sampler = aa.PairSampler(6, aa.Same("name"), aa.Different("name"), seed=1)
    graph, model = towers(source, None, "pair")
    graph.build()
    twin = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    twin.load_state_dict(model.state_dict())
    kinds = torch.tensor(source.array("kind"))
    expected = by_hand(twin, source, sampler, lambda out, rows: contrastive(*out, kinds[rows[0]], kinds[rows[1]]), 4)
    loss = aa.AppliedLoss(contrastive, "n0", ["outputs", "n1", "data.kind", "data.kind@pair"])
    phase = aa.TrainPhase("t", data=source, losses=[loss], sampler=sampler, epochs=4)
    results = aa.Experiment("e", graph, progress="none").run_phase(phase)
    np.testing.assert_allclose(results.loss, expected, rtol=1e-5)
    assert results.loss[-1] < results.loss[0]


@pytest.mark.parametrize(
    "optimizer", [aa.Optimizer("adamw", lr=0.05, schedule=aa.Schedule("step", rate=0.5, every=1)), "momentum"]
)
def test_alternating_samplers_equal_two_phases(optimizer: Any) -> None:
    drawn = np.random.default_rng(1)
    sets = {
        name: aa.FeatureSet.from_dict(
            name, {"x": drawn.normal(size=(n, 3)).astype("float32"), "y": drawn.normal(size=(n, 1)).astype("float32")},
            ["x"], ["y"],
        )
        for name, n in (("a", 10), ("b", 6))
    }  # fmt: skip
    samplers = {"a": aa.SimpleSampler(4), "b": aa.SimpleSampler(2)}
    torch.manual_seed(0)
    starts = {name: nn.Linear(3, 1) for name in sets}

    def graph(*names: str) -> tuple[aa.ModelGraph, dict[str, nn.Linear]]:
        models = {name: nn.Linear(3, 1) for name in names}
        for name, model in models.items():
            model.load_state_dict(starts[name].state_dict())
        nodes = [aa.ModelNode(f"n{name}", models[name], sets[name].reference()) for name in names]
        return aa.ModelGraph(nodes, optimizer), models

    both, models = graph("a", "b")
    losses = {name: aa.AppliedLoss("mse", f"n{name}") for name in sets}
    phase = aa.TrainPhase(
        "t", data="all", losses=list(losses.values()), sampler=samplers, schedule="alternate_strict", epochs=2
    )
    results = aa.Experiment("e", both, progress="none").run_phase(phase)
    assert {state.step for state in both.optimizer_states.values()} == {6} and results.epochs[0].steps == 6
    for name in sets:
        alone, own = graph(name)
        phase = aa.TrainPhase("t", data="all", losses=[losses[name]], sampler=samplers[name], epochs=2)
        expected = aa.Experiment("e", alone, progress="none").run_phase(phase)
        np.testing.assert_allclose(results.losses(f"n{name}"), expected.loss, rtol=1e-5)
        torch.testing.assert_close(models[name].weight, own[name].weight)


@pytest.mark.parametrize("schedule", ["alternate_strict", "zip_strict"])
def test_shared_model_continues_in_a_second_phase(schedule: str) -> None:
    """As in one phase of as many epochs: its moments and step count continue."""
    drawn = np.random.default_rng(0).normal(size=(ROWS, 3)).astype("float32")
    sets = [aa.FeatureSet.from_dict(name, {"x": drawn, "y": drawn[:, :1]}, ["x"], ["y"]) for name in "ab"]
    graphs = []
    for parts in ((4,), (2, 2)):
        torch.manual_seed(3)
        model = nn.Linear(3, 1)
        nodes = [aa.ModelNode(f"n{feature_set.label}", model, feature_set.reference()) for feature_set in sets]
        optimizer = aa.Optimizer("adam", lr=0.05, schedule=aa.Schedule("step", rate=0.5, every=4))
        graphs.append(graph := aa.ModelGraph(nodes, optimizer, seed=1))
        for epochs in parts:
            losses = [aa.AppliedLoss("mse", node.label) for node in nodes]
            samplers = dict.fromkeys("ab", aa.SimpleSampler(8, shuffle=True))
            phase = aa.TrainPhase(
                "t",
                data={feature_set.label: feature_set for feature_set in sets},
                losses=losses,
                sampler=samplers,
                schedule=schedule,
                epochs=epochs,
            )
            aa.Experiment("e", graph, progress="none").run_phase(phase)
    whole, parts = (graph.state() for graph in graphs)
    assert whole.keys() == parts.keys() and "na/optimizer/m/weight" in whole
    for name, value in whole.items():
        np.testing.assert_array_equal(parts[name], value, err_msg=name)
