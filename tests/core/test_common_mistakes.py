"""Common mistakes of new users, and the messages that they get."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.errors import (
    AnyaccelError,
    ConfigError,
    DataError,
    FrameworkError,
    GraphError,
    PhaseError,
    ShapeError,
    SpecError,
    StateError,
)

X = np.random.default_rng(0).standard_normal((20, 3)).astype("float32")
LOSS = aa.AppliedLoss("mse", on="net")


def source(**more: np.ndarray) -> aa.FeatureSet:
    columns = {"x": X, "y": X[:, 0], **more}
    features = aa.FeatureSet.from_dict("data", columns, ["x"], ["y", *more])
    features.split_random({"train": 0.8, "val": 0.2})
    return features


def graph(data: aa.FeatureSet, width: int = 1) -> aa.ModelGraph:
    return aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP(width), data.reference(target=["y"]))], "adam")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_epochs": 3}, r"TrainPhase has no setting 'n_epochs'. Hint: write epochs=10.$"),
        ({"losses": "mse"}, r"losses must be a list, got 'mse'. Hint: write losses=\[AppliedLoss"),
        ({"batchsize": 16}, r"no setting 'batchsize'. Hint: write batch_size=16 for batches of 16"),
        ({"metrics": ["mse"]}, r"no setting 'metrics'. Hint: .*validation=EvalPhase\(..., metrics=\[...\]\)"),
        (
            {"callbacks": "early_stopping"},
            r"callbacks must be a list, got .*. Hint: write callbacks=\[EarlyStopping\(\)\]",
        ),
        ({"callbacks": [aa.EarlyStopping]}, r"is not a Callback. Hint: .*EarlyStopping\(\)"),
        ({"losses": ["cross_entropy"]}, r"Hint: write losses=\[AppliedLoss\('cross_entropy', on='NODE'\)\]\.$"),
        ({"device": "gpu"}, r"no setting 'device'. Hint: write accelerator='gpu:0'\.$"),
        (
            {"lr": 0.1},
            r"Hint: the optimizer belongs to the graph: ModelGraph\(nodes, Optimizer\('adam', lr=1e-3\)\)\.$",
        ),
        ({"shuffle": True}, r"Hint: write sampler=SimpleSampler\(16, shuffle=True\)\.$"),
        ({"verbose": 0}, r"Hint: write Experiment\(..., progress='none'\)\.$"),
        ({"compile": False}, r"unknown compile=False. Available: 'auto', 'off', 'steps'. Hint: write compile='off'\.$"),
        ({"epochs": 0.5}, r"epochs=0.5 is not an int of at least 0. Hint: write epochs=1\.$"),
        ({"colour": "red"}, r"no setting 'colour'. Available: .* Hint: use one of these\.$"),
    ],
)
def test_wrong_settings_of_a_phase_are_refused_with_a_hint(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(PhaseError, match=message):
        aa.TrainPhase("t", **{"data": "train", "losses": [LOSS], **settings})


def test_a_misspelt_split_is_an_error_of_the_plan() -> None:
    experiment = aa.Experiment("e", graph(source()))
    with pytest.raises(
        DataError, match=r"has no split 'vale'. Available: train, val, all. Hint: did you mean 'val'\?$"
    ):
        experiment.plan(aa.EvalPhase("v", data="vale"))
    with pytest.raises(DataError) as caught:
        source()["alla"]
    assert "did you mean 'all'" not in str(caught.value)


def test_a_schedule_can_be_named_if_it_needs_no_settings() -> None:
    assert aa.Optimizer("adam", schedule="constant").schedule == aa.Schedule()
    with pytest.raises(SpecError, match=r"schedule .cosine. lacks steps\."):
        aa.Optimizer("adam", schedule="cosine")
    with pytest.raises(SpecError, match=r"no schedule is called 0\.5\. Available: constant, linear"):
        aa.Optimizer("adam", schedule=0.5)  # type: ignore[arg-type]


def test_an_unknown_setting_of_an_optimizer_lists_the_known_ones() -> None:
    with pytest.raises(
        SpecError, match=r"no setting learning_rate\. Available: lr, schedule, clip_norm, clip_value, betas"
    ):
        aa.Optimizer("adam", learning_rate=0.1)


def test_an_output_shape_may_be_a_number() -> None:
    assert aa.SequentialMLP(3).get_config()["output_shape"] == [3]


def test_accuracy_of_one_output_needs_two_classes() -> None:
    with pytest.raises(SpecError, match=r"the targets have 3 values.*Hint: use a model with one output"):
        aa.Metric("accuracy").measure(np.zeros((4, 1), "float32"), np.array([0, 1, 2, 1]))


def test_a_custom_loss_gets_targets_of_the_shape_of_the_outputs() -> None:
    shapes = []

    def own(outputs: np.ndarray, targets: np.ndarray) -> tuple[float, float, list[Any]]:
        shapes.append((outputs.shape, targets.shape))
        return float(np.sum((outputs - targets) ** 2)), outputs.size, [2 * (outputs - targets), None]

    data = source(count=np.arange(20))
    for column in ("y", "count"):
        loss = aa.AppliedLoss(own, on="net", inputs=["outputs", f"data.{column}"])
        phase = aa.TrainPhase("t", data="train", losses=[loss], batch_size=4)
        aa.Experiment("e", graph(data), progress="none").run_phase(phase)
    assert shapes and all(outputs == targets for outputs, targets in shapes)


def test_the_repr_of_results_is_one_line() -> None:
    experiment = aa.Experiment("e", graph(source()), progress="none")
    experiment.run(
        aa.TrainPhase("t", data="train", losses=[LOSS]), aa.EvalPhase("v", data="val", losses=[LOSS], metrics=["mae"])
    )
    trained, tested = map(repr, experiment.history)
    assert trained.startswith("TrainResults('t', 1 epochs, loss ") and "\n" not in trained
    assert tested.startswith("EvalResults('v', loss ") and tested.endswith("predictions of net)")


def test_arrays_to_a_device_of_another_framework_need_its_name() -> None:
    with pytest.raises(FrameworkError, match=r"NumPy array cannot be on 'xpu'.*framework of the new tensor"):
        aa.move({"x": X}, "xpu")


def test_devices_by_framework() -> None:
    assert aa.best_device(framework="numpy") == aa.Device("cpu")
    assert aa.devices("cpu", "numpy") == [aa.Device("cpu")]
    with pytest.raises(AnyaccelError, match="no plugin for the framework 'nimpy' is installed"):
        aa.best_device(framework="nimpy")


def test_a_move_to_the_cpu_is_in_the_plan() -> None:
    with aa.simulate(1):
        trained = graph(source())
        experiment = aa.Experiment("e", trained, progress="none")
        experiment.run_phase(aa.TrainPhase("t", data="train", losses=[LOSS], accelerator="sim:0"))
        plan = experiment.plan(aa.EvalPhase("v", data="val"))
    assert "net moves from sim:0 to cpu:0: neither it nor the phase requests a device" in str(plan)


def test_the_size_of_a_model_is_bounded() -> None:
    with pytest.raises(SpecError, match=r"layers of 16; at most"):
        aa.SequentialMLP(1, n_layers=10**30)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("net/optimizer_step", np.array(-5), "net/optimizer_step in the state must be at least 0, got -5"),
        ("progress/t", np.array(-3), "progress/t in the state must be at least 0, got -3"),
        ("net/optimizer/m/layers.0.bias", np.array(["a"] * 16), "in the state must have a numeric dtype, got <U1"),
    ],
)
def test_a_state_with_invalid_values_is_refused_as_a_whole(name: str, value: np.ndarray, message: str) -> None:
    trained = graph(source())
    aa.Experiment("e", trained, progress="none").run_phase(aa.TrainPhase("t", data="train", losses=[LOSS]))
    before = trained.state()
    odd = {key: np.zeros_like(array) for key, array in before.items()} | {name: value}
    with pytest.raises(StateError) as caught:
        trained.load_state(odd)
    assert message in str(caught.value)
    after = trained.state()
    assert all(np.array_equal(after[key], array) for key, array in before.items())


def test_a_negative_seed_is_restored_from_the_state() -> None:
    data = source()
    made = aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP(), data.reference(target=["y"]))], seed=-5)
    assert made.load_state(made.state()).seed == -5


def experiment(*nodes: aa.ModelNode) -> aa.Experiment:
    return aa.Experiment("e", aa.ModelGraph(list(nodes), "adam"), progress="none")


def test_a_single_callback_needs_no_list() -> None:
    stopping = aa.EarlyStopping("loss")
    assert aa.TrainPhase("t", data="train", losses=LOSS, callbacks=stopping).callbacks == (stopping,)


def test_a_single_loss_needs_no_list() -> None:
    assert aa.TrainPhase("t", data="train", losses=LOSS).losses == (LOSS,)
    assert aa.EvalPhase("e", data="train", losses=LOSS).losses == (LOSS,)


def test_a_metric_that_fits_only_one_of_several_nodes_gives_a_hint() -> None:
    data = source(c=np.arange(20) % 3)
    nodes = [
        aa.ModelNode("net", aa.SequentialMLP(1), data.reference(target=["y"])),
        aa.ModelNode("cls", aa.SequentialMLP(3), data.reference(target=["c"])),
    ]
    losses = [LOSS, aa.AppliedLoss("cross_entropy", on="cls")]
    with pytest.raises(
        SpecError, match=r"metric 'net.accuracy' on node 'net': .*Hint: .*Metric\('accuracy', on='cls'\)\.$"
    ):
        experiment(*nodes).run_phase(aa.EvalPhase("e", data="val", losses=losses, metrics=["accuracy"]))


@pytest.mark.parametrize("classes", [X[:, 0], np.zeros(20, "int64")], ids=["numbers", "indices"])
def test_cross_entropy_of_one_output_is_refused(classes: np.ndarray) -> None:
    data = source(c=classes)
    runner = experiment(aa.ModelNode("net", aa.SequentialMLP(1), data.reference(target=["c"])))
    message = (
        "needs at least two classes, .* has one. Hint: use 'mse' for a number, 'binary_cross_entropy' for yes or no"
    )
    with pytest.raises(ShapeError, match=message):
        runner.run_phase(aa.TrainPhase("t", data="train", losses=aa.AppliedLoss("cross_entropy", on="net")))


@pytest.mark.parametrize("name", ["learning_rate", "step_size"])
def test_other_names_of_the_learning_rate_give_a_hint(name: str) -> None:
    with pytest.raises(SpecError, match=rf"no setting {name}. .* it is called 'lr'\.$"):
        aa.Optimizer("adam", **{name: 0.1})


def test_scalar_columns_get_an_axis_for_a_model_that_needs_one() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("anyaccel_torch")
    data = aa.FeatureSet.from_dict("data", {"a": X[:, 0], "n": np.arange(20), "y": 2 * X[:, 0]}, ["a", "n"], ["y"])
    runner = experiment(aa.ModelNode("net", torch.nn.Linear(1, 1), data.reference("a")))
    result = runner.run_phase(aa.TrainPhase("t", data="all", losses=LOSS, batch_size=4, epochs=3))
    (column,) = (each for each in result.plan.columns if each.role == "features")
    assert column.change == "[] to [1]" and result.loss[-1] < result.loss[0]
    predicted = runner.run_phase(aa.EvalPhase("e", data="all")).prediction("net")
    with torch.no_grad():
        expected = runner.graph["net"].model(torch.from_numpy(X[:, :1].copy())).numpy()
    np.testing.assert_allclose(predicted, expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(ShapeError, match=r"node 'net' does not accept int64\[1\] from data.n.*cast\(\{.*'float32'\}"):
        experiment(aa.ModelNode("net", torch.nn.Linear(1, 1), data.reference("n"))).graph.build()


def test_new_data_under_another_label_are_refused_with_a_hint() -> None:
    data = source()
    new = aa.FeatureSet.from_dict("new", {"x": X, "y": X[:, 0]}, ["x"], ["y"])
    runner = experiment(aa.ModelNode("net", aa.SequentialMLP(1), data.reference()))
    with pytest.raises(PhaseError, match=r"Hint: if 'new' are the right data, pass data=\{'data': new\}\.$"):
        runner.run_phase(aa.EvalPhase("e", data=new))
    result = runner.run_phase(aa.EvalPhase("e", data={"data": new}, metrics=["mse"]))
    assert len(result.prediction("net")) == 20 and result.to_arrow().column_names == ["prediction.net", "y"]


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: aa.Optimizer("adam", backend="torch"), r"optimizer 'adam' has no setting backend\. "),
        (lambda: aa.Optimizer("adam", opt_kwargs={"factory": dict}), r"optimizer 'adam' has no setting factory\. "),
        (lambda: aa.Loss("mse", backend="torch"), r"Loss\('mse'\) has no setting backend\. Available: loss_kwargs\. "),
        (lambda: aa.Loss("mse", reduction="sum"), r"Loss\('mse'\) has no setting reduction\. "),
    ],
)
def test_what_decides_the_framework_of_an_optimizer_or_loss_is_said(make: Any, what: str) -> None:
    with pytest.raises(SpecError, match=what + ".*Hint: leave it out: "):
        make()


def test_a_misspelt_setting_of_a_loss_is_an_error_with_the_known_one() -> None:
    with pytest.raises(SpecError, match=r"no setting loss_kwarg\. Available: loss_kwargs\. Hint: did you mean 'loss_"):
        aa.Loss("mse", loss_kwarg={})


def test_an_experiment_has_no_active_context() -> None:
    with pytest.raises(ConfigError, match=r"there is no active context\. Hint: write Experiment\(label, graph\)"):
        aa.Experiment.from_active_context("e")


def test_a_node_gives_a_reference_like_a_feature_set() -> None:
    data = source()
    encoder = aa.ModelNode("encoder", aa.SequentialMLP(2), data.reference(target=["y"]))
    both = aa.ConcatNode("both", [encoder.reference(), "encoder"])
    nodes = [encoder, both, aa.ModelNode("net", aa.SequentialMLP(1), both.reference())]
    assert aa.ModelGraph(nodes, "adam").shapes.outputs["net"] == ("net",)
    assert encoder.reference("mean") == "encoder.mean"


def test_a_node_is_replaced_and_removed_by_itself_or_by_its_label() -> None:
    net = graph(source())
    old, new = net["net"], aa.ModelNode("net", aa.SequentialMLP(1), "first")
    net.add_node(aa.ModelNode("first", aa.SequentialMLP(3), old.upstreams[0]))
    assert net.replace_node(old, new)["net"] is new
    assert net.replace_node("net", old)["net"] is old
    with pytest.raises(GraphError) as caught:
        net.replace_node(new, old)
    assert str(caught.value) == (
        "ModelNode('net', SequentialMLP) is not a node of graph 'graph'. Available: net, first. Hint: name the node of "
        "this graph first, then the new one: replace_node('LABEL', node)."
    )
    assert list(net.remove_node(net["first"]).nodes) == ["net"]
    with pytest.raises(GraphError, match="has no node 3"):
        net.remove_node(3)
