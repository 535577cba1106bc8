"""Results: figures, tables and plain data of what came out."""

from __future__ import annotations

import json
import math

import numpy as np
import pyarrow as pa
import pytest

from anyaccel import AppliedLoss, Callback, EvalPhase, FeatureSet, ModelGraph, ModelNode, SequentialMLP, TrainPhase
from anyaccel.errors import ResultError
from anyaccel.experiment import Experiment
from anyaccel.reference import Activation
from anyaccel.results import EvalResults, TrainResults, eval_results


@pytest.fixture
def trained(experiment):
    losses = [AppliedLoss("mse", on="guess"), AppliedLoss("mae", on="guess", weight=0.5, label="far")]
    validation = EvalPhase("val", data="last", metrics=["rmse"])
    phase = TrainPhase("t", data="all", losses=losses, sampler=4, n_epochs=3, validation=validation, validate_every=2)
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


@pytest.mark.parametrize("ask", [lambda r: r.figure("val_mae"), lambda r: r.losses("near")])
def test_a_figure_that_is_not_there_gets_the_list(ask, trained):
    with pytest.raises(ResultError) as caught:
        ask(trained)
    assert "run 't' has no figure" in str(caught.value)
    assert "There is: loss, loss.guess, loss.far, val_loss" in str(caught.value)
    assert "use one of these names" in str(caught.value)


def test_a_run_of_no_epoch_says_so(experiment):
    phase = TrainPhase("t", data="all", losses=[AppliedLoss("mse", on="guess")], n_epochs=0)
    result = experiment.run_phase(phase)
    assert (result.epochs, result.figures, result.loss.shape) == ((), (), (0,))
    with pytest.raises(
        ResultError, match=r"run 't' has no figure 'loss'. There is: no complete epoch. To do: run at least"
    ):
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
    result = experiment.run_phase(
        TrainPhase("t", data="all", losses=[AppliedLoss(_nan, on="guess")], validation=EvalPhase("v", data="all"))
    )
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

    phase = TrainPhase("t", data="all", losses=[AppliedLoss("mse", on="guess")], n_epochs=5, callbacks=[Break()])
    with pytest.raises(RuntimeError, match=r"enough"):
        experiment.run_phase(phase)
    result = experiment.last_run
    assert len(result.epochs) == 2 and isinstance(result.error, RuntimeError)
    assert result.to_dict()["error"] == "RuntimeError: enough"


def test_why_a_run_was_stopped_is_kept(experiment):
    class Stop(Callback):
        def epoch_end(self, run):
            run.stop("good enough")

    phase = TrainPhase("t", data="all", losses=[AppliedLoss("mse", on="guess")], n_epochs=5, callbacks=[Stop()])
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
        "run 'w' has no predictions of 'guess'. There is: wide. To do: name the node in EvalPhase(outputs=[...])."
    )
    assert isinstance(caught.value, KeyError)


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
    with pytest.raises(ResultError, match=r"run 'w' kept no predictions. To do: name nodes in EvalPhase\(outputs="):
        result.to_arrow()
    assert result.loss == result.losses["guess"] > 0


def test_an_evaluation_is_plain_data(experiment):
    losses = [AppliedLoss("mse", on="guess", weight=2.0)]
    result = experiment.run_phase(EvalPhase("w", data="all", losses=losses, metrics=["mae"]))
    told = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert told == {
        "label": "w",
        "loss": 2 * told["losses"]["guess"],
        "losses": {"guess": result.losses["guess"]},
        "metrics": {"mae": result.metrics["mae"]},
        "error": None,
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
    result = eval_results("w", None, None, {}, RuntimeError("no"))
    assert math.isnan(result.loss) and result.predictions == result.metrics == {}
    assert result.to_dict()["error"] == "RuntimeError: no"
