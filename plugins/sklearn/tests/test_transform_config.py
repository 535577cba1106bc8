"""Fitted transforms to plain data and arrays, and back: the same numbers, and only classes that are known."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from anyaccel import FeatureSet, ModelGraph, ModelNode, SequentialMLP
from anyaccel.errors import ConfigError, TransformError
from anyaccel_sklearn.transforms.class_encoder import ClassEncoder
from anyaccel_sklearn.transforms.fitted_transform import read_transform
from anyaccel_sklearn.transforms.plain_state import TransformReader

preprocessing = pytest.importorskip("sklearn.preprocessing")
decomposition = pytest.importorskip("sklearn.decomposition")
impute = pytest.importorskip("sklearn.impute")
pipeline = pytest.importorskip("sklearn.pipeline")

X = np.random.default_rng(0).normal(size=(60, 4))
NUMERIC = [
    preprocessing.StandardScaler(),
    preprocessing.MinMaxScaler(),
    preprocessing.RobustScaler(),
    preprocessing.MaxAbsScaler(),
    preprocessing.Normalizer(),
    preprocessing.Binarizer(),
    preprocessing.PowerTransformer(),
    preprocessing.QuantileTransformer(n_quantiles=20),
    preprocessing.KBinsDiscretizer(3, encode="ordinal", strategy="uniform"),
    preprocessing.PolynomialFeatures(),
    decomposition.PCA(2),
    decomposition.TruncatedSVD(2),
    decomposition.FastICA(2, random_state=0),
    impute.SimpleImputer(),
    preprocessing.FunctionTransformer(np.arctan, np.tan),
    pipeline.make_pipeline(preprocessing.StandardScaler(), decomposition.PCA(2)),
]


class Own:
    """A transform of the test's own."""

    def __init__(self, setting=None):
        self.setting = setting

    def fit(self, x):
        self.shift = x.mean(axis=0)
        return self

    def transform(self, x):
        return x - self.shift


def data(**columns):
    arrays = {"x": X, "y": X[:, :1], "kind": np.array(["a", "b", "c"] * 20), **columns}
    return FeatureSet.from_dict("data", arrays, ["x"], ["y"], ["kind"])


def written(transform, column="x", **settings):
    fitted = data().fit_transform(transform, column, fit_on="all", **settings).transforms[-1]
    arrays = {}
    config = fitted.get_config(arrays, "p")
    return fitted, json.loads(json.dumps(config, allow_nan=False)), arrays


def dense(output):
    return output.toarray() if hasattr(output, "toarray") else np.asarray(output)


@pytest.mark.parametrize("transform", NUMERIC, ids=lambda transform: type(transform).__name__)
def test_a_transform_that_is_read_gives_the_same_bits(transform):
    fitted, config, arrays = written(transform)
    again = read_transform(config, TransformReader(arrays))
    np.testing.assert_array_equal(dense(again.transform.transform(X)), dense(fitted.transform.transform(X)))
    assert again.is_like(fitted) and type(again.transform) is type(transform)
    assert (again.columns, again.results, again.shapes, again.result_shapes, again.fit_on, again.role) == (
        *(fitted.columns, fitted.results, fitted.shapes, fitted.result_shapes),
        *(fitted.fit_on, fitted.role),
    )
    assert all(array.dtype.kind in "biuf" for array in arrays.values())


@pytest.mark.parametrize(
    "encoder",
    [preprocessing.OneHotEncoder(), preprocessing.OneHotEncoder(sparse_output=False), preprocessing.OrdinalEncoder()],
)
def test_an_encoder_of_text_is_read_with_its_categories(encoder):
    fitted, config, arrays = written(encoder, "kind", role="feature")
    again = read_transform(config, TransformReader(arrays))
    rows = np.array([["c"], ["a"]], dtype=object)
    np.testing.assert_array_equal(dense(again.transform.transform(rows)), dense(fitted.transform.transform(rows)))
    assert again.is_like(fitted)


def test_the_encoder_of_classes_goes_there_and_back():
    fitted, config, arrays = written(ClassEncoder(), "kind", role="target")
    again = read_transform(config, TransformReader(arrays)).transform
    assert again.transform(np.array([["c"], ["a"]], dtype=object)).tolist() == [[2], [0]]
    assert again.inverse_transform(np.array([[0], [2]])).tolist() == [["a"], ["c"]]
    assert fitted.transform.classes_.tolist() == ["a", "b", "c"]


def test_the_encoder_of_classes_refuses_what_it_does_not_know():
    encoder = ClassEncoder().fit(np.array([["a"], ["b"]], dtype=object))
    with pytest.raises(TransformError, match=r"the class 'z' was not among the fitted classes\. Available: 'a', 'b'"):
        encoder.transform(np.array([["z"]], dtype=object))
    with pytest.raises(TransformError, match=r"the class label of row 1 is missing. Hint: leave such rows out"):
        ClassEncoder().fit(np.array([["a"], [None]], dtype=object))
    with pytest.raises(TransformError, match="class labels have several types: int, str"):
        ClassEncoder().fit(np.array([["a"], [1]], dtype=object))


@pytest.mark.parametrize("transform", [Own(lambda: 0), preprocessing.FunctionTransformer(lambda x: -x)])
def test_what_is_not_known_or_not_plain_is_written_without_state_and_not_read(transform):
    _, config, arrays = written(transform)
    assert config["state"] is None and not [name for name in arrays if "fillers" not in name]
    with pytest.raises(
        ConfigError, match=r"were transformed by \S+ on x, which cannot be stored.*feature_sets=\[data\]"
    ):
        read_transform(config, TransformReader(arrays))


@pytest.mark.parametrize("function", [{"$": "ufunc", "name": "load"}, {"$": "score", "name": "__builtins__"}])
def test_no_other_functions_are_read(function):
    _, config, arrays = written(preprocessing.FunctionTransformer(np.arctan))
    assert config["state"]["func"] == {"$": "ufunc", "name": "arctan"}
    config["state"]["func"] = function
    with pytest.raises(ConfigError, match=f"'{function['name']}' is not a "):
        read_transform(config, TransformReader(arrays))


def test_configurations_differ_where_numbers_do():
    scaled = [
        data().fit_transform(preprocessing.StandardScaler(with_mean=flag), "x", fit_on="all") for flag in (True, False)
    ]
    config = ModelGraph([ModelNode("net", SequentialMLP(1), scaled[0].reference())]).get_config()
    assert ModelGraph.from_config(config, feature_sets=scaled[:1])
    with pytest.raises(ConfigError, match="other transforms than the given 'data'"):
        ModelGraph.from_config(config, feature_sets=scaled[1:])


def test_a_class_of_ones_own_may_be_allowed():
    _, config, arrays = written(preprocessing.StandardScaler())
    config["class"] = f"{Own.__module__}:Own"
    with pytest.raises(ConfigError, match=r"Own' cannot be read; nothing was imported.*allow=\[Own\]"):
        read_transform(config, TransformReader(arrays))
    config |= {"state": {"shift": {"$": "array", "name": "p/mean_", "transposed": False}}, "probe": None}
    again = read_transform(config, TransformReader(arrays, [Own]))
    np.testing.assert_array_equal(again.transform.shift, X.mean(axis=0))


def test_a_name_of_code_is_not_run_and_not_imported():
    _, config, arrays = written(preprocessing.StandardScaler())
    for name in ("antigravity:fly", "os:system", "system", ["a"], None):
        with pytest.raises(ConfigError, match="nothing was imported"):
            read_transform({**config, "class": name}, TransformReader(arrays))
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize(
    "state",
    [
        {"mean_": {"$": "code", "value": "1"}},
        {"mean_": {"value": 1}},
        {"mean_": {"$": "array", "name": "missing", "transposed": False}},
        {"mean_": {"$": "dtype", "name": "no such"}},
        {"mean_": {"$": "array", "items": [1, 2], "shape": [3], "dtype": "|O"}},
        {"mean_": {"$": "transform", "class": "os:system", "state": {}}},
        ["mean_"],
    ],
)
def test_a_malformed_state_is_an_error(state):
    _, config, arrays = written(preprocessing.StandardScaler())
    with pytest.raises(ConfigError):
        read_transform({**config, "state": state}, TransformReader(arrays))


def test_a_malformed_configuration_is_an_error():
    with pytest.raises(ConfigError, match=r"{'class': 'PCA'} is not the configuration of a transform"):
        read_transform({"class": "PCA"}, TransformReader({}))


def test_a_transform_that_gives_other_numbers_than_when_it_was_saved_is_refused():
    _, config, arrays = written(preprocessing.StandardScaler())
    arrays["p/mean_"] = arrays["p/mean_"] + 0.1
    message = r"does not return the same numbers as when it was saved; saved with sklearn \S+; installed"
    with pytest.raises(ConfigError, match=message):
        read_transform(config, TransformReader(arrays))


def test_without_scikit_learn_the_message_says_what_to_install(monkeypatch):
    _, config, arrays = written(preprocessing.StandardScaler())
    monkeypatch.setitem(sys.modules, "sklearn.preprocessing", None)
    with pytest.raises(TransformError, match="scikit-learn's StandardScaler, but scikit-learn is not installed"):
        read_transform(config, TransformReader(arrays))
