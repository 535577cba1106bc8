"""Results in folders: what comes back is what was shown, without models, frameworks or pickles."""

from __future__ import annotations

import math
import subprocess
import sys
from datetime import date

import numpy as np
import pytest
from neighbours import Neighbours

from anyaccel import (
    AppliedLoss,
    EvalPhase,
    Experiment,
    FeatureSet,
    ModelGraph,
    ModelNode,
    SequentialMLP,
    TrainPhase,
    saved_folder,
)
from anyaccel.errors import ColumnError, ConfigError, OutOfMemoryError, ResultError, SplitError
from anyaccel.results import EvalResults, PhaseResults, TrainResults, compare

LOSS = AppliedLoss("mse", on="guess")


class OddError(Exception):
    """Of a class that only this test knows."""


def evaluated(data, **settings):
    graph = ModelGraph([ModelNode("guess", SequentialMLP((1,), n_layers=1), data.reference())], "sgd")
    return Experiment("e", graph, progress="none").run_phase(EvalPhase("v", data="all", losses=[LOSS], **settings))


def again(results, folder):
    results.save(folder)
    return PhaseResults.load(folder)


@pytest.fixture
def trained(experiment):
    validation = EvalPhase("val", data="last", metrics=["rmse"])
    phase = TrainPhase("t", data="all", losses=[LOSS], batch_size=4, epochs=3, validation=validation, validate_every=2)
    return experiment.run_phase(phase)


def test_a_training_comes_back_with_all_that_it_shows(trained, tmp_path):
    loaded = again(trained, tmp_path)
    assert type(loaded) is TrainResults and loaded == trained
    assert str(loaded.plan) == str(trained.plan) and loaded.to_dict() == trained.to_dict()
    assert loaded._repr_html_() == trained._repr_html_()
    assert str(loaded.to_arrow().to_pydict()) == str(trained.to_arrow().to_pydict())  # as text NaN is NaN
    assert compare(loaded).rows == compare(trained).rows


def test_an_evaluation_comes_back_with_predictions_targets_and_tags(experiment, tmp_path):
    results = experiment.run_phase(EvalPhase("v", data="last", losses=[LOSS], metrics=["rmse"]))
    loaded = again(results, tmp_path)
    assert type(loaded) is EvalResults
    assert loaded.to_arrow().equals(results.to_arrow()) and loaded._repr_html_() == results._repr_html_()
    assert (loaded.loss, loaded.losses, loaded.metrics) == (results.loss, results.losses, results.metrics)
    assert loaded.plan == results.plan and loaded.nodes == results.nodes and loaded.compared == results.compared
    with pytest.raises(ResultError, match=r"the run has no metric 'mae'"):
        loaded.metrics["mae"]
    with pytest.raises(ResultError, match=r"no predictions of 'gues', which is not a node.*did you mean 'guess'"):
        loaded.prediction("gues")


def test_loaded_results_can_be_saved_again(experiment, tmp_path):
    results = again(experiment.run_phase(EvalPhase("v", data="all")), tmp_path / "first")
    assert again(results, tmp_path / "second").to_arrow().equals(results.to_arrow())


@pytest.mark.parametrize(
    "array",
    [
        np.array([[0.5, np.nan, -np.inf]], "float16"),
        np.arange(4, dtype="uint64") + 2**63,
        np.array([True, False]),
        np.array(["a", "ä"]),
        np.array(["one", None], dtype=object),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.zeros((0, 3), "float32"),
    ],
    ids=lambda array: str(array.dtype),
)
def test_predictions_keep_every_bit_and_their_dtype(array, tmp_path):
    loaded = again(EvalResults(label="v", predictions={"net.a/b": array}), tmp_path).predictions["net.a/b"]
    assert loaded.dtype == array.dtype and loaded.shape == array.shape
    assert loaded.tolist() == array.tolist() or np.array_equal(loaded, array, equal_nan=True)


def test_numbers_that_json_lacks_come_back(tmp_path):
    losses = {"a": math.nan, "b": math.inf}
    loaded = again(EvalResults(label="v", loss=-math.inf, losses=losses, seconds=math.nan), tmp_path)
    assert loaded.loss == -math.inf and math.isnan(loaded.seconds)
    assert math.isnan(loaded.losses["a"]) and loaded.losses["b"] == math.inf


def test_predictions_that_no_folder_holds_are_refused(tmp_path):
    results = EvalResults(label="v", predictions={"net": np.zeros(2, "complex64")})
    with pytest.raises(ResultError, match=r"run 'v' cannot be saved: predictions/net: an array of complex64"):
        results.save(tmp_path)
    assert not list(tmp_path.iterdir())


# -- data --------------------------------------------------------------------------------------------------------------


def test_tags_of_any_type_come_back(tmp_path):
    columns = {"x": np.arange(3.0), "y": np.arange(3.0), "day": [date(2026, 1, 1), None, date(2026, 1, 3)]}
    results = evaluated(FeatureSet.from_dict("fs", columns, "x", "y", "day"))
    loaded = again(results, tmp_path)
    assert loaded.to_arrow().schema == results.to_arrow().schema and loaded.to_arrow().equals(results.to_arrow())


def test_streams_of_a_sampler_come_back(tmp_path):
    columns = {"x": np.arange(12.0).reshape(6, 2), "y": np.arange(6.0), "kind": [0, 0, 0, 1, 1, 1]}
    data = FeatureSet.from_dict("fs", columns, "x", "y", "kind")
    nodes = [
        ModelNode("guess", SequentialMLP((1,), n_layers=1), data.reference()),
        ModelNode("other", SequentialMLP((1,), n_layers=1), data.reference(stream="pair")),
    ]
    phase = EvalPhase("v", data="all", sampler=Neighbours(4, "kind"))
    results = Experiment("e", ModelGraph(nodes), progress="none").run_phase(phase)
    loaded = again(results, tmp_path)
    assert "y@pair" in loaded.to_arrow().column_names and loaded.to_arrow().equals(results.to_arrow())


def test_features_are_left_out_and_said_to_be(experiment, tmp_path):
    rows = again(experiment.run_phase(EvalPhase("v", data="last")), tmp_path).rows["fs"]
    assert len(rows) == 2 and rows.columns == ("y", "name", "row")
    np.testing.assert_array_equal(rows.array("y"), [5, 4])
    with pytest.raises(
        ColumnError, match=r"no column 'x'\. Available: y, name, row\. Hint: results do not store features"
    ):
        rows.array("x")
    for choose in (rows.view, rows.select, lambda: rows.take([0])):
        with pytest.raises(SplitError, match=r"rows of loaded results of 'fs' cannot be selected.*to_arrow"):
            choose()


def test_classes_are_counted_over_the_whole_data(tmp_path):
    pytest.importorskip("matplotlib").use("agg")
    data = FeatureSet.from_dict("fs", {"x": np.zeros((4, 2)), "kind": [0, 1, 1, 2]}, "x", "kind")
    data.add_split("two", [0, 1])
    graph = ModelGraph([ModelNode("net", SequentialMLP((2,), n_layers=1), data.reference())])
    results = Experiment("e", graph, progress="none").run_phase(EvalPhase("v", data="two"))
    loaded = again(results, tmp_path)
    assert type(loaded.plot()) is type(results.plot())
    assert loaded.plot().get_xlabel() == results.plot().get_xlabel()  # points, as there are more classes than outputs


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        OutOfMemoryError("gpu:0 is full", available="1 GiB", hint="take smaller batches"),
        KeyboardInterrupt(),
        KeyError("x"),
        SystemExit(143),
        FileNotFoundError(2, "No such file"),
        ZeroDivisionError("division by zero"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_comes_back_with_its_class(error, tmp_path):
    error.add_note("while something else ended")
    results = TrainResults(label="t", epochs=(), error=error)
    loaded = again(results, tmp_path)
    assert type(loaded.error) is type(error) and str(loaded.error) == str(error) and loaded.error.args == error.args
    assert loaded.error.__notes__ == error.__notes__
    assert repr(loaded) == repr(results) and loaded.to_dict() == results.to_dict()


@pytest.mark.parametrize("error", [OddError("odd"), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid")])
def test_another_error_comes_back_by_its_name(error, tmp_path):
    results = EvalResults(label="v", error=error)
    loaded = again(results, tmp_path)
    assert isinstance(loaded.error, Exception) and str(loaded.error) == str(error)
    assert repr(loaded) == repr(results) and loaded.to_dict() == results.to_dict()
    assert compare(loaded).column("kind") == [f"eval ({type(error).__name__})"]


# -- folders -----------------------------------------------------------------------------------------------------------


def test_results_of_another_kind_are_refused_with_the_way(trained, tmp_path):
    trained.save(tmp_path)
    with pytest.raises(ConfigError, match=r"these are TrainResults, not EvalResults\. Hint: write TrainResults\.load"):
        EvalResults.load(tmp_path)
    assert TrainResults.load(tmp_path) == trained


def test_a_graph_is_not_overwritten(experiment, trained, tmp_path):
    experiment.graph.save(tmp_path / "graph")
    with pytest.raises(ConfigError, match=r"holds no results, and would be overwritten\. Available: graph\. Hint"):
        trained.save(tmp_path / "graph")
    with pytest.raises(ConfigError, match=r"holds no results\. Available: graph"):
        TrainResults.load(tmp_path / "graph")
    trained.save(tmp_path / "new")
    trained.save(tmp_path / "new")


def changed(folder, change):
    manifest, arrays = saved_folder.read(folder, "results")
    change(manifest["results"])
    saved_folder.write(folder, {"results": manifest["results"]}, arrays)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda it: it.update(kind="other"), r"are not saved results\. Available: eval, (fit, )?train\. Hint: pass"),
        (lambda it: it.pop("kind"), r"are not saved results"),
        (lambda it: it.pop("fields"), r"the saved results are malformed: KeyError: 'fields'"),
        (lambda it: it["fields"].update(new=1), r"the saved results are malformed: ArgumentError: .*'new'"),
        (lambda it: it["fields"].update(plan=[]), r"\[\] is not a plan as plain data"),
        (lambda it: it["fields"].update(error="odd"), r"'odd' is not a saved error"),
        (lambda it: it["fields"].update(rows={"fs": {}}), r"\{\} are not saved rows"),
        (lambda it: it["fields"]["rows"]["fs"].update(table="none"), r"saved rows are malformed: KeyError: 'none'"),
        (lambda it: it["fields"].update(events=[{"kind": "odd"}]), r"the saved results are malformed: ArgumentError"),
        (lambda it: it["fields"].update(started="then"), r"the saved results are malformed: ValueError"),
        (lambda it: it["fields"].update(seconds={"$": "odd"}), r"is not a saved value"),
    ],
)
def test_a_malformed_folder_is_told(change, message, experiment, tmp_path):
    experiment.run_phase(EvalPhase("v", data="all")).save(tmp_path)
    changed(tmp_path, change)
    with pytest.raises(ConfigError, match=message):
        EvalResults.load(tmp_path)


def test_loading_imports_no_framework(experiment, tmp_path):
    experiment.run_phase(EvalPhase("v", data="all")).save(tmp_path)
    code = f"""
import sys
import anyaccel
results = anyaccel.EvalResults.load({str(tmp_path)!r})
assert results.to_arrow().num_rows == 6
print(sorted({{"torch", "tensorflow", "jax", "keras", "sklearn"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
