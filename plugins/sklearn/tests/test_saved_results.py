"""Saved results bring predictions back to original units."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from anyaccel import (
    AppliedLoss,
    EvalPhase,
    Experiment,
    FeatureSet,
    ModelGraph,
    ModelNode,
    SequentialMLP,
)
from anyaccel.errors import TransformError
from anyaccel.results import EvalResults, PhaseResults

LOSS = AppliedLoss("mse", on="guess")


@pytest.fixture
def data():
    """Six rows: features x [2], target y, tags of text and of integers; the split "last" has the last two, turned."""
    columns = {
        "x": np.arange(12, dtype="float32").reshape(6, 2) / 10,
        "y": np.arange(6, dtype="float32"),
        "name": ["a", "b", "c", "d", "e", None],
        "row": np.arange(6),
    }
    fs = FeatureSet.from_dict("fs", columns, "x", "y", ["name", "row"])
    fs.add_split("last", [5, 4])
    return fs


class Doubled:
    """A transform whose class no file may name."""

    def fit(self, x):
        self.by = 2.0
        return self

    def transform(self, x):
        return x * self.by

    def inverse_transform(self, x):
        return x / self.by


def evaluated(data, **settings):
    graph = ModelGraph([ModelNode("guess", SequentialMLP((1,), n_layers=1), data.reference())], "sgd")
    return Experiment("e", graph, progress="none").run_phase(EvalPhase("v", data="all", losses=[LOSS], **settings))


def again(results, folder):
    results.save(folder)
    return PhaseResults.load(folder)


def scaled(data, make=None):
    transform = pytest.importorskip("sklearn.preprocessing").StandardScaler() if make is None else make()
    return data.fit_transform(transform, "y", fit_on="all")


def test_predictions_are_brought_back_to_original_units(data, tmp_path):
    results = evaluated(scaled(data))
    loaded = again(results, tmp_path)
    np.testing.assert_array_equal(loaded.prediction("guess", undo=True), results.prediction("guess", undo=True))
    assert loaded.to_arrow(undo=True).equals(results.to_arrow(undo=True))
    assert not np.array_equal(loaded.prediction("guess"), loaded.prediction("guess", undo=True))


def test_a_transform_that_makes_another_column_is_undone(tmp_path):
    decomposition = pytest.importorskip("sklearn.decomposition")
    x = np.random.default_rng(0).normal(size=(20, 2))
    data = FeatureSet.from_dict("fs", {"x": x, "a": x[:, 0] + 1, "b": x[:, 1]}, "x", ["a", "b"])
    data = data.fit_transform(decomposition.PCA(2), ["a", "b"], fit_on="all", into="ab").select("x", "ab")
    graph = ModelGraph([ModelNode("guess", SequentialMLP((2,), n_layers=1), data.reference())])
    results = Experiment("e", graph, progress="none").run_phase(EvalPhase("v", data="all", metrics=["rmse"]))
    assert again(results, tmp_path).to_arrow(undo=True).equals(results.to_arrow(undo=True))


def test_without_the_library_of_a_transform_all_else_is_there(data, tmp_path, monkeypatch):
    results = evaluated(scaled(data))
    results.save(tmp_path)
    monkeypatch.setitem(sys.modules, "sklearn.preprocessing", None)
    loaded = EvalResults.load(tmp_path)
    np.testing.assert_array_equal(loaded.prediction("guess"), results.prediction("guess"))
    with pytest.raises(TransformError, match=r"scikit-learn is not installed.*python -m pip install scikit-learn"):
        loaded.prediction("guess", undo=True)


def test_a_transform_of_ones_own_is_named_with_allow(data, tmp_path):
    results = evaluated(scaled(data, Doubled))
    loaded = again(results, tmp_path / "a")
    problem = r"transforms of 'fs' cannot be undone in loaded results; the transform '.*:Doubled' cannot be read"
    with pytest.raises(TransformError, match=problem + r".*Hint: name the class if you trust it: load\(folder, allow="):
        loaded.prediction("guess", undo=True)
    with pytest.raises(TransformError, match=problem):  # not lost in silence
        loaded.save(tmp_path / "b")
    known = EvalResults.load(tmp_path / "a", allow=[Doubled])
    np.testing.assert_array_equal(known.prediction("guess", undo=True), results.prediction("guess", undo=True))


def test_what_is_not_compared_with_anything_is_not_undone_in_silence(data, tmp_path):
    scaler = pytest.importorskip("sklearn.preprocessing").StandardScaler()
    whole = data.fit_transform(scaler, "x", fit_on="all").select("x", (), "row")
    graph = ModelGraph([ModelNode("guess", SequentialMLP((1,), n_layers=1), whole.reference())])
    results = Experiment("e", graph, progress="none").run_phase(EvalPhase("v", data="all"))
    for each in (results, again(results, tmp_path)):
        with pytest.raises(TransformError, match="no loss, metric or target shows which columns"):
            each.prediction("guess", undo=True)
