"""Ways of training that every framework has: each against NumPy, or against the same thing written otherwise."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.errors import NaNWarning
from anyaccel.registry import registry

X = np.random.default_rng(0).normal(size=(48, 4)).astype("float32")
Y = (X[:, :1] - X[:, 1:2]).astype("float32")


@pytest.fixture
def data() -> aa.FeatureSet:
    features = aa.FeatureSet.from_dict("data", {"x": X, "y": Y}, ["x"], ["y"])
    features.add_splits({"train": np.arange(32), "val": np.arange(32, 48)})
    return features


def graph_of(framework: str, data: aa.FeatureSet, optimizer: aa.Optimizer) -> aa.ModelGraph:
    model = registry().computing(framework).models()["SequentialMLP"]((1,), n_layers=2, hidden_dim=8)
    graph = aa.ModelGraph([aa.ModelNode("net", model, data.reference())], optimizer, seed=3)
    assert graph.shapes.order == ("net",)  # which builds the model
    return graph


def trained(framework: str, data: aa.FeatureSet, optimizer: aa.Optimizer, **settings: Any) -> Any:
    """Results of a training, and the event log; all frameworks begin with the weights of NumPy's model."""
    nets = [graph_of(name, data, optimizer) for name in ("numpy", framework)]
    aa.copy_weights(*(graph["net"].model for graph in nets))
    graph = nets[1]
    losses = [aa.AppliedLoss("mse", on="net")]
    settings = {"sampler": aa.SimpleSampler(8), "epochs": 8, "validation": "val", **settings}
    phase = aa.TrainPhase("t", data="train", losses=losses, **settings)
    return aa.Experiment("ways", graph, progress="none").run_phase(phase)


@pytest.mark.shared
def test_a_function_as_a_schedule_is_the_named_schedule(framework: str, data: aa.FeatureSet) -> None:
    named = aa.Schedule("exponential", rate=0.9, warmup=3)
    same = aa.Schedule(lambda step: 0.9**step, warmup=3)
    results = [trained(framework, data, aa.Optimizer("adam", lr=0.05, schedule=each)) for each in (named, same)]
    assert list(results[1].loss) == list(results[0].loss)


@pytest.mark.shared
def test_reduce_on_plateau_is_numpys_and_compiles_nothing_anew(framework: str, data: aa.FeatureSet) -> None:
    results = []
    for each in ("numpy", framework):
        plateau = aa.ReduceLROnPlateau("val_loss", factor=0.5, patience=0, threshold=0.7)
        results.append(trained(each, data, aa.Optimizer("sgd", lr=0.2, schedule=plateau)))
        assert plateau.current < 0.3
    np.testing.assert_allclose(results[1].figure("val_loss"), results[0].figure("val_loss"), rtol=2e-5)
    messages = [event.message for event in results[1].events if event.kind == "compile"]
    assert not [message for message in messages if "dropped" in message]


@pytest.mark.shared
@pytest.mark.parametrize(("name", "compile_mode"), [("adamw", "off"), ("adamw", "steps"), ("sgd", "off")])
def test_groups_of_parameters_are_numpys(framework: str, name: str, compile_mode: str, data: aa.FeatureSet) -> None:
    model = graph_of(framework, data, aa.Optimizer("sgd"))["net"].model
    names = list(registry().computing(framework).parameters(model))
    predicate = lambda name, parameter: tuple(parameter.shape) == (8, 8)  # noqa: E731
    groups = {"*bias": {"weight_decay": 0.0}, predicate: {"lr": 0.001}}
    assert any(each.endswith("bias") for each in names), names
    spec = aa.Optimizer(name, lr=0.05, weight_decay=0.3, clip_norm=0.3, groups=groups)
    results = [trained(each, data, spec, compile=mode) for each, mode in (("numpy", "off"), (framework, compile_mode))]
    np.testing.assert_allclose(results[1].loss, results[0].loss, rtol=2e-4)
    usual = trained(framework, data, aa.Optimizer(name, lr=0.05, weight_decay=0.3, clip_norm=0.3))
    assert abs(results[1].loss[-1] / usual.loss[-1] - 1) > 1e-3  # the groups do matter here


@pytest.mark.shared
def test_a_shared_model_and_a_state_with_groups_continue(framework: str, data: aa.FeatureSet) -> None:
    spec = aa.Optimizer("adamw", lr=0.05, weight_decay=0.3, groups={"*bias": {"weight_decay": 0.0}})
    losses = [aa.AppliedLoss("mse", on="net")]

    def run(graph: aa.ModelGraph, epochs: int) -> Any:
        phase = aa.TrainPhase("t", data="train", losses=losses, sampler=aa.SimpleSampler(8), epochs=epochs)
        return aa.Experiment("ways", graph, progress="none").run_phase(phase)

    whole, half = (graph_of(framework, data, spec) for _ in range(2))
    expected = run(whole, 4).loss
    run(half, 2)
    again = graph_of(framework, data, spec)
    again.load_state(half.state())
    np.testing.assert_allclose(run(again, 2).loss, expected[2:], rtol=1e-6)


def total(outputs: Any, targets: Any) -> Any:
    """A sum, where a mean over rows is wanted."""
    squares = (outputs - targets) ** 2
    return squares.sum() if hasattr(squares, "sum") else pytest.importorskip("tensorflow").reduce_sum(squares)


def mean(outputs: Any, targets: Any) -> Any:
    return total(outputs, targets) / len(targets)


@pytest.mark.shared
def test_a_sum_is_told_of_where_batches_are_accumulated_and_a_mean_is_not(framework: str, data: aa.FeatureSet) -> None:
    if framework == "mlx":
        pytest.skip("it takes named losses only")

    def run(function: Any) -> Any:
        losses = [aa.AppliedLoss(function, on="net")]
        graph = graph_of(framework, data, aa.Optimizer("sgd", lr=0.01))
        phase = aa.TrainPhase("t", data="train", losses=losses, sampler=aa.SimpleSampler(8), accumulate=2)
        return aa.Experiment("ways", graph, progress="none").run_phase(phase)

    with pytest.warns(UserWarning, match=r"'net' is not a mean over rows: .*Hint: return the mean over the rows"):
        run(total)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(mean)


@pytest.mark.shared
@pytest.mark.parametrize("on_nan", ["warn", "stop", "ignore"])
@pytest.mark.parametrize("compile_mode", ["off", "auto"])
def test_a_loss_that_is_infinite_is_told_with_node_and_step(framework: str, on_nan: str, compile_mode: str) -> None:
    y = Y.copy()
    y[9] = 1e30  # finite as a target, and infinite as a square in float32
    data = aa.FeatureSet.from_dict("data", {"x": X, "y": y}, ["x"], ["y"])
    graph = graph_of(framework, data, aa.Optimizer("sgd", lr=1e-3))
    losses = [aa.AppliedLoss("mse", on="net")]
    settings = {"sampler": aa.SimpleSampler(4), "epochs": 3, "compile": compile_mode, "on_nan": on_nan}
    phase = aa.TrainPhase("t", data="all", losses=losses, **settings)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        result = aa.Experiment("ways", graph, progress="none").run_phase(phase)
    messages = [str(each.message) for each in told if each.category is NaNWarning]
    assert len(messages) == (on_nan != "ignore") and len(result.epochs) == (1 if on_nan == "stop" else 3)
    assert all("loss 'net' on node 'net' is inf at step 3 of epoch 1. Hint:" in message for message in messages)


class Every(aa.Callback):
    """Notes the steps that it hears of, and the mean loss since it last heard of one."""

    def __init__(self, every_n_steps: int) -> None:
        self.every_n_steps, self.heard = every_n_steps, []

    def step_end(self, run: Any) -> None:
        self.heard.append((run.epoch, run.step, run.step_losses()["net"]))


@pytest.mark.shared
@pytest.mark.parametrize("n", [1, 3])
def test_a_listener_hears_of_every_nth_step_with_the_mean_loss_of_these(
    framework: str, n: int, data: aa.FeatureSet
) -> None:
    every, each = Every(n), Every(1)
    for listener, mode in ((every, "auto"), (each, "off")):
        settings = {"sampler": aa.SimpleSampler(4), "epochs": 2, "validation": None, "compile": mode}
        trained(framework, data, aa.Optimizer("sgd", lr=0.1), callbacks=[listener], **settings)
    losses = np.array([loss for _, _, loss in each.heard]).reshape(2, 8)[:, : 8 // n * n].reshape(2, -1, n)
    assert [(epoch, step) for epoch, step, _ in every.heard] == [(e, s) for e in (0, 1) for s in range(n - 1, 8, n)]
    np.testing.assert_allclose([loss for _, _, loss in every.heard], losses.mean(-1).ravel(), rtol=1e-4)


@pytest.mark.shared
@pytest.mark.parametrize("decay", [0.8, None])
def test_averages_of_weights_are_numpys(framework: str, decay: float | None, data: aa.FeatureSet) -> None:
    found = []
    for each in ("numpy", framework):
        average = aa.WeightAveraging(decay)
        plan: list[aa.ModelGraph] = []
        listener = _Graphs(plan)
        trained(each, data, aa.Optimizer("sgd", lr=0.1), callbacks=[average, listener], epochs=3)
        backend = registry().computing(each)
        own = backend.state(plan[0]["net"].model)
        with average.applied(plan[0]):
            found.append(backend.state(plan[0]["net"].model))
        assert not np.allclose(found[-1]["parameters/layers.0.weight"], own["parameters/layers.0.weight"], rtol=1e-4)
    assert found[0].keys() == found[1].keys()
    for name, value in found[0].items():
        np.testing.assert_allclose(found[1][name], value, rtol=1e-4, atol=1e-6, err_msg=name)


class _Graphs(aa.Callback):
    """Notes the graph of a run."""

    def __init__(self, graphs: list[aa.ModelGraph]) -> None:
        self.graphs = graphs

    def phase_start(self, run: Any) -> None:
        self.graphs.append(run.graph)


@pytest.mark.shared
def test_a_range_test_of_rates_is_numpys_and_leaves_the_graph_as_it_was(framework: str, data: aa.FeatureSet) -> None:
    graphs = [graph_of(name, data, aa.Optimizer("adam")) for name in ("numpy", framework)]
    aa.copy_weights(*(graph["net"].model for graph in graphs))
    phase = aa.TrainPhase("t", data="train", losses=[aa.AppliedLoss("mse", on="net")], sampler=aa.SimpleSampler(8))
    before = graphs[1].state()
    numpys, test = (aa.find_learning_rate(graph, phase, min_lr=1e-4, max_lr=0.1, n_steps=30) for graph in graphs)
    np.testing.assert_allclose(test.losses, numpys.losses, rtol=1e-4)
    assert test.suggestion == pytest.approx(numpys.suggestion)
    after = graphs[1].state()
    assert after.keys() == before.keys()
    assert all(np.array_equal(after[name], value) for name, value in before.items())
