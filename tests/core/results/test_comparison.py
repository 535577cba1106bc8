"""Runs side by side: which figures, which is best, and what cannot be compared."""

from __future__ import annotations

import pyarrow as pa
import pytest

import anyaccel
from anyaccel import AppliedLoss, EvalPhase, Experiment, Metric, ModelGraph, ModelNode, TrainPhase, compare
from anyaccel.errors import ResultError
from anyaccel.phases import Epoch
from anyaccel.results import EvalResults, TrainResults
from anyaccel.results.comparison import Comparison

LOSS = AppliedLoss("mse", on="guess")


def run_of(label, *figures, **more):
    """Results of epochs with these validations."""
    epochs = tuple(Epoch(i, 9.0 - i, {"n": 9.0 - i}, 1, 0.1, validation) for i, validation in enumerate(figures))
    return TrainResults(label=label, epochs=epochs, **more)


def test_compare_is_public():
    assert anyaccel.compare is compare and anyaccel.Comparison is Comparison


def test_runs_of_an_experiment_stand_side_by_side(experiment):
    phase = TrainPhase("t", data="all", losses=[LOSS], epochs=3, validation="last")
    first, second, seen = experiment.run(phase, phase, EvalPhase("e", data="last", metrics=[Metric("rmse", "guess")]))
    table = experiment.compare()
    assert len(table) == 3
    assert table.columns == (
        *("run", "phase", "kind", "epochs", "seconds", "loss", "best loss", "val_loss", "best val_loss"),
        "rmse",
    )
    assert table.column("run") == ["0", "1", "2"] and table.column("kind") == ["train", "train", "eval"]
    assert table.column("loss")[:2] == [first.loss[-1], second.loss[-1]] and table.column("loss")[2] is None
    assert table.column("best val_loss")[0] == first.figure("val_loss").min()
    assert table.column("seconds") == [first.seconds, second.seconds, seen.seconds]


def test_the_best_is_the_lowest_of_losses_and_errors_and_the_highest_of_accuracy():
    epochs = [
        {"loss": 3.0, "accuracy": 0.2, "n.r2": 0.1, "mae": 5.0, "own": 1.0},
        {"loss": 1.0, "accuracy": 0.9, "n.r2": 0.7, "mae": 2.0, "own": 2.0},
        {"loss": 2.0, "accuracy": 0.5, "n.r2": 0.4, "mae": 3.0, "own": 3.0},
    ]
    table = compare(run_of("t", *epochs))
    best = {
        name.removeprefix("best val_"): table.column(name)[0] for name in table.columns if name.startswith("best val")
    }
    assert best == {"loss": 1.0, "accuracy": 0.9, "n.r2": 0.7, "mae": 2.0}  # nobody knows which own figure is good
    assert table.column("val_accuracy") == [0.5] and table.column("val_own") == [3.0]


def test_losses_of_single_nodes_are_shown_where_they_are_named():
    run = run_of("t", {}, {})
    assert "loss.n" not in compare(run).columns
    assert compare(run, figures=["loss.n"]).columns == ("run", "phase", "kind", "epochs", "loss.n", "best loss.n")


def test_runs_of_several_experiments_have_names_of_ones_own():
    table = compare({"narrow": run_of("t", {}), "wide": run_of("t", {})}, [run_of("u", {}, number=4)], run_of("v", {}))
    assert table.column("run") == ["narrow", "wide", "4", ""]
    assert table.column("phase") == ["t", "t", "u", "v"]


def test_every_kind_of_results_is_taken_and_failures_are_told():
    failed = run_of("t", {}, error=RuntimeError("no"))
    seen = EvalResults(label="e", loss=2.0, losses={"n": 2.0}, metrics={"accuracy": 0.5})
    table = compare(failed, seen)
    assert table.column("kind") == ["train (RuntimeError)", "eval"]
    assert table.column("loss") == [9.0, 2.0] and table.column("accuracy") == [None, 0.5]


def test_a_comparison_is_text_and_html():
    table = compare({"<b>": run_of("t", {"accuracy": 0.25}), "plain": run_of("long label", {}, {})})
    assert repr(table).splitlines() == [
        "run    phase       kind   epochs  loss  best loss  val_accuracy",
        "<b>    t           train       1     9                     0.25",
        "plain  long label  train       2     8          8",
    ]
    html = table._repr_html_()
    assert "&lt;b&gt;" in html and "<b>" not in html and "0.25" in html


def test_a_comparison_is_a_table():
    table = compare(run_of("t", {"accuracy": 0.25}), EvalResults(label="e")).to_arrow()
    assert table.column_names == ["run", "phase", "kind", "epochs", "loss", "val_accuracy"]
    assert table.schema.field("loss").type == pa.float64() and table.column("loss").to_pylist() == [9.0, None]


def test_models_that_fit_returns_are_compared_by_their_results():
    x = [[1.0], [2.0], [3.0]]
    fitted = anyaccel.fit(anyaccel.SequentialMLP(1), (x, x), loss="mse", epochs=2, progress="none")
    assert compare({"a": fitted}) == compare({"a": fitted.results}) and compare(fitted).column("epochs") == [2]


def test_a_comparison_is_a_data_frame():
    pytest.importorskip("pandas")
    frame = compare(run_of("t", {}, {}), run_of("u", {})).to_pandas()
    assert frame["loss"].tolist() == [8.0, 9.0] and frame["phase"].tolist() == ["t", "u"]


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: compare(), r"^there is no run to compare\. Hint: run a phase first, or pass results\.$"),
        (lambda: compare([]), r"^there is no run to compare"),
        (lambda: compare("t"), r"^'t' is not the result of a phase\. Hint: pass the result of run_phase\(\.\.\.\)"),
        (lambda: compare({"a": 3}), r"^3 is not the result of a phase"),
        (
            lambda: compare(run_of("t", {"accuracy": 1.0}), figures=["val_acuracy"]),
            r"^no run has the figure 'val_acuracy'\. Available: loss, loss\.n, val_accuracy\. Hint: did you mean",
        ),
        (
            lambda: compare(run_of("t", {})).column("los"),
            r"^the comparison has no column 'los'\. Available: run, phase, kind, epochs, loss\. Hint: did you mean ",
        ),
    ],
)
def test_what_cannot_be_compared_is_told(ask, message):
    with pytest.raises(ResultError, match=message):
        ask()


def test_an_experiment_that_ran_nothing_has_nothing_to_compare(data):
    from anyaccel import SequentialMLP

    empty = Experiment("e", ModelGraph([ModelNode("n", SequentialMLP(), data.reference())]))
    with pytest.raises(ResultError, match="there is no run to compare"):
        empty.compare()


def test_one_figure_may_be_named_alone(experiment):
    result = experiment.run_phase(
        EvalPhase("e", data="all", metrics=[Metric("mse", on="guess"), Metric("mae", on="guess")])
    )
    assert compare(result, figures="mse").columns == compare(result, figures=["mse"]).columns
