"""Hints of models that `fit` sizes itself."""

from __future__ import annotations

from typing import Any

import numpy as np

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
    with hint("write 'mlp', or give a model of a framework"):
        fit("forest")
    assert fit("mlp", framework="numpy") and fit(aa.SequentialMLP(1))
    with hint("leave framework= out, or write fit('mlp', ...)"):
        fit(aa.SequentialMLP(1), framework="numpy")
    assert fit("mlp", framework="numpy") and fit(aa.SequentialMLP(1))


def test_functions(hint: Any) -> None:
    with hint("write lambda n_features, n_outputs: MODEL, or give the model itself"):
        fit(lambda width: Dense(width))
    MODEL = Dense(1)
    assert fit(lambda n_features, n_outputs: MODEL)
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
