"""Hints of transforms, and of what was saved with them."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyaccel as aa

X = np.random.default_rng(0).standard_normal((24, 3)).astype("float32")
KINDS = np.tile(["a", "b", "c"], 8)


class MyTransform:
    """In the style of scikit-learn."""

    def fit(self, x: Any) -> MyTransform:
        self.largest = float(np.abs(x).max())
        return self

    def transform(self, x: Any) -> Any:
        return x / self.largest

    def inverse_transform(self, y: Any) -> Any:
        return y * self.largest


class Function:
    """A transform by a function, as FunctionTransformer of scikit-learn, which no file can store."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def fit(self, x: Any) -> Function:
        return self

    def transform(self, x: Any) -> Any:
        return self.function(x)


class Codes(Function):
    """Numbers of texts, or of anything else."""

    def __init__(self) -> None:
        super().__init__(lambda x: np.array([[ord(str(value)[0])] for value in x[:, 0]]))


def features() -> aa.FeatureSet:
    columns = {"x": X, "y": X[:, :1], "kind": KINDS, "n": np.arange(24)}
    data = aa.FeatureSet.from_dict("data", columns, ["x"], ["y"], ["kind", "n"])
    data.add_splits({"train": range(16), "val": range(16, 24)})
    return data


DATA = features()


def evaluated(data: aa.FeatureSet) -> tuple[aa.ModelGraph, Any]:
    graph = aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP(1), data.reference())], "sgd")
    return graph, graph.run(aa.EvalPhase("eval", data=data, metrics=["mse"]), progress="none")


def predictions(graph: aa.ModelGraph, data: aa.FeatureSet) -> Any:
    return graph.run(aa.EvalPhase("eval", data=data), progress="none").prediction("net")


def test_rows_that_a_transform_is_fitted_to(hint: Any) -> None:
    with hint("write fit_on={}; 'all' would include the rows that you evaluate on"):
        DATA.fit_transform(MyTransform(), "x")
    fitted = [DATA.fit_transform(MyTransform(), "x", fit_on=rows).transforms[0] for rows in ("train", "all")]
    assert [each.transform.largest for each in fitted] == [np.abs(X[:16]).max(), np.abs(X).max()]


def test_names_and_roles_of_results(hint: Any) -> None:
    def fit(transform: Any, columns: Any, **settings: Any) -> aa.FeatureSet:
        return DATA.fit_transform(transform, columns, fit_on="train", **settings)

    with hint("choose another name, or leave into= out to replace the column"):
        fit(MyTransform(), "x", into="y")
    assert fit(MyTransform(), "x", into="small").array("small").shape == (24, 3)
    assert fit(MyTransform(), "x").columns == DATA.columns
    with hint("write role='feature'"):
        fit(MyTransform(), ["x", "y"], into="both")
    assert fit(MyTransform(), ["x", "y"], into="both", role="feature").array("both").shape == (24, 4)
    with hint("write role='feature', or role='tag' to keep it a tag"):
        fit(Codes(), "kind")
    for role in ("feature", "tag"):
        assert fit(Codes(), "kind", role=role).role("kind") == role
    words = Function(lambda x: np.array([[f"r{int(value)}"] for value in x[:, 0]]))
    with hint("use role='tag'"):
        fit(words, "n", role="feature")
    assert fit(words, "n", role="tag").column("n").to_pylist()[:2] == ["r0", "r1"]
    first = Function(lambda x: x[:, :2])
    with hint("name the one new column with into='NAME', or transform the columns one by one"):
        fit(first, ["x", "y"], role="feature")
    assert fit(first, ["x", "y"], into="two", role="feature").array("two").shape == (24, 2)
    assert fit(first, "x").array("x").shape == (24, 2)


def test_transforms_of_others(hint: Any) -> None:
    scaled = DATA.fit_transform(MyTransform(), "x", fit_on="train")
    with hint("pass the feature set that fit_transform returned; the original one is unchanged"):
        features().transform_like(DATA)
    np.testing.assert_array_equal(features().transform_like(scaled).array("x"), scaled.array("x"))
    assert np.array_equal(DATA.array("x"), X)
    with hint("undo each transform only once; use inverse() or prediction(..., undo=True) for predictions"):
        scaled.undo_transform().undo_transform()
    assert np.array_equal(scaled.undo_transform().array("x"), X)
    np.testing.assert_allclose(scaled.inverse(scaled.array("x"), "x"), X, rtol=1e-6)
    _, results = evaluated(DATA.fit_transform(MyTransform(), "y", fit_on="train"))
    largest = np.abs(X[:16, 0]).max()
    np.testing.assert_allclose(results.prediction("net", undo=True), largest * results.prediction("net"), rtol=1e-6)


def test_what_is_no_transform(hint: Any) -> None:
    with hint("create an object: {}()"):
        DATA.fit_transform(MyTransform, "x", fit_on="train")
    assert DATA.fit_transform(MyTransform(), "x", fit_on="train").transforms
    with hint("pass a transform that copy.deepcopy can copy"):
        DATA.fit_transform(Function(threading.Lock()), "x", fit_on="train")
    assert DATA.fit_transform(Function(np.abs), "x", fit_on="train").array("x").min() >= 0
    with hint("leave rows out beforehand: FeatureSet.from_arrow('LABEL', data.filter({...}))"):
        DATA.fit_transform(Function(lambda x: x[x[:, 0] > 0]), "x", fit_on="train")
    kept = aa.FeatureSet.from_arrow("LABEL", DATA.filter({"x": lambda x: x[:, 0] > 0}))
    assert len(kept.fit_transform(Function(lambda x: x[x[:, 0] > 0]), "x", fit_on="all")) == (X[:, 0] > 0).sum()


def test_transforms_of_scikit_learn(hint: Any) -> None:
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    StandardScaler, OneHotEncoder = preprocessing.StandardScaler, preprocessing.OneHotEncoder
    with hint("pass an object in the style of scikit-learn, such as StandardScaler()"):
        DATA.fit_transform(np.abs, "x", fit_on="train")
    scaled = DATA.fit_transform(StandardScaler(), "x", fit_on="train")
    np.testing.assert_allclose(scaled["train"].array("x").mean(0), 0, atol=1e-6)
    transformed = DATA.fit_transform(preprocessing.FunctionTransformer(np.negative), "y", fit_on="train")
    with hint("for predictions, choose a transform with one (a FunctionTransformer needs inverse_func=)"):
        transformed.inverse(np.ones((3, 1)), "y")
    with_inverse = preprocessing.FunctionTransformer(np.negative, inverse_func=np.negative)
    assert DATA.fit_transform(with_inverse, "y", fit_on="train").inverse(np.ones((3, 1)), "y").sum() == -3
    first = DATA.filter({"kind": ["a", "b"]})
    with hint(
        "set handle_unknown= of the encoder ('ignore', or 'use_encoded_value' with unknown_value=), or fit it on rows "
        "that have all categories"
    ):
        DATA.fit_transform(OneHotEncoder(), "kind", fit_on=first, role="feature")
    for encoder in (
        OneHotEncoder(handle_unknown="ignore"),
        preprocessing.OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1),
    ):
        encoded = DATA.fit_transform(encoder, "kind", fit_on=first, role="feature").array("kind")
        assert encoded[2].max() <= 0  # the third row is of another kind
    assert DATA.fit_transform(OneHotEncoder(), "kind", fit_on="all", role="feature").array("kind").shape == (24, 3)


def test_missing_labels_of_classes(hint: Any) -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"a": X[:, 0], "b": X[:, 1], "kind": [None, *KINDS[1:]]})
    settings: Any = {"target": "kind", "loss": "cross_entropy", "epochs": 1, "progress": "none"}
    with hint("leave such rows out (pandas: table.dropna())"):
        aa.fit(aa.SequentialMLP(3), table, **settings)
    fitted = aa.fit(aa.SequentialMLP(3), table.dropna(), **settings)
    assert set(fitted.predict(table[["a", "b"]])) <= set("abc")


def test_graphs_saved_with_a_transform_of_your_own(hint: Any, tmp_path: Path) -> None:
    data = DATA.fit_transform(MyTransform(), "x", fit_on="train")
    graph, results = evaluated(data)
    graph.save(tmp_path)
    with hint("if you trust it, import it and pass allow=[{}]; or pass data with this transform: feature_sets=[data]"):
        aa.ModelGraph.load(tmp_path)
    for loaded in (
        aa.ModelGraph.load(tmp_path, allow=[MyTransform]),
        aa.ModelGraph.load(tmp_path, feature_sets=[data]),
    ):
        np.testing.assert_allclose(predictions(loaded, data), results.prediction("net"), rtol=1e-6)


def test_graphs_saved_with_a_transform_that_no_file_can_hold(hint: Any, tmp_path: Path) -> None:
    data = DATA.fit_transform(Function(lambda x: np.abs(x)), "x", fit_on="train")
    graph, results = evaluated(data)
    graph.save(tmp_path / "graph")
    with hint("pass data with these transforms: feature_sets=[data]"):
        aa.ModelGraph.load(tmp_path / "graph")
    loaded = aa.ModelGraph.load(tmp_path / "graph", feature_sets=[data])
    np.testing.assert_allclose(predictions(loaded, data), results.prediction("net"), rtol=1e-6)
    fitted = aa.fit(aa.SequentialMLP(1), data.view(), loss="mse", epochs=1, progress="none")
    fitted.save(tmp_path / "fitted")
    with hint("pass data with these transforms: feature_sets=[data]"):
        aa.load(tmp_path / "fitted")
    again = aa.load(tmp_path / "fitted", feature_sets=[data])
    np.testing.assert_allclose(again.predict({"x": X}), fitted.predict({"x": X}), rtol=1e-6)


def test_graphs_saved_with_scikit_learn(hint: Any, tmp_path: Path, monkeypatch: Any) -> None:
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    data = DATA.fit_transform(preprocessing.StandardScaler(), "x", fit_on="train")
    graph, results = evaluated(data)
    graph.save(tmp_path)
    with monkeypatch.context() as without, hint("python -m pip install scikit-learn"):
        without.setitem(sys.modules, "sklearn.preprocessing", None)
        aa.ModelGraph.load(tmp_path)
    loaded = aa.ModelGraph.load(tmp_path)  # as it is installed again
    new = features().transform_like(loaded.feature_sets["data"])
    np.testing.assert_allclose(predictions(loaded, new), results.prediction("net"), rtol=1e-5)
    with (
        monkeypatch.context() as another,
        hint("install {}, or pass data with these transforms: feature_sets=[data]"),
    ):
        another.setattr(preprocessing.StandardScaler, "transform", lambda self, x: x)
        aa.ModelGraph.load(tmp_path)
    assert aa.ModelGraph.load(tmp_path).feature_sets["data"].transforms
    with monkeypatch.context() as another:
        another.setattr(preprocessing.StandardScaler, "transform", lambda self, x: x)
        loaded = aa.ModelGraph.load(tmp_path, feature_sets=[data])
    np.testing.assert_allclose(predictions(loaded, data), results.prediction("net"), rtol=1e-6)


def test_rows_of_loaded_results(hint: Any, tmp_path: Path) -> None:
    load = aa.EvalResults.load
    data = DATA.fit_transform(MyTransform(), "y", fit_on="train")
    _, results = evaluated(data)
    results.save(folder := tmp_path / "results")
    loaded = load(folder)
    with hint("use the FeatureSet, or to_arrow()"):
        loaded.rows["data"].take([0, 1])
    assert data.take([0, 1]).array("y").shape == (2, 1)
    assert loaded.rows["data"].to_arrow().num_rows == 24
    with hint("name the class if you trust it: load(folder, allow=[MyTransform]); or {}"):
        loaded.prediction("net", undo=True)
    expected = results.prediction("net", undo=True)
    np.testing.assert_allclose(load(folder, allow=[MyTransform]).prediction("net", undo=True), expected)
    np.testing.assert_allclose(data.inverse(loaded.prediction("net"), "y"), expected)


def test_loaded_results_with_a_transform_that_no_file_can_hold(hint: Any, tmp_path: Path) -> None:
    class Logarithm(Function):
        def inverse_transform(self, y: Any) -> Any:
            return np.log(y)

    data = DATA.fit_transform(Logarithm(np.exp), columns := "y", fit_on="train")
    _, results = evaluated(data)
    results.save(tmp_path)
    loaded = aa.EvalResults.load(tmp_path)
    with hint("undo them with the data: data.inverse(values, columns)"):
        loaded.prediction("net", undo=True)
    values = np.abs(loaded.prediction("net"))
    np.testing.assert_allclose(data.inverse(values, columns), np.log(values), rtol=1e-6)
