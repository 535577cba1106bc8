"""Hints of models that `fit` sizes itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.adapter.model_specs import TabularSpec
from anyaccel.numpy_backend import Dense

X = np.random.default_rng(0).standard_normal((24, 3)).astype("float32")
TABLE = {"a": X[:, 0], "b": X[:, 1], "price": X[:, 2]}


def fit(model: Any, data: Any = TABLE, **settings: Any) -> Any:
    return aa.fit(
        model,
        data,
        **{"loss": "mse", "target": "price", "epochs": 1, "progress": "none", "preprocess": None, **settings},
    )


def test_names(hint: Any) -> None:
    with hint("write 'mlp', or pass a model of a framework"):
        fit("forest")
    assert fit("mlp", framework="numpy") and fit(aa.SequentialMLP(1))
    with hint("leave framework= out, or write fit('mlp', ...)"):
        fit(aa.SequentialMLP(1), framework="numpy")
    assert fit("mlp", framework="numpy") and fit(aa.SequentialMLP(1))


class OfOneWidth(Dense):
    """A model whose class takes no widths, as most do."""

    def __init__(self) -> None:
        super().__init__(1)


def test_estimators(hint: Any) -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    estimator = linear_model.LinearRegression()
    with hint("call its own fit, estimator.fit(x, y); in a graph with networks, use FitPhase(...)"):
        fit(estimator)
    x, y = np.arange(8.0).reshape(-1, 1), np.arange(8.0)
    assert estimator.fit(x, y).predict(x).shape == (8,)
    data = aa.FeatureSet.from_dict("data", {"x": x, "y": y}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("line", linear_model.LinearRegression(), data.reference())])
    assert graph.run(aa.FitPhase("fit", data="all", nodes="line"), progress="none")


def test_functions(hint: Any) -> None:
    with hint("write lambda n_features, n_outputs: MODEL, or pass the model itself"):
        fit(lambda width: Dense(width))
    MODEL = Dense(1)
    assert fit(lambda n_features, n_outputs: MODEL)
    with hint("pass a model, {}(), or lambda n_features, n_outputs: MODEL"):
        fit(OfOneWidth)
    MODEL = OfOneWidth()
    assert fit(lambda n_features, n_outputs: MODEL) and fit(OfOneWidth())
    with hint("return a model: lambda n_features, n_outputs: MODEL"):
        fit(lambda n_features, n_outputs: None)
    MODEL = Dense(1)
    assert fit(lambda n_features, n_outputs: MODEL)
    with hint("leave framework= out, or write fit('mlp', ...)"):
        fit(lambda n_features, n_outputs: Dense(n_outputs), framework="numpy")
    assert fit("mlp", framework="numpy") and fit(lambda n_features, n_outputs: Dense(n_outputs), framework=None)


def test_widths(hint: Any) -> None:
    n = 2
    with hint("join the columns to one array [n, {}], numbers first, or pass n_numbers and cardinalities"):
        TabularSpec(2, (3,)).weight_shapes([(n,)])
    assert TabularSpec(2, (3,)).weight_shapes([(n + 1,)])
    assert TabularSpec(n_numbers=1, cardinalities=(3,)).weight_shapes([(n,)])
