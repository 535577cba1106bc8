"""The range test of learning rates: steps as those of a schedule, a suggestion, and a graph that is as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.errors import PhaseError, ResultError

X = np.random.default_rng(0).normal(size=(96, 6)).astype("float32")
Y = np.sin(X[:, :1])
LOSSES = [aa.AppliedLoss("mse", on="net")]


@pytest.fixture
def data() -> aa.FeatureSet:
    features = aa.FeatureSet.from_dict("data", {"x": X, "y": Y}, ["x"], ["y"])
    features.add_splits({"train": range(80), "val": range(80, 96)})
    return features


def graph_of(data: aa.FeatureSet, optimizer: aa.Optimizer | None = None) -> aa.ModelGraph:
    net = aa.ModelNode("net", aa.SequentialMLP((1,), n_layers=2, hidden_dim=16), data.reference())
    return aa.ModelGraph([net], optimizer or aa.Optimizer("adam", lr=1e-3), seed=1)


def phase(**settings: Any) -> aa.TrainPhase:
    return aa.TrainPhase("t", data="train", **{"losses": LOSSES, "sampler": aa.SimpleSampler(16), **settings})


def test_losses_are_those_of_a_training_whose_rate_rises_step_by_step(data: aa.FeatureSet) -> None:
    class Losses(aa.Callback):
        def __init__(self) -> None:
            self.values: list[float] = []

        def step_end(self, run: aa.Run) -> None:
            self.values.append(run.step_losses()["net"])

    test = aa.find_learning_rate(graph_of(data), phase(), min_lr=1e-4, max_lr=1e-1, n_steps=40, stop_factor=None)
    rates = np.geomspace(1e-4, 1e-1, 40)
    rising = aa.Optimizer("adam", lr=1.0, schedule=lambda step: rates[step])
    losses = Losses()
    graph_of(data, rising).run(phase(epochs=8, callbacks=[losses]), progress="none")
    np.testing.assert_allclose(test.losses, losses.values, rtol=1e-6)
    np.testing.assert_allclose(test.rates, rates, rtol=1e-12)
    mean, smoothed = 0.0, []
    for i, value in enumerate(losses.values):
        mean = 0.9 * mean + 0.1 * value
        smoothed.append(mean / (1 - 0.9 ** (i + 1)))
    np.testing.assert_allclose(test.smoothed, smoothed, rtol=1e-6)
    assert test.stop_reason == ""


def test_a_loss_without_a_node_is_that_of_the_only_output(data: aa.FeatureSet) -> None:
    named = aa.find_learning_rate(graph_of(data), phase(epochs=3), n_steps=10)
    unnamed = aa.find_learning_rate(graph_of(data), phase(epochs=3, losses=aa.AppliedLoss("mse")), n_steps=10)
    np.testing.assert_array_equal(unnamed.losses, named.losses)


def test_it_ends_where_the_losses_grow_and_suggests_a_rate_that_trains(data: aa.FeatureSet) -> None:
    test = aa.find_learning_rate(graph_of(data), phase(), min_lr=1e-5, max_lr=100.0)
    assert len(test.rates) == len(test.losses) == len(test.smoothed) < 100
    assert "more than 4 times its lowest" in test.stop_reason
    assert 1e-5 < test.suggestion < test.lowest < test.rates[-1] < 100.0

    def last_loss(rate: float) -> float:
        graph = graph_of(data, aa.Optimizer("adam", lr=rate))
        return float(graph.run(phase(epochs=4), progress="none").loss[-1])

    assert last_loss(test.suggestion) < 0.5 * min(last_loss(test.suggestion / 100), last_loss(test.rates[-1]))
    assert f"suggestion {test.suggestion:.3g}" in repr(test)


def test_the_graph_and_its_training_go_on_as_if_there_had_been_no_test(data: aa.FeatureSet) -> None:
    optimizer = aa.Optimizer("adam", lr=1e-3, schedule=aa.Schedule("cosine", steps=100))
    graph, other = graph_of(data, optimizer), graph_of(data, optimizer)
    for each in (graph, other):
        each.run(phase(epochs=2), progress="none")
    before = {name: array.copy() for name, array in graph.state().items()}
    aa.find_learning_rate(graph, phase(), max_lr=1.0, n_steps=20)
    after = graph.state()
    assert after.keys() == before.keys()
    assert all(np.array_equal(after[name], array) for name, array in before.items())
    assert graph.optimizer is optimizer
    results = [each.run(phase(epochs=2), progress="none") for each in (graph, other)]
    assert list(results[0].loss) == list(results[1].loss)


def test_the_graph_is_as_it_was_after_an_error(data: aa.FeatureSet) -> None:
    def breaks() -> Any:
        yield {"x": X[:8], "y": Y[:8]}
        raise RuntimeError("the source broke")

    source = aa.IterableSource("data", breaks, features="x", target="y")
    net = aa.ModelNode("net", aa.SequentialMLP((1,)), source.reference())
    graph = aa.ModelGraph([net], "adam")
    graph.build()
    before = graph.state()
    with pytest.raises(Exception, match="the source broke"):
        aa.find_learning_rate(graph, aa.TrainPhase("t", data=source, losses=LOSSES))
    after = graph.state()
    assert all(np.array_equal(after[name], array) for name, array in before.items())
    assert graph.optimizer is not None
    assert graph.optimizer.schedule.own is None


def test_what_a_phase_has_beside_its_steps_is_left_out(data: aa.FeatureSet, tmp_path: Any) -> None:
    class Counts(aa.Callback):
        calls = 0

        def epoch_end(self, run: aa.Run) -> None:
            self.calls += 1

    counts, folder = Counts(), tmp_path / "run"
    given = phase(epochs=3, validation="val", callbacks=[counts], checkpoint=folder)
    aa.find_learning_rate(graph_of(data), given, n_steps=12, max_lr=0.1)
    assert (counts.calls, given.epochs, given.callbacks) == (0, 3, (counts,))
    assert given.validation is not None
    assert not folder.exists()


def test_groups_and_optimizers_of_nodes_rise_by_the_same_factor(data: aa.FeatureSet) -> None:
    span: Any = {"min_lr": 1e-2, "max_lr": 1.0, "n_steps": 20, "stop_factor": None}
    own = aa.Optimizer("sgd", lr=0.1, groups={"*bias": {"lr": 0.2}})
    alone = graph_of(data)
    alone["net"].optimizer, alone.optimizer = own, None
    whole = graph_of(data, aa.Optimizer("sgd", lr=1.0, groups={"*bias": {"lr": 2.0}}))
    tests = [aa.find_learning_rate(graph, phase(), **span) for graph in (alone, whole)]
    np.testing.assert_allclose(tests[0].losses, tests[1].losses, rtol=1e-5)
    same = aa.find_learning_rate(graph_of(data, aa.Optimizer("sgd", lr=1.0)), phase(), **span)
    assert not np.allclose(same.losses, tests[1].losses, rtol=1e-3)  # the groups do matter here


def test_a_plot_has_the_losses_and_the_suggestion_on_a_logarithmic_axis(data: aa.FeatureSet) -> None:
    pytest.importorskip("matplotlib").use("agg")
    test = aa.find_learning_rate(graph_of(data), phase(), n_steps=20)
    ax = test.plot()
    assert ax.get_xscale() == "log"
    assert [line.get_label() for line in ax.lines] == ["loss", "smoothed", f"suggestion {test.suggestion:.2g}"]
    np.testing.assert_array_equal(ax.lines[1].get_ydata(), test.smoothed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"min_lr": 1.0, "max_lr": 0.1}, r"min_lr=1.0 is not below max_lr=0.1. Hint: write min_lr="),
        ({"n_steps": 3}, r"n_steps=3"),
        ({"smoothing": 1.0}, r"smoothing=1.0"),
        ({"stop_factor": 0.5}, r"stop_factor=0.5"),
        ({"phase": aa.EvalPhase("e", data="val")}, r"phase must be a TrainPhase, got EvalPhase"),
        ({"graph": None}, r"graph must be a ModelGraph, got NoneType"),
    ],
)
def test_wrong_settings_are_named_before_anything_runs(
    change: dict[str, Any], message: str, data: aa.FeatureSet
) -> None:
    given = {"graph": graph_of(data), "phase": phase(), **change}
    with pytest.raises(PhaseError, match=message):
        aa.find_learning_rate(**given)


def test_a_graph_without_an_optimizer_is_told_so(data: aa.FeatureSet) -> None:
    graph = aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP((1,)), data.reference())])
    with pytest.raises(PhaseError, match=r"has no optimizer.*Hint: write ModelGraph\(nodes, 'adam'\)"):
        aa.find_learning_rate(graph, phase())


def test_losses_that_are_never_finite_are_told() -> None:
    huge = aa.FeatureSet.from_dict("data", {"x": X * np.float32(1e30), "y": Y}, ["x"], ["y"])
    graph = graph_of(huge)
    with pytest.raises(ResultError, match=r"0 losses, which are too few: the loss is not finite.*smaller min_lr"):
        aa.find_learning_rate(graph, aa.TrainPhase("t", data=huge, losses=LOSSES))
