"""Results of a FitPhase: what they tell, show, compare and save."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from anyaccel import (
    EvalPhase,
    Experiment,
    FeatureSet,
    FitPhase,
    ModelGraph,
    ModelNode,
)
from anyaccel.results import EvalResults, PhaseResults, compare
from anyaccel.results.events import Event
from anyaccel_sklearn import FitResults


class Mean:
    """An estimator that predicts the mean of its targets."""

    def fit(self, x, y):
        self.mean_ = y.mean()
        return self

    def predict(self, x):
        return np.full(len(x), self.mean_)


@pytest.fixture
def data():
    """Six rows: features x [2] and target y; the split "last" has the last two, turned."""
    columns = {"x": np.arange(12, dtype="float32").reshape(6, 2) / 10, "y": np.arange(6, dtype="float32")}
    fs = FeatureSet.from_dict("fs", columns, "x", "y")
    fs.add_split("last", [5, 4])
    return fs


def test_fitting_gives_a_result_too(data):
    class Mean:
        def fit(self, x, y):
            self.mean_ = y.mean(dtype="float32")

        def predict(self, x):
            return np.full(len(x), self.mean_, "float32")

    experiment = Experiment("e", ModelGraph([ModelNode("m", Mean(), data.reference())]))
    fitted, seen = experiment.run(FitPhase("f", data="all"), EvalPhase("p", data="last"))
    assert fitted.error is None and fitted.predictions == {}
    assert seen.prediction("m").tolist() == [2.5, 2.5]
    assert experiment.graph.frozen == ("m",)


def test_phases_after_a_fit_are_checked_when_it_has_ended(data):
    nodes = [ModelNode("guess", Mean(), data.reference())]
    fitted = Experiment("e", ModelGraph(nodes), progress="none")
    assert len(fitted.run(FitPhase("f", data="all"), EvalPhase("e", data="last", metrics=["mse"]))) == 2


def test_a_fit_tells_which_nodes_to_how_many_rows(data):
    class Mean:
        def fit(self, x, y):
            self.mean_ = y.mean(dtype="float32")

        def predict(self, x):
            return np.full(len(x), self.mean_, "float32")

    graph = ModelGraph([ModelNode("m", Mean(), data.reference()), ModelNode("k", Mean(), data.reference())])
    result = Experiment("e", graph).run_phase(FitPhase("f", data="last"))
    assert type(result) is FitResults and repr(result) == "FitResults('f', fitted m, k)"
    assert [(one.node, one.estimator, one.rows) for one in result.fitted] == [("m", "Mean", 2), ("k", "Mean", 2)]
    assert result.nodes == ("m", "k") and all(one.seconds >= 0 for one in result.fitted)
    table = result.to_arrow()
    assert table.column_names == ["node", "estimator", "rows", "seconds"] and table.num_rows == 2
    told = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert told["fitted"][0]["node"] == "m" and told["number"] == 0 and told["error"] is None
    assert math.isnan(result.loss) and not result.losses and not result.metrics and not result.predictions


def test_a_fit_is_a_data_frame():
    pytest.importorskip("pandas")
    frame = FitResults(label="f", fitted=()).to_pandas()
    assert list(frame) == ["node", "estimator", "rows", "seconds"] and len(frame) == 0


def test_a_fit_comes_back(data, tmp_path):
    class Mean:
        def fit(self, x, y):
            self.mean = y.mean()

        def predict(self, x):
            return np.full(len(x), self.mean)

    graph = ModelGraph([ModelNode("mean", Mean(), data.reference())])
    results = Experiment("e", graph, progress="none").run_phase(FitPhase("f", data="all"))
    results.save(tmp_path)
    loaded = PhaseResults.load(tmp_path)
    assert type(loaded) is FitResults and loaded == results


def test_fits_are_compared_in_an_experiment(data):
    class Mean:
        def fit(self, x, y):
            self.mean_ = y.mean(dtype="float32")

        def predict(self, x):
            return np.full(len(x), self.mean_, "float32")

    ours = Experiment("e", ModelGraph([ModelNode("m", Mean(), data.reference())]))
    ours.run(FitPhase("f", data="all"), EvalPhase("e", data="all", metrics=["mse", "r2"]))
    assert ours.compare("mse").column("mse")[1] == ours.last_run.metrics["mse"]
    assert ours.compare("mse").columns == ("run", "phase", "kind", "seconds", "mse")


def test_a_fit_shows_the_nodes_that_were_fitted(data):
    class Mean:
        def fit(self, x, y):
            self.mean_ = y.mean()

        def predict(self, x):
            return np.full(len(x), self.mean_)

    ours = Experiment("e", ModelGraph([ModelNode("mean", Mean(), data.reference())]), progress="none")
    ours.run_phase(FitPhase("fit", data="all"))
    shown = ours.last_run._repr_html_()
    for told in ("FitResults", "mean", "Mean", ">6<"):
        assert told in shown


def test_events_are_part_of_what_is_told():
    results = FitResults(label="f", fitted=(), events=(Event(0, 3, "memory", "split"), Event(0, 3, "memory", "<b>")))
    assert repr(results) == "FitResults('f', fitted nothing, out of memory 2 times)"
    assert results.to_dict()["events"] == [event.to_dict() for event in results.events]
    assert "memory: &lt;b&gt; (epoch 1, step 4)" in results._repr_html_()


def test_a_fit_beside_other_runs_in_a_comparison():
    table = compare(FitResults(label="f", fitted=()), EvalResults(label="e", loss=2.0, losses={"n": 2.0}))
    assert table.column("kind") == ["fit", "eval"] and table.column("loss") == [None, 2.0]
