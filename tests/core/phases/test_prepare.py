"""Invalid input is refused before anything has moved, with a hint."""

from __future__ import annotations

import numpy as np
import pytest

from anyaccel import AppliedLoss
from anyaccel.data import FeatureSet, SimpleSampler
from anyaccel.errors import (
    ColumnError,
    DeviceUnavailableError,
    FallbackWarning,
    FrameworkError,
    GraphError,
    PhaseError,
    PluginError,
    SamplerError,
    ShapeError,
    SourceError,
    SpecError,
    SplitError,
)
from anyaccel.experiment import Experiment
from anyaccel.graph import ModelGraph, ModelNode
from anyaccel.hookspecs import hookimpl
from anyaccel.metrics import Metric
from anyaccel.numpy_backend import Dense, SequentialMLP
from anyaccel.phases import EvalPhase, TrainPhase
from anyaccel.plugin_testing import TinyBackend
from anyaccel.specs import Optimizer

MSE = AppliedLoss("mse", on="net")
BY_CLASS = AppliedLoss("cross_entropy", on="sort", inputs=["outputs", "data.c"])


def offer_tpu(registry):
    """Register a device on which another framework computes."""

    class Plugin:
        contract = 2

        @hookimpl
        def backends(self):
            return [TinyBackend("tiny", ("tpu:0",))]

    registry.register(Plugin(), "tiny")


@pytest.fixture
def house(sims, data, table, experiment, at):
    """A graph of two nodes and two feature sets at home on sim:0, and a phase that must be refused there."""
    other = table(8, "other")
    nodes = [
        ModelNode("net", Dense(1), data.reference(["x"], ["y"])),
        ModelNode("sort", Dense(3), data.reference(["x"], ["c"])),
        ModelNode("far", Dense(1), other.reference(["x"], ["y"])),
    ]
    graph = ModelGraph(nodes, Optimizer("adam", lr=0.1))
    ours = experiment(graph)
    ours.run_phase(TrainPhase("first", data={"data": "train"}, losses=[MSE, BY_CLASS], accelerator="sim:0"))
    ours.run_phase(
        TrainPhase("far", data=other, losses=[AppliedLoss("mse", on="far")], accelerator="sim:0", batch_size=8)
    )

    def refused(phase, error, *words):
        for sim in sims:
            sim.clear()
        before = [sim.used for sim in sims]
        arrays = {label: dict(node.model.parameters) for label, node in graph.nodes.items()}
        states, progress, moments = dict(graph.optimizer_states), dict(graph.progress), []
        phase.callbacks = (at("before_placement", lambda **_: moments.append("before_placement")),)
        with pytest.raises(error) as caught:
            ours.run_phase(phase)
        assert type(caught.value) is error
        for word in words:
            assert word in str(caught.value)
        assert moments == []
        assert [sim.used for sim in sims] == before
        assert all(s.transfers.into.number == s.transfers.out.number == s.transfers.between.number == 0 for s in sims)
        assert all(graph[label].model.parameters[name] is a for label, of in arrays.items() for name, a in of.items())
        assert graph.optimizer_states == states
        assert graph.progress == progress
        assert ours.history[-1].error is caught.value

    return refused


def fit_to(data, **columns):
    return FeatureSet.from_dict(
        "data", {**{name: data.array(name) for name in ("x", "y", "c", "id")}, **columns}, ["x"], ["y", "c"], ["id"]
    )


def training(**settings):
    return TrainPhase(
        "bad",
        **{
            "data": "train",
            "losses": [MSE],
            "accelerator": "sim:1",
            **({} if "sampler" in settings else {"batch_size": 4}),
            **settings,
        },
    )


def evaluation(**settings):
    settings = {"data": "val", "losses": [MSE], "outputs": ["net"], "accelerator": "sim:1", **settings}
    return EvalPhase("bad", **settings)


# -- data --------------------------------------------------------------------------------------------------------------


def test_an_unknown_split_is_refused(house):
    house(training(data="nope"), SplitError, "'data' has no split 'nope'", "train, val, all")
    house(evaluation(data="trian"), SplitError, "did you mean 'train'?")


def test_a_split_that_only_some_feature_sets_have_is_refused(house):
    losses = [MSE, AppliedLoss("mse", on="far")]
    house(training(losses=losses), SplitError, "'other' has no split 'train'", "all")


def test_a_feature_set_without_data_is_refused(house, data):
    house(
        training(losses=[MSE, AppliedLoss("mse", on="far")], data={"data": "train"}),
        PhaseError,
        "phase 'bad' has data for data; the graph takes data, other",
        "give data={'data': ..., 'other': ...}, a split or view for each",
        "outputs=['NODE']",
    )


def test_data_of_another_feature_set_are_refused(house, table):
    house(training(data=table(16, "elsewhere")), PhaseError, "has data for elsewhere; the graph takes data")


def test_data_for_an_unused_feature_set_are_refused(house, table):
    house(
        training(data={"data": "train", "other": "all"}),
        PhaseError,
        "has data for data, other; the graph takes data",
    )


def test_an_empty_mapping_of_data_is_refused(house):
    house(training(data={}), PhaseError, "phase 'bad' has data for nothing")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([1, 2], "batch 0 of source 'data' in epoch 0 (both counted from 0) has 1 part for"),
        (np.zeros(3), "a ndarray cannot be the data of 'data'. Hint: write FeatureSet.from_dict"),
    ],
    ids=["list", "array"],
)
def test_data_of_an_unsupported_type_are_refused(house, given, message):
    house(training(data=given), SourceError, message)
    house(training(data={"data": given}), SourceError, message)


@pytest.mark.parametrize("given", [3, None], ids=["int", "None"])
def test_data_none_is_refused(house, given):
    words = f"cannot take its data from {type(given).__name__}", "pass the name of a split, a FeatureSet or a view"
    house(training(data=given), PhaseError, *words)
    house(training(data={"data": given}), PhaseError, *words)


def test_unequal_numbers_of_rows_are_refused(house):
    house(
        training(losses=[MSE, AppliedLoss("mse", on="far")], data={"data": "train", "other": "all"}),
        PhaseError,
        "different numbers of rows; data: 16, other: 8",
    )


def test_an_empty_split_cannot_even_be_made(data):
    with pytest.raises(SplitError, match=r"rows of shape \[0\]"):
        data.add_split("none", np.array([], dtype=int))


def test_features_of_another_dtype_are_refused(house, data):
    cast = fit_to(data, x=data.array("x").astype("float64"))
    house(training(data=cast), ColumnError, "data.x is float64[3] in these data", "the graph was built for float32[3]")


def test_features_of_another_shape_are_refused(house, data):
    house(
        training(data=fit_to(data, x=data.array("x")[:, :2])),
        ColumnError,
        "data.x is float32[2] in these data",
        "the graph was built for float32[3]",
    )


def test_data_without_a_column_are_refused(house, data):
    less = FeatureSet.from_dict("data", {"x": data.array("x"), "c": data.array("c")}, ["x"], ["c"])
    house(training(data=less), ColumnError, "'data' has no column 'y'")


@pytest.mark.parametrize(("wrong", "shown"), [(3, "3"), (-1, "-1")])
def test_a_class_index_out_of_range_is_refused(house, data, wrong, shown):
    classes = np.array(data.array("c"))
    classes[5] = wrong
    house(
        training(data=fit_to(data, c=classes), losses=[BY_CLASS]),
        ColumnError,
        f"data.c has the class index {shown}",
        "the model has 3 classes, 0 to 2",
    )


def test_a_class_index_out_of_range_in_the_validation_is_refused(house, data):
    classes = np.array(data.array("c"))
    classes[5] = 9
    validation = EvalPhase("check", data=fit_to(data, c=classes))
    house(training(losses=[BY_CLASS], validation=validation), ColumnError, "data.c has the class index 9")


def test_a_validation_over_an_unknown_split_is_refused(house):
    house(training(validation="nope"), SplitError, "'data' has no split 'nope'")


def test_drop_last_that_leaves_no_batch_is_refused(house):
    house(
        training(sampler=SimpleSampler(17, drop_last=True)),
        SamplerError,
        "drop_last leaves no batch of 17; 16 rows",
        "use a batch size of at most 16",
    )


# -- losses and metrics ------------------------------------------------------------------------------------------------


def test_losses_that_would_broadcast_are_refused(house):
    house(
        training(losses=[AppliedLoss("mse", on="sort", inputs=["outputs", "data.y"])]),
        ShapeError,
        "mse on node 'sort' cannot compare its output float32[3] with data.y, float32[1]; losses never broadcast",
    )


def test_integers_as_targets_of_a_regression_are_refused(house):
    house(
        training(losses=[AppliedLoss("mse", on="net", inputs=["outputs", "data.c"])]),
        SpecError,
        "mse on 'net' compares float32 outputs with data.c, which is int64",
        "feature_set.cast({'c': 'float32'})",
    )


def test_a_loss_on_an_unknown_node_is_refused(house):
    house(
        training(losses=[AppliedLoss("mse", on="nett")]),
        GraphError,
        "phase 'bad' names the node 'nett'",
        "did you mean 'net'",
    )


def test_a_loss_on_an_unknown_column_is_refused(house):
    house(training(losses=[AppliedLoss("mse", on="net", inputs=["outputs", "data.z"])]), ColumnError, "no column 'z'")


def test_outputs_and_metrics_of_unknown_nodes_are_refused(house):
    house(evaluation(outputs=["sorted"]), GraphError, "phase 'bad' names the node 'sorted'", "did you mean 'sort'")
    house(evaluation(metrics=[Metric("mse", on="nit")]), GraphError, "metric 'mse' is on the node 'nit'")


def test_metrics_without_a_column_to_compare_with_are_refused(house):
    house(
        evaluation(metrics=[Metric("mse", targets="nothing")]),
        ColumnError,
        "metric 'mse' compares with 'nothing', which is not a column",
        "write 'FEATURE_SET.COLUMN'",
    )


def test_two_metrics_with_one_label_are_refused(house):
    metrics = [Metric(lambda outputs, targets: 0.0), Metric(lambda outputs, targets: 1.0)]
    house(evaluation(metrics=metrics), SpecError, "phase 'bad' has two metrics called <lambda>", "give each a label=")


# -- devices and recipes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [training, evaluation])
def test_a_missing_device_is_refused(house, make):
    house(make(accelerator="sim:7"), DeviceUnavailableError, "'sim:7' is not on this machine", "cpu:0, sim:0, sim:1")
    house(make(accelerator="gpu"), DeviceUnavailableError, "'gpu' is not on this machine", "cpu:0, sim:0, sim:1")


def test_a_missing_final_device_is_refused(house):
    house(
        training(final_device="sim:9"), DeviceUnavailableError, "sim:9 is not on this machine for numpy", "sim:0, sim:1"
    )
    house(
        evaluation(final_device="gpu:3"), FrameworkError, "no installed plugin runs numpy on 'gpu'", "numpy on cpu, sim"
    )


def test_an_unknown_policy_is_refused(house):
    house(training(policy="clever"), PluginError, "no plugin has the placement policy 'clever'")


def test_a_fallback_moves_nothing_if_warnings_are_errors(numpy_only, line, experiment, train, at):
    moved = []
    graph = line()
    offer_tpu(numpy_only)
    with pytest.raises(FallbackWarning, match="asks for 'tpu', but these nodes cannot run there and run on the CPU"):
        experiment(graph).run_phase(
            train(accelerator="tpu", callbacks=[at("after_placement", lambda **_: moved.append(1))])
        )
    assert not moved and graph.optimizer_states == graph.progress == {}


def test_a_fallback_is_forbidden_by_strict(numpy_only, line, experiment, train):
    offer_tpu(numpy_only)
    with pytest.raises(FrameworkError, match="node 'net': no installed plugin runs numpy on 'tpu'"):
        experiment(line()).run_phase(train(accelerator="tpu", strict=True))


def test_nodes_that_cannot_run_on_the_final_device_stay_unless_strict(numpy_only, line, experiment, train):
    offer_tpu(numpy_only)
    with pytest.raises(FrameworkError, match="no installed plugin runs numpy on 'tpu'"):
        experiment(line()).run_phase(train(final_device="tpu"))


def test_training_with_everything_frozen_is_refused(data, line, experiment, train):
    graph = line().freeze()
    with pytest.raises(PhaseError, match=r"nothing to train: net \(frozen\). Hint: unfreeze a node"):
        experiment(graph).run_phase(train())


def test_training_without_an_optimizer_is_refused(data, experiment, train):
    graph = ModelGraph([ModelNode("net", Dense(1), data.reference(["x"], ["y"]))])
    with pytest.raises(PhaseError, match="node 'net' is trained but has no optimizer"):
        experiment(graph).run_phase(train())


# -- data of other units than the graph's ------------------------------------------------------------------------------


# -- columns of several dtypes -----------------------------------------------------------------------------------------


def mixed_data(counts):
    data = {"a": np.linspace(0, 1, 4, dtype="float32"), "n": np.array(counts), "y": [0.5, 1, 2, 3], "z": [1, 2, 3, 4]}
    return FeatureSet.from_dict("d", data, ["a", "n"], ["y", "z"])


def test_the_plan_says_which_columns_are_promoted():
    fs = mixed_data([1, 2, 3, 2**24])
    experiment = Experiment("e", ModelGraph([ModelNode("net", Dense(2), fs.reference())]), progress="none")
    phase = EvalPhase("e", data="all", losses=[MSE])
    loaded = {column.name: column.change for column in experiment.plan(phase).columns}
    assert loaded["d.a+n"] == "a float32 as float64, n int64 as float64, float64 to float32"
    assert loaded["d.y+z"] == "z int64 as float64, float64 to float32"
    assert "(z int64 as float64, float64 to float32)" in str(experiment.plan(phase))
    results = experiment.run_phase(phase)
    wanted = np.mean((results.prediction("net") - np.column_stack([fs.array("y"), fs.array("z")])) ** 2)
    np.testing.assert_allclose(results.loss, wanted, rtol=1e-6)


def test_integers_that_the_model_would_round_are_refused():
    fs = mixed_data([1, 2, 3, 2**24 + 1])
    experiment = Experiment("e", ModelGraph([ModelNode("net", Dense(2), fs.reference())]), progress="none")
    with pytest.raises(ColumnError, match=r"column 'n' of 'd' is joined with floats as float32: row 3 holds 16777217"):
        experiment.run_phase(EvalPhase("e", data="all"))


def test_a_phase_with_nothing_to_compute_is_refused():
    raw = FeatureSet.from_dict("d", {"x": np.ones((4, 2)), "y": np.ones(4)}, ["x"], ["y"])
    experiment = Experiment("e", ModelGraph([ModelNode("net", SequentialMLP(), raw.reference())]), progress="none")
    with pytest.raises(PhaseError, match=r"nothing to compute.*no losses, metrics or outputs.*leave outputs out"):
        experiment.run_phase(EvalPhase("e", data="all", outputs=[]))


@pytest.mark.parametrize("outputs", [3, [3], {"net": 1, 2: 3}])
def test_labels_of_nodes_must_be_text(outputs):
    with pytest.raises(PhaseError, match=r"labels of nodes must be strings.*write"):
        EvalPhase("e", data="all", outputs=outputs)
