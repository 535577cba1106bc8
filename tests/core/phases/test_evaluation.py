"""EvalPhase: losses, metrics and predictions over whole data; it changes no state."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples

from anyaccel import AppliedLoss
from anyaccel.adapter import VjpResult
from anyaccel.data import FeatureSet
from anyaccel.errors import ColumnError, GraphError, ResultError, SpecError
from anyaccel.graph import ConcatNode, ModelGraph, ModelNode
from anyaccel.metrics import Metric
from anyaccel.numpy_backend import BatchNorm, Dense, Dropout, Module, Sequential, SequentialMLP
from anyaccel.phases import EvalPhase

MSE = AppliedLoss("mse", on="net")


@pytest.fixture
def several(data):
    """A body with a regression and a classification on it."""
    nodes = [
        ModelNode("body", SequentialMLP((4,), 2, 6), data.reference(["x"], ["y"])),
        ModelNode("net", Dense(1), "body"),
        ModelNode("sort", Dense(3), "body"),
    ]
    return ModelGraph(nodes, "adam").build()


def by_hand(graph, label, x):
    """The outputs of a node whose inputs are x, through the modules themselves."""
    node = graph[label]
    upstream = node.upstreams[0]
    return node.model(by_hand(graph, upstream, x) if isinstance(upstream, str) else x)


# -- figures -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 3, 8, 1024])
@pytest.mark.parametrize("where", ["cpu", "sim:1"])
@pytest.mark.usefixtures("sims")
def test_losses_are_means_over_all_rows_for_any_batch_size(batch, where, data, several, experiment):
    losses = [
        AppliedLoss("mse", on="net", weight=2.0),
        AppliedLoss("cross_entropy", on="sort", inputs=["outputs", "data.c"], weight=0.5),
    ]
    x, y, c = (data["val"].array(name) for name in ("x", "y", "c"))
    scores = by_hand(several, "sort", x).astype("float64")
    mse = np.mean((by_hand(several, "net", x).astype("float64") - y) ** 2)
    entropy = np.mean(np.log(np.exp(scores).sum(1)) - scores[np.arange(8), c])
    phase = EvalPhase("e", data="val", losses=losses, batch_size=batch, accelerator=where)
    result = experiment(several).run_phase(phase)
    assert result.losses == pytest.approx({"net": mse, "sort": entropy}, rel=1e-5)
    assert result.loss == pytest.approx(2 * mse + 0.5 * entropy, rel=1e-5)
    assert result.error is None and result.label == "e"


def test_metrics_by_name_by_function_and_bound(data, several, experiment):
    def largest(outputs, targets):
        return np.abs(outputs - targets).max()

    phase = EvalPhase(
        "e",
        data="val",
        losses=[MSE],
        metrics=[
            "mse",
            largest,
            Metric("accuracy", on="sort", targets="data.c"),
            Metric(lambda outputs, targets: len(outputs), on="body", targets="data.y", label="rows"),
        ],
    )
    x, y, c = (data["val"].array(name) for name in ("x", "y", "c"))
    result = experiment(several).run_phase(phase).metrics
    error = by_hand(several, "net", x) - y
    assert list(result) == ["mse", "largest", "accuracy", "rows"]
    assert result == pytest.approx(
        {
            "mse": np.mean(error.astype("float64") ** 2),
            "largest": np.abs(error).max(),
            "accuracy": np.mean(by_hand(several, "sort", x).argmax(1) == c),
            "rows": 8,
        }
    )
    assert all(type(value) is float for value in result.values())


def test_a_metric_without_a_node_is_bound_to_the_nodes_with_losses(several, experiment, data):
    losses = [MSE, AppliedLoss("cross_entropy", on="sort", inputs=["outputs", "data.c"])]
    result = experiment(several).run_phase(EvalPhase("e", data="val", losses=losses, metrics=_shape)).metrics
    assert result == {"net.shape": 101, "sort.shape": 300}


def test_a_metric_without_losses_is_bound_to_the_output_nodes(several, experiment):
    result = experiment(several).run_phase(EvalPhase("e", data="val", metrics=[_shape])).metrics
    assert result == {"net.shape": 101, "sort.shape": 301}


def shape(outputs, targets):
    return outputs.shape[1] * 100 + (targets.shape[1] if targets.ndim == 2 else 0)


_shape = Metric(shape, label="shape")


def test_one_metric_need_not_be_in_a_list(several, experiment):
    for given_ in ("mse", Metric("mse"), ["mse"]):
        phase = EvalPhase("e", data="val", losses=[MSE], metrics=given_)
        assert list(experiment(several).run_phase(phase).metrics) == ["mse"]


def test_without_losses_there_is_no_loss(several, experiment):
    result = experiment(several).run_phase(EvalPhase("e", data="val"))
    assert math.isnan(result.loss) and result.losses == {}


def test_a_metric_that_cannot_compare_is_an_error_with_the_shapes(several, experiment):
    ours = experiment(several)
    phase = EvalPhase("e", data="val", losses=[MSE], metrics=[Metric("mse", on="sort", targets="data.y")])
    with pytest.raises(SpecError, match=r"cannot compare outputs \[8, 3\] with targets \[8, 1\]"):
        ours.run_phase(phase)
    assert math.isnan(ours.last_run.loss) and isinstance(ours.last_run.error, SpecError)


def test_the_hint_of_a_metric_that_fits_only_one_node_works(several, experiment):
    losses = [MSE, AppliedLoss("cross_entropy", on="sort", inputs=["outputs", "data.c"])]
    with pytest.raises(SpecError, match=r"name the node to judge: Metric\('accuracy', on='sort'\)"):
        experiment(several).run_phase(EvalPhase("e", data="val", losses=losses, metrics=["accuracy"]))
    phase = EvalPhase("e", data="val", losses=losses, metrics=[Metric("accuracy", on="sort")])
    assert 0.0 <= experiment(several).run_phase(phase).metrics["accuracy"] <= 1.0


# -- predictions -------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batch=st.integers(1, 30), seed=st.integers(0, 9), where=st.sampled_from(["cpu", "sim:0"]))
def test_predictions_come_in_the_order_of_the_data(batch, seed, where, sims, table, line, experiment):
    rows = table(24)
    order = np.random.default_rng(seed).permutation(24)[: seed + 5]
    rows.add_split("some", order)
    graph = line(source=rows).build()
    result = experiment(graph).run_phase(EvalPhase("e", data="some", batch_size=batch, accelerator=where))
    model = ModelGraph([ModelNode("net", Dense(1), rows.reference(["x"], ["y"]))]).build()["net"].model
    np.testing.assert_allclose(result.prediction("net"), model(rows.array("x"))[order], rtol=1e-6, atol=1e-6)


def test_outputs_of_the_output_nodes_are_kept_unless_nodes_are_named(several, experiment):
    ours = experiment(several)
    assert list(ours.run_phase(EvalPhase("e", data="val")).predictions) == ["net", "sort"]
    assert list(ours.run_phase(EvalPhase("e", data="val", outputs=["body", "sort"])).predictions) == ["body", "sort"]
    assert list(ours.run_phase(EvalPhase("e", data="val", outputs="body")).predictions) == ["body"]
    result = ours.run_phase(EvalPhase("e", data="val", outputs=[], losses=[MSE], metrics=["mse"]))
    assert result.predictions == {} and result.metrics["mse"] == pytest.approx(result.loss, rel=1e-5)
    with pytest.raises(ResultError, match="run 'e' has no predictions of 'net'"):
        result.prediction("net")


def test_nodes_that_are_not_needed_are_not_computed(several, experiment, monkeypatch):
    monkeypatch.setattr(several["sort"].model, "apply", None)
    assert experiment(several).run_phase(EvalPhase("e", data="val", outputs=["net"])).prediction("net").shape == (8, 1)


def test_a_node_may_have_several_outputs(data, experiment):
    class Both(Module):
        def apply(self, values, inputs, *, train, key):
            (x,) = inputs
            return VjpResult((x, x[:, :1] * 2), lambda c: ({}, (None,)))

    graph = ModelGraph([ModelNode("pair", Both(), data.reference(["x"], ["y"]), outputs=["all", "one"])])
    result = experiment(graph).run_phase(EvalPhase("e", data="val"))
    assert list(result.predictions) == ["pair.all", "pair.one"]
    np.testing.assert_array_equal(result.prediction("pair.one"), data["val"].array("x")[:, :1] * 2)


def test_predictions_are_writable_copies(several, experiment):
    ours = experiment(several)
    phase = EvalPhase("e", data="val")
    first = ours.run_phase(phase).prediction("net")
    kept = first.copy()
    first[:] = 0
    np.testing.assert_array_equal(ours.run_phase(phase).prediction("net"), kept)


def test_predictions_do_not_change_when_training_goes_on(line, experiment, train, evaluate):
    ours = experiment(line())
    first = ours.run_phase(evaluate())
    kept = first.prediction("net").copy()
    ours.run_phase(train())
    np.testing.assert_array_equal(first.prediction("net"), kept)


# -- nothing changes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [None, "sim:0"])
@pytest.mark.usefixtures("sims")
def test_an_evaluation_changes_no_state(where, line, experiment, train, evaluate, values, same):
    graph = line(Sequential(Dense(4), BatchNorm(), Dropout(0.5), Dense(1)))
    ours = experiment(graph)
    ours.run_phase(train(accelerator=where, epochs=2))
    before, progress = values(graph), dict(graph.progress)
    first = ours.run_phase(evaluate(accelerator=where, metrics=["mse"], batch_size=3))
    second = ours.run_phase(evaluate(accelerator=where, metrics=["mse"], batch_size=5))
    same(before, values(graph))
    assert graph.progress == progress and graph.frozen == ()
    assert first.loss == pytest.approx(second.loss) == pytest.approx(first.metrics["mse"])
    assert ours.run_phase(train(accelerator=where)).epochs[0].number == 2


def test_an_evaluation_places_models_on_its_device(sims, line, experiment, evaluate, owned):
    """A phase without an accelerator computes on the CPU."""
    graph = line()
    ours = experiment(graph)
    for accelerator, used in (("sim:0", [16, 0]), ("sim:1", [0, 16]), (None, [0, 0])):
        ours.run_phase(evaluate(accelerator=accelerator))
        assert [sims[0].used, sims[1].used] == used
    ours.run_phase(evaluate(accelerator="sim:0", final_device="sim:1"))
    assert owned(graph, "sim:1") == 16


# -- data --------------------------------------------------------------------------------------------------------------


def test_several_feature_sets_are_read_side_by_side(data, table, experiment):
    other = table(24, "other", seed=9)
    other.add_split("val", np.arange(8)[::-1].copy())
    nodes = [
        ModelNode("one", Dense(2), data.reference(["x"], ["y"])),
        ModelNode("two", Dense(2), other.reference(["x"], [])),
        ConcatNode("both", ["one", "two"]),
        ModelNode("net", Dense(1), "both"),
    ]
    graph = ModelGraph(nodes, "adam").build()
    x, z = data["val"].array("x"), other["val"].array("x")
    joined = np.concatenate([graph["one"].model(x), graph["two"].model(z)], axis=1)
    result = experiment(graph).run_phase(EvalPhase("e", data="val", losses=[MSE], batch_size=3))
    np.testing.assert_allclose(result.prediction("net"), graph["net"].model(joined), rtol=1e-6, atol=1e-6)
    mapped = EvalPhase("e", data={"data": data["val"], "other": "val"}, losses=[MSE])
    assert experiment(graph).run_phase(mapped).loss == pytest.approx(result.loss)


def test_data_may_be_a_feature_set_a_view_or_other_data_of_that_label(data, table, line, experiment):
    ours = experiment(line())
    assert ours.run_phase(EvalPhase("e", data=data)).prediction("net").shape == (24, 1)
    assert ours.run_phase(EvalPhase("e", data=data["val"])).prediction("net").shape == (8, 1)
    assert ours.run_phase(EvalPhase("e", data={"data": data.view()})).prediction("net").shape == (24, 1)
    assert ours.run_phase(EvalPhase("e", data=table(5, "data"))).prediction("net").shape == (5, 1)
    assert ours.run_phase(EvalPhase.from_split("e", split="all")).prediction("net").shape == (24, 1)


def test_one_row_is_enough(table, line, experiment):
    one = table(1)
    result = experiment(line(source=one)).run_phase(EvalPhase("e", data=one, losses=[MSE], metrics=["mse"]))
    assert result.prediction("net").shape == (1, 1) and result.metrics["mse"] == pytest.approx(result.loss, rel=1e-5)


def test_tags_are_in_the_results_beside_the_predictions(data, several, experiment):
    result = experiment(several).run_phase(EvalPhase("e", data="val"))
    arrow = result.to_arrow()
    assert arrow.column_names == ["prediction.net", "prediction.sort", "y", "c", "id"]
    assert arrow.column("id").to_pylist() == list(range(16, 24))
    assert arrow.column("c").to_pylist() == data["val"].array("c").tolist()


def test_an_evaluation_needs_only_the_feature_sets_of_its_nodes(data, table, experiment):
    other = table(5, "other")
    nodes = [
        ModelNode("net", Dense(1), data.reference(["x"], ["y"])),
        ModelNode("far", Dense(1), other.reference(["x"], ["y"])),
    ]
    ours = experiment(ModelGraph(nodes))
    assert ours.run_phase(EvalPhase("e", data="val", outputs=["net"], losses=[MSE])).loss > 0
    assert ours.run_phase(EvalPhase("e", data=data, outputs=["net"])).to_arrow().num_rows == 24


def test_integer_features_stay_integers(experiment):
    class Lookup(Module):
        def apply(self, values, inputs, *, train, key):
            (x,) = inputs
            assert x.dtype == "int64"
            return VjpResult((np.asarray(x * 10, "float32"),), lambda c: ({}, (None,)))

    rows = FeatureSet.from_dict("rows", {"word": [[3], [1], [2]], "y": [[30.0], [10.0], [20.0]]}, ["word"], ["y"])
    graph = ModelGraph([ModelNode("net", Lookup(), rows.reference())])
    result = experiment(graph).run_phase(EvalPhase("e", data=rows, losses=[MSE], batch_size=2))
    assert result.prediction("net").ravel().tolist() == [30, 10, 20] and result.loss == 0


def test_data_without_targets_give_predictions_without_metrics(experiment):
    rows = FeatureSet.from_dict("rows", {"x": np.zeros((4, 3), "float32")}, ["x"])
    ours = experiment(ModelGraph([ModelNode("net", Dense(1), rows.reference())]))
    assert ours.run_phase(EvalPhase("e", data=rows)).prediction("net").shape == (4, 1)
    with pytest.raises(ColumnError, match="has the input 'targets', but the data that feed this node have no targets"):
        ours.run_phase(EvalPhase("e", data=rows, losses=[MSE]))
    with pytest.raises(ColumnError, match="the data that feed this node have no targets"):
        ours.run_phase(EvalPhase("e", data=rows, metrics=["mse"]))


@pytest.mark.parametrize("label", ["loss", "loss.net"])
@pytest.mark.parametrize("validates", [True, False])
def test_a_metric_is_not_called_as_a_loss_is(label, validates, line, experiment, train):
    looks = EvalPhase("look", data="val", losses=[MSE], metrics=[Metric("mse", label=label)])
    phase = train(validation=looks) if validates else looks
    with pytest.raises(
        SpecError, match=rf"has a metric called '{label}', but a loss in the results has that name.* Hint: give"
    ):
        experiment(line()).run_phase(phase)


def test_a_metric_that_writes_to_its_arguments_changes_nothing_else(line, experiment):
    def spoils(outputs, targets):
        outputs[...], targets[...] = 7, 7
        return 0.0

    graph = line()
    plain = experiment(graph).run_phase(EvalPhase("e", data="val", metrics=["mse"]))
    spoilt = experiment(graph).run_phase(EvalPhase("e", data="val", metrics=[spoils, "mse"]))
    assert spoilt.metrics["mse"] == plain.metrics["mse"]
    np.testing.assert_array_equal(spoilt.prediction("net"), plain.prediction("net"))


def test_a_validation_that_names_an_unknown_output_is_refused(line, experiment, train):
    looks = EvalPhase("look", data="val", outputs=["nope"])
    with pytest.raises(GraphError, match=r"phase 'look' names the node 'nope'\. Available: net"):
        experiment(line()).run_phase(train(validation=looks))
