"""Hints of weights, groups, strata, probabilities and scores of `fit`, and of cross-validation."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.model_selection import GroupKFold, TimeSeriesSplit

import anyaccel as aa
from anyaccel import cross_validate
from anyaccel.fitting import FittedModel
from anyaccel.numpy_backend import Dense

N = 24
X = np.random.default_rng(0).standard_normal((N, 3)).astype("float32")
KIND = np.array(["a", "b"] * 12)
WEIGHTS = np.linspace(0.5, 2.0, N)
TABLE = {"a": X[:, 0], "b": X[:, 1], "kind": KIND}
NUMBERS = {"a": X[:, 0], "b": X[:, 1], "kind": X[:, 2]}


def fit(data: Any = TABLE, **settings: Any) -> Any:
    given = {"target": "kind", "epochs": 1, "framework": "numpy", "progress": "none", **settings}
    return aa.fit("mlp", data, **given)


def test_class_weights(hint: Any) -> None:
    with hint("write class_weights={}"):
        fit(class_weights="even")
    assert fit(class_weights="balanced")
    with hint("use the classes of the target: class_weights={CLASS: 2.0}"):
        fit(class_weights={"c": 2.0})
    CLASS = "a"
    assert fit(class_weights={CLASS: 2.0})
    with hint("pass a number for each, or class_weights={CLASS: 2.0}"):
        fit(class_weights=[1.0])
    CLASS = "a"
    assert fit(class_weights=[1.0, 2.0]) and fit(class_weights={CLASS: 2.0})


def test_sample_weights(hint: Any) -> None:
    with hint("set the weight of each row instead: sample_weight='COLUMN'"):
        fit(NUMBERS, class_weights="balanced")
    assert fit({**NUMBERS, "COLUMN": WEIGHTS}, sample_weight="COLUMN")
    with hint("name a column that both have: sample_weight='COLUMN'"):
        fit(sample_weight=WEIGHTS, validation={**TABLE})
    both = {**TABLE, "COLUMN": WEIGHTS}
    assert fit(both, sample_weight="COLUMN", validation={**both})
    batches = [{"x": X, "y": X[:, :1], "w": WEIGHTS.astype("float32"), "kind": (KIND == "b").astype("int64")}]
    with hint(
        "write it in the loss: AppliedLoss('mse', sample_weight='data.w') with IterableSource('data', ..., "
        "tags=['w']), or Loss('cross_entropy', class_weights=[1.0, 2.0])"
    ):
        aa.fit(Dense(1), batches, loss="mse", target="y", features="x", sample_weight="w")
    source = aa.IterableSource("data", batches, features=["x"], target=["y"], tags=["w"])
    once: dict[str, Any] = {"epochs": 1, "progress": "none"}
    assert aa.fit(Dense(1), source, loss=aa.AppliedLoss("mse", sample_weight="data.w"), **once).results.loss.size
    classes = aa.Loss("cross_entropy", class_weights=[1.0, 2.0])
    assert aa.fit(Dense(2), batches, loss=classes, target="kind", features="x", **once).results.loss.size
    with hint("leave {}= out"):
        aa.fit(Dense(1), batches, loss="mse", target="y", features="x", group="w")
    assert aa.fit(Dense(1), batches, loss="mse", target="y", features="x", **once)


def test_groups_and_strata(hint: Any) -> None:
    with hint("write validation=0.2, or leave {}= out"):
        fit(stratify="kind")
    assert fit(stratify="kind", validation=0.2) and fit()
    data = aa.FeatureSet.from_dict("rows", {"x": X, "y": X[:, 0], "kind": KIND}, ["x"], ["y"], ["kind"])
    with hint("write stratify='COLUMN'"):
        fit(data, target=None, stratify=True, validation=0.2)
    COLUMN = "kind"
    assert fit(data, target=None, stratify=COLUMN, validation=0.2)


def test_probabilities_and_scores(hint: Any) -> None:
    fitted = fit(NUMBERS)
    with hint("write predict(data), or predict(data, outputs=True) for the outputs of the model"):
        fitted.predict_proba(NUMBERS)
    data = NUMBERS
    assert len(fitted.predict(data)) == len(fitted.predict(data, outputs=True)) == N
    without_loss = FittedModel(fitted.experiment)
    with hint("write evaluate(data, metrics=['accuracy']) with the metrics of your choice"):
        without_loss.score(NUMBERS)
    assert without_loss.evaluate(data, metrics=["mae"]).metrics
    with hint("write evaluate(data, metrics=['accuracy'])"):
        fit().score([{"a": X[:, 0], "b": X[:, 1], "kind": KIND}])
    assert fit().evaluate(TABLE, metrics=["accuracy"]).metrics


def test_cross_validation(hint: Any) -> None:
    settings: Any = {"target": "kind", "epochs": 1, "framework": "numpy", "cv": 2}
    with hint("pass 'mlp', or a function that creates a model: lambda n_features, n_outputs: MODEL"):
        cross_validate(Dense(2), TABLE, target="kind")
    MODEL = 2
    assert cross_validate("mlp", TABLE, **settings)
    with hint("write cv={}"):
        cross_validate("mlp", TABLE, **{**settings, "n_splits": 3})
    assert len(cross_validate("mlp", TABLE, **{**settings, "cv": 3}).folds) == 3
    assert cross_validate(lambda n_features, n_outputs: Dense(MODEL), TABLE, target="kind", epochs=1, cv=2)
    with hint("pass the group of each row, or name the column: groups='COLUMN'"):
        cross_validate("mlp", TABLE, groups=[1, 2], **settings)
    groups = np.arange(N) // 2
    assert cross_validate("mlp", TABLE, groups=groups, **settings)
    assert cross_validate("mlp", {**TABLE, "COLUMN": groups}, groups="COLUMN", **settings)
    with hint("name the column: groups='COLUMN'"):
        cross_validate("mlp", TABLE, **{**settings, "cv": GroupKFold(2)})
    assert cross_validate("mlp", {**TABLE, "COLUMN": groups}, groups="COLUMN", **{**settings, "cv": GroupKFold(2)})
    with hint("use fewer folds, such as cv=2"):
        cross_validate("mlp", TABLE, **{**settings, "cv": 100})
    assert cross_validate("mlp", TABLE, **{**settings, "cv": 2})
    with hint("leave rare classes out, or use a splitter that distributes them over folds, such as cv=2"):
        cross_validate("mlp", {**TABLE, "kind": np.array(["c", *KIND[1:]])}, **settings)
    assert cross_validate("mlp", {**TABLE, "kind": np.array(["c", "c", *KIND[2:]])}, **{**settings, "cv": 2})


def test_what_was_measured(hint: Any) -> None:
    settings: Any = {"target": "kind", "epochs": 1, "framework": "numpy"}
    found = cross_validate("mlp", NUMBERS, cv=TimeSeriesSplit(2), **settings)
    with hint("use a splitter that tests each row once, such as cv=5, or predict with the models"):
        found.predictions  # noqa: B018
    assert cross_validate("mlp", NUMBERS, cv=5, **settings).predictions.shape == (N,)
    assert found.models[0].predict(NUMBERS).shape == (N,)
    with hint("write cross_validate(..., metrics=[...])"):
        found.mean("mae")
    assert cross_validate("mlp", NUMBERS, cv=2, metrics=["mae"], **settings).mean("mae") > 0
