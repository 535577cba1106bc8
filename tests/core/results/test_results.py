"""Results: figures, tables and plain data of what came out."""

from __future__ import annotations

import json
import math
import re
import sys
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest

from anyaccel import (
    AppliedLoss,
    Callback,
    EvalPhase,
    FeatureSet,
    Metric,
    ModelGraph,
    ModelNode,
    SequentialMLP,
    TrainPhase,
    simulate,
)
from anyaccel.errors import ResultError, SpecError
from anyaccel.experiment import Experiment
from anyaccel.numpy_backend import Activation
from anyaccel.results import EvalResults, TrainResults, eval_results


@pytest.fixture
def trained(experiment):
    losses = [AppliedLoss("mse", on="guess"), AppliedLoss("mae", on="guess", weight=0.5, label="far")]
    validation = EvalPhase("val", data="last", metrics=["rmse"])
    phase = TrainPhase("t", data="all", losses=losses, batch_size=4, epochs=3, validation=validation, validate_every=2)
    return experiment.run_phase(phase)


# -- training ----------------------------------------------------------------------------------------------------------


def test_every_figure_has_a_name(trained):
    assert type(trained) is TrainResults
    assert trained.figures == (
        "loss",
        "loss.guess",
        "loss.far",
        "val_loss",
        "val_loss.guess",
        "val_loss.far",
        "val_rmse",
    )


def test_figures_are_one_number_an_epoch_and_nan_where_there_was_none(trained):
    assert trained.loss.dtype == np.float64 and trained.loss.shape == (3,)
    assert np.allclose(trained.loss, trained.losses("guess") + 0.5 * trained.losses("far"))
    assert np.array_equal(trained.losses(), trained.loss)
    assert np.array_equal(trained.figure("loss.far"), trained.losses("far"))
    assert list(np.isnan(trained.figure("val_rmse"))) == [True, False, False]
    assert np.allclose(trained.figure("val_rmse")[1:] ** 2, trained.figure("val_loss.guess")[1:])


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda r: r.figure("val_mae"), r"no figure 'val_mae'\. Available: loss, loss\.guess, .* mean 'val_rmse'\?$"),
        (lambda r: r.figure("f1"), r"no figure 'f1'\. Available: loss, loss\.guess, .* use one of these names\.$"),
        (lambda r: r.losses("near"), r"no loss 'near'\. Available: guess, far\. Hint: use one of these labels\.$"),
        (lambda r: r.losses("gues"), r"no loss 'gues'\. Available: guess, far\. Hint: did you mean 'guess'\?$"),
        (lambda r: r.losses("wide"), r"no loss 'wide'\. Available: guess, far\. Hint: use one of these labels\.$"),
        (lambda r: r.curve("far"), r"no figure 'far'"),
    ],
)
def test_a_figure_that_is_not_there_gets_the_list(ask, message, trained):
    with pytest.raises(ResultError, match=rf"^run 't' has {message}"):
        ask(trained)


def test_a_run_of_no_epoch_says_so(experiment):
    phase = TrainPhase("t", data="all", losses=[AppliedLoss("mse", on="guess")], epochs=0)
    result = experiment.run_phase(phase)
    assert (result.epochs, result.figures, result.loss.shape) == ((), (), (0,))
    with pytest.raises(ResultError, match=r"run 't' has no figure 'loss'\. Hint: run at least"):
        result.figure("loss")
    assert result.to_arrow().num_rows == 0
    assert result.to_dict()["epochs"] == []


def test_a_training_table_has_a_row_for_each_epoch(trained):
    table = trained.to_arrow()
    assert table.column_names == ["epoch", "steps", "seconds", *trained.figures]
    assert table.schema.field("epoch").type == table.schema.field("steps").type == pa.int64()
    assert all(table.schema.field(name).type == pa.float64() for name in ("seconds", *trained.figures))
    assert table.column("epoch").to_pylist() == [0, 1, 2]
    assert table.column("steps").to_pylist() == [2, 2, 2]
    assert np.array_equal(table.column("val_rmse").to_numpy(), trained.figure("val_rmse"), equal_nan=True)


def test_training_is_plain_data(trained):
    told = json.loads(json.dumps(trained.to_dict(), allow_nan=False))
    assert told["label"] == "t" and told["error"] is None and told["stop_reason"] == ""
    assert set(told["epochs"][0]) == {
        "epoch",
        "steps",
        "seconds",
        "loss",
        "loss.guess",
        "loss.far",
    }
    assert told["epochs"][1]["val_rmse"] == trained.figure("val_rmse")[1]


def test_losses_that_are_no_numbers_are_null_in_plain_data(experiment):
    """JSON has no NaN; a file that other tools cannot read would be of no use."""
    losses = [AppliedLoss(_nan, on="guess")]
    phase = TrainPhase("t", data="all", losses=losses, validation=EvalPhase("v", data="all"), on_nan="ignore")
    result = experiment.run_phase(phase)
    assert math.isnan(result.loss[0])
    (epoch,) = json.loads(json.dumps(result.to_dict(), allow_nan=False))["epochs"]
    assert epoch["loss"] is None and epoch["val_loss"] is None


def _nan(outputs, targets):
    return np.float32("nan"), len(outputs), (np.zeros_like(outputs), None)


def test_what_ended_a_run_is_kept_with_what_was_complete(experiment):
    class Break(Callback):
        def epoch_end(self, run):
            if run.epoch == 1:
                raise RuntimeError("enough")

    phase = TrainPhase("t", data="all", losses=[AppliedLoss("mse", on="guess")], epochs=5, callbacks=[Break()])
    with pytest.raises(RuntimeError, match=r"enough"):
        experiment.run_phase(phase)
    result = experiment.last_run
    assert len(result.epochs) == 2 and isinstance(result.error, RuntimeError)
    assert result.to_dict()["error"] == "RuntimeError: enough"


def test_why_a_run_was_stopped_is_kept(experiment):
    class Stop(Callback):
        def epoch_end(self, run):
            run.stop("good enough")

    phase = TrainPhase("t", data="all", losses=[AppliedLoss("mse", on="guess")], epochs=5, callbacks=[Stop()])
    assert experiment.run_phase(phase).to_dict()["stop_reason"] == "good enough"


# -- evaluation --------------------------------------------------------------------------------------------------------


def test_predictions_are_in_the_order_of_the_data(experiment):
    whole = experiment.run_phase(EvalPhase("w", data="all", batch_size=4))
    last = experiment.run_phase(EvalPhase("l", data="last"))
    assert type(whole) is EvalResults
    assert set(whole.predictions) == {"guess", "wide"}
    assert whole.prediction("wide").shape == (6, 3, 1)
    assert np.allclose(last.prediction("guess"), whole.prediction("guess")[[5, 4]], rtol=1e-6)


def test_a_prediction_that_was_not_kept_is_told_how_to_keep_it(experiment):
    result = experiment.run_phase(EvalPhase("w", data="all", outputs=["wide"]))
    with pytest.raises(ResultError) as caught:
        result.prediction("guess")
    assert str(caught.value) == (
        "run 'w' has no predictions of 'guess', which it did not compute. Available: wide. "
        "Hint: name it in EvalPhase(outputs=['guess'])."
    )
    assert isinstance(caught.value, KeyError)


@pytest.mark.parametrize(
    ("settings", "name", "message"),
    [
        (
            {"outputs": ["wide"], "losses": [AppliedLoss("mse", on="guess")]},
            "guess",
            r"'guess', which it computed but did not store\. Available: wide\. Hint: name it in .*outputs=\['guess'\]",
        ),
        ({}, "gues", r"'gues', which is not a node\. Available: guess, wide\. Hint: did you mean 'guess'\?"),
        ({}, "x", r"'x', which is not a node\. Available: guess, wide\. Hint: use one of these labels"),
        ({}, "guess.1", r"'guess\.1'\. Available: guess, wide\. Hint: did you mean 'guess'\?"),
    ],
)
def test_nodes_that_never_ran_and_nodes_that_are_not_there_get_different_answers(settings, name, message, experiment):
    result = experiment.run_phase(EvalPhase("w", data="all", **settings))
    with pytest.raises(ResultError, match=rf"^run 'w' has no predictions of {message}"):
        result.prediction(name)


def test_predictions_of_a_run_that_failed_say_what_ended_it(experiment):
    def fails(outputs, targets):
        raise RuntimeError("no")

    with pytest.raises(SpecError, match="raised RuntimeError: no"):
        experiment.run_phase(EvalPhase("w", data="all", metrics=[fails]))
    with pytest.raises(ResultError, match=r"of 'guess': it ended with SpecError: metric .* Hint: run the phase again"):
        experiment.last_run.prediction("guess")


def test_an_evaluation_table_has_predictions_targets_and_tags_row_by_row(experiment, data):
    result = experiment.run_phase(EvalPhase("l", data="last"))
    table = result.to_arrow()
    assert table.column_names == ["prediction.guess", "prediction.wide", "y", "name", "row"]
    assert table.schema.field("name").type == pa.string() and table.schema.field("row").type == pa.int64()
    assert table.schema.field("prediction.wide").type == pa.fixed_shape_tensor(pa.float32(), (3, 1))
    assert table.column("y").to_pylist() == [5.0, 4.0]
    assert table.column("name").to_pylist() == [None, "e"]
    assert table.column("row").to_pylist() == [5, 4]
    assert np.array_equal(
        table.column("prediction.wide").combine_chunks().to_numpy_ndarray(), result.prediction("wide")
    )


def test_an_evaluation_table_can_be_data_again(experiment):
    table = experiment.run_phase(EvalPhase("l", data="last")).to_arrow()
    again = FeatureSet.from_arrow("again", table, "prediction.wide", "y", "name")
    assert again.spec("prediction.wide").shape == (3, 1)


def test_several_outputs_of_a_node_have_columns_of_their_own(data):
    class Both(Activation):
        def apply(self, values, inputs, *, train, key):
            applied = super().apply(values, inputs, train=train, key=key)
            return type(applied)((inputs[0], applied.outputs[0]), None)

    graph = ModelGraph([ModelNode("n", Both("tanh"), data.reference(), outputs=["raw", "bent"])])
    result = Experiment("e", graph).run_phase(EvalPhase("w", data="all"))
    assert list(result.predictions) == ["n.raw", "n.bent"]
    with pytest.raises(
        ResultError, match=r"of 'n', which has several outputs\. Available: n\.raw, n\.bent\. Hint: name"
    ):
        result.prediction("n")
    assert result.to_arrow().column_names[:2] == ["prediction.n.raw", "prediction.n.bent"]
    assert np.array_equal(result.prediction("n.raw"), data.array("x"))


def test_columns_of_one_name_in_two_feature_sets_are_told_apart(data):
    other = FeatureSet.from_dict("other", {"x": np.ones((6, 2), "float32"), "y": np.arange(6) * 10}, "x", "y")
    graph = ModelGraph([ModelNode("n", SequentialMLP(), [data.reference(), other.reference()])])
    table = Experiment("e", graph).run_phase(EvalPhase("w", data="all")).to_arrow()
    assert table.column_names == ["prediction.n", "y", "name", "row", "other.y"]
    assert table.column("other.y").to_pylist() == [0, 10, 20, 30, 40, 50]


def test_without_predictions_there_is_no_table(experiment):
    result = experiment.run_phase(EvalPhase("w", data="all", outputs=[], losses=[AppliedLoss("mse", on="guess")]))
    with pytest.raises(ResultError, match=r"run 'w' stored no predictions. Hint: name nodes in EvalPhase\(outputs="):
        result.to_arrow()
    assert result.loss == result.losses["guess"] > 0


def test_an_evaluation_is_plain_data(experiment):
    losses = [AppliedLoss("mse", on="guess", weight=2.0)]
    result = experiment.run_phase(EvalPhase("w", data="all", losses=losses, metrics=["mae"]))
    told = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    (event,) = result.events
    assert told == {
        "label": "w",
        "loss": 2 * told["losses"]["guess"],
        "losses": {"guess": result.losses["guess"]},
        "metrics": {"mae": result.metrics["mae"]},
        "error": None,
        "events": [
            {"epoch": -1, "step": -1, "kind": "residency", "message": event.message, "verbose": True},
        ],
        "number": 0,
        "started": result.started.isoformat(),
        "seconds": result.seconds,
    }


def test_without_a_loss_the_loss_is_no_number(experiment):
    result = experiment.run_phase(EvalPhase("w", data="all"))
    assert math.isnan(result.loss)
    assert json.loads(json.dumps(result.to_dict(), allow_nan=False))["loss"] is None


def test_a_metric_that_is_no_number_is_null_in_plain_data(experiment):
    def infinite(outputs, targets):
        return math.inf

    told = experiment.run_phase(EvalPhase("w", data="all", metrics=[infinite])).to_dict()
    assert told["metrics"] == {"guess.infinite": None, "wide.infinite": None}


def test_an_evaluation_that_did_not_get_there_is_empty():
    result = eval_results("w", None, error=RuntimeError("no"))
    assert math.isnan(result.loss) and result.predictions == result.metrics == {}
    assert result.to_dict()["error"] == "RuntimeError: no"


# -- as pandas ---------------------------------------------------------------------------------------------------------


def test_training_is_a_data_frame(trained):
    pandas = pytest.importorskip("pandas")
    frame = trained.to_pandas()
    assert type(frame) is pandas.DataFrame and list(frame) == trained.to_arrow().column_names
    assert frame["epoch"].tolist() == [0, 1, 2]
    assert np.array_equal(frame["val_rmse"], trained.figure("val_rmse"), equal_nan=True)


def test_an_evaluation_is_a_data_frame_with_arrays_where_samples_have_axes(experiment):
    pytest.importorskip("pandas")
    result = experiment.run_phase(EvalPhase("l", data="last"))
    frame = result.to_pandas()
    assert list(frame) == ["prediction.guess", "prediction.wide", "y", "name", "row"]
    assert frame["row"].tolist() == [5, 4] and frame["name"][1] == "e" and frame["name"].isna()[0]
    assert frame["prediction.wide"][0].shape == (3, 1)
    assert np.array_equal(np.stack(frame["prediction.wide"]), result.prediction("wide"))


def test_without_pandas_it_says_what_to_install(trained, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(
        ResultError, match=r"to_pandas\(\) needs pandas.*Hint: python -m pip install pandas, or use to_"
    ):
        trained.to_pandas()


# -- joined with the data ----------------------------------------------------------------------------------------------


def test_predictions_are_joined_with_their_rows_over_several_feature_sets_and_outputs(data):
    """Each feature set has its own split of this name, in its own order; names that both have are told apart."""

    class Both(Activation):
        def apply(self, values, inputs, *, train, key):
            return type(super().apply(values, inputs[:1], train=train, key=key))((inputs[0], inputs[1]), None)

    columns = {"x": np.arange(12, dtype="float32").reshape(6, 2) * 7, "y": np.arange(6) * 10, "name": list("uvwxyz")}
    other = FeatureSet.from_dict("other", columns, "x", "y", "name")
    other.add_split("last", [0, 3])
    node = ModelNode("n", Both("tanh"), [data.reference(), other.reference()], outputs=["one", "two"])
    result = Experiment("e", ModelGraph([node])).run_phase(EvalPhase("w", data="last", batch_size=1))
    table = result.to_arrow()
    assert table.column_names == ["prediction.n.one", "prediction.n.two", "y", "name", "row", "other.y", "other.name"]
    assert table.column("row").to_pylist() == [5, 4] and table.column("other.name").to_pylist() == ["u", "x"]
    assert table.column("y").to_pylist() == [5.0, 4.0] and table.column("other.y").to_pylist() == [0, 30]
    assert np.array_equal(result.prediction("n.one"), data.array("x")[[5, 4]])
    assert np.array_equal(result.prediction("n.two"), other.array("x")[[0, 3]])


def test_names_that_meet_after_all_are_counted(data):
    """A feature set `o` with a column `y`, and another with a column `o.y`."""
    first = FeatureSet.from_dict("fs", {"x": np.ones((2, 1), "float32"), "y": [1, 2], "o.y": [3, 4]}, "x", "y", "o.y")
    second = FeatureSet.from_dict("o", {"x": np.ones((2, 1), "float32"), "y": [5, 6]}, "x", "y")
    graph = ModelGraph([ModelNode("n", SequentialMLP(), [first.reference(), second.reference()])])
    table = Experiment("e", graph).run_phase(EvalPhase("w", data="all")).to_arrow()
    assert table.column_names == ["prediction.n", "y", "o.y", "o.y#2"]
    assert table.column("o.y#2").to_pylist() == [5, 6]


# -- fitting -----------------------------------------------------------------------------------------------------------


# -- kept per run ------------------------------------------------------------------------------------------------------


def test_results_know_their_place_and_their_time(experiment):
    before = datetime.now(UTC)
    loss = AppliedLoss("mse", on="guess")
    first, second = experiment.run(TrainPhase("t", data="all", losses=[loss]), EvalPhase("e", data="all"))
    assert (first.number, second.number) == (0, 1) and experiment.history[first.number] is first
    assert before <= first.started <= second.started <= datetime.now(UTC)
    assert first.seconds > sum(epoch.seconds for epoch in first.epochs)


def test_nothing_of_a_run_is_left_on_a_device():
    """Parameters and optimizer state stay where they were trained; all else is gone, and results are host arrays."""
    with simulate(1) as (device,):
        columns = {"x": np.ones((64, 8), "float32"), "y": np.ones((64, 1), "float32")}
        data = FeatureSet.from_dict("fs", columns, "x", "y")
        node = ModelNode("net", SequentialMLP((1,), n_layers=2, hidden_dim=16), data.reference())
        experiment = Experiment("e", ModelGraph([node], "adam"))
        loss = AppliedLoss("mse", on="net")
        phase = TrainPhase("t", data="all", losses=[loss], epochs=2, validation="all", accelerator="sim:0")
        trained = experiment.run_phase(phase)
        parameters = 4 * (8 * 16 + 16 + 16 + 1)
        assert device.used == 3 * parameters  # each with the two moments of adam
        assert device.peak > device.used
        result = experiment.run_phase(EvalPhase("p", data="all", losses=[loss], metrics=["mse"], accelerator="sim:0"))
        assert device.used == 3 * parameters
        assert type(result.prediction("net")) is np.ndarray and type(trained.loss) is np.ndarray
        assert all(type(value) is float for value in (result.loss, *result.metrics.values(), *result.losses.values()))


def test_metrics_of_several_nodes_are_told_and_losses_of_single_ones_are_not(experiment):
    phase = EvalPhase(
        "e", data="all", metrics=[Metric("mse", on="guess", label="guess.mse")], losses=[AppliedLoss("mse", on="guess")]
    )
    text = repr(experiment.run_phase(phase))
    assert text.startswith("EvalResults('e', loss ") and ", guess.mse " in text and "loss.guess" not in text
    assert "guess.mse" in experiment._repr_html_()


def test_html_heads_columns_as_the_table_does(data):
    other = FeatureSet.from_dict("other", {"x": np.ones((6, 2), "float32"), "y": np.arange(6) * 10}, "x", "y")
    graph = ModelGraph([ModelNode("n", SequentialMLP(), [data.reference(), other.reference()])])
    result = Experiment("e", graph, progress="none").run_phase(EvalPhase("w", data="all"))
    heads = re.findall("<th[ >][^>]*>([^<]*)</th>", result._repr_html_())
    assert heads[-5:] == result.to_arrow().column_names == ["prediction.n", "y", "name", "row", "other.y"]


# -- what newcomers do with them ---------------------------------------------------------------------------------------


def test_single_values_are_plain_columns_that_can_be_subtracted():
    pytest.importorskip("pandas")
    x = np.arange(12, dtype="float32").reshape(6, 2)
    fs = FeatureSet.from_dict("fs", {"x": x, "price": x[:, :1] + 1, "pair": x}, "x", ["price", "pair"])
    fs.add_split("turned", [5, 0, 3])
    graph = ModelGraph([ModelNode("net", SequentialMLP((1,), n_layers=1), fs.reference(target="price"))])
    result = Experiment("e", graph, progress="none").run_phase(EvalPhase("v", data="turned"))
    assert result.prediction("net").shape == (3, 1)
    table = result.to_arrow()
    assert table.schema.field("prediction.net").type == table.schema.field("price").type == pa.float32()
    assert table.column("price").to_pylist() == [11, 1, 7]
    p = result.to_pandas()
    assert p["prediction.net"].dtype == p["price"].dtype == np.float32 and p["pair"].dtype == object
    wanted = np.abs(result.prediction("net") - fs.split("turned").array("price")).mean()
    assert (p["prediction.net"] - p["price"]).abs().mean() == pytest.approx(float(wanted))


def test_a_figure_that_is_asked_for_as_an_attribute_is_named(trained):
    with pytest.raises(AttributeError, match=r"no attribute 'val_loss'; it is a figure: figure\('val_loss'\)$"):
        trained.val_loss  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'speed'$"):
        trained.speed  # noqa: B018
    assert not hasattr(object.__new__(TrainResults), "epochs")
