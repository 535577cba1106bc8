"""Hints of tables whose features fit makes: columns, targets, and rows to predict for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

import anyaccel as aa
from anyaccel.fitting import FittedModel

pytestmark = pytest.mark.filterwarnings("ignore::anyaccel.errors.TableWarning")
N = 40


def frame(**columns: Any) -> pandas.DataFrame:
    numbers = np.random.default_rng(0).standard_normal(N)
    usual = {"age": numbers, "sex": np.where(numbers > 0, "male", "female"), "y": np.where(numbers > 1, "yes", "no")}
    return pandas.DataFrame({**usual, **columns})


def net(n_features: int, n_outputs: int) -> aa.SequentialMLP:
    return aa.SequentialMLP(n_outputs, hidden_dim=4)


def fitted(table: Any, target: Any = "y", model: Any = net, **settings: Any) -> FittedModel:
    return aa.fit(model, table, target=target, epochs=1, progress="none", **settings)


def test_columns_that_tell_nothing(hint: Any) -> None:
    table = frame(name=[f"name {row}" for row in range(N)])
    with hint(
        "leave it out, drop=[{}]; or make a feature of it before; or, if they are categories all the same, "
        "categories=[{}]"
    ):
        fitted(table)
    assert fitted(table, drop=["name"]).columns["sex"].n_categories == 2
    assert fitted(table, categories=["name"]).columns["name"].n_categories == N
    table = frame(lists=[[1, 2], [3]] * (N // 2))
    with hint("leave it out, drop=[{}], or make such columns of it first"):
        fitted(table)
    assert fitted(table, drop=["lists"]).columns


def test_text_that_is_something_else(hint: Any) -> None:
    table = frame(size=["12", "13", "7", "unknown"] * (N // 4), day=["3/4/2020", "5/12/2021"] * (N // 2))
    for name in ("size", "day"):
        with hint("read it as {} before: {}; or take it as it is, categories=[{}]"):
            fitted(table[["age", name, "y"]])
    sized = table.assign(size=pandas.to_numeric(table["size"], errors="coerce"))
    assert fitted(sized[["size", "y"]]).columns["size"].kind == "number"
    dated = table.assign(day=pandas.to_datetime(table["day"], format="%d/%m/%Y"))
    assert fitted(dated[["day", "y"]]).columns["day"].kind == "date"
    assert fitted(table, categories=["size", "day"]).columns["size"].n_categories == 4


def test_infinity(hint: Any) -> None:
    table = frame(ratio=[1.0, float("inf")] * (N // 2))
    inf = float("inf")
    with hint("leave such places empty (pandas: table[{}].replace([inf, -inf], None))"):
        fitted(table)
    finite = table.assign(ratio=table["ratio"].replace([inf, -inf], None))
    assert fitted(finite).columns["ratio"].n_missing == N // 2


def test_targets_of_tables(hint: Any) -> None:
    table = frame(price=[1.5, None] * (N // 2))
    with hint("leave these rows out (pandas: table.dropna(subset=[{}]))"):
        fitted(table, "price")
    assert fitted(table.dropna(subset=["price"]), "price").results.loss.size
    table = frame(when=pandas.date_range("2020-01-01", periods=N))
    with hint("make it a number before (pandas: pandas.to_numeric(table[{}]))"):
        fitted(table, "when")
    assert fitted(table.assign(when=pandas.to_numeric(table["when"]).astype("float64")), "when").columns
    with hint("leave it out of features=, or predict another column than target={}"):
        fitted(table, features=["age", "y"])
    assert fitted(table, features=["age"], target="y").columns
    with hint("write loss='mse' for targets that are all numbers"):
        fitted(frame(one=1.5, two=2), ["one", "y"])
    assert fitted(frame(one=np.arange(N) / 2, two=np.arange(N)), ["one", "two"], loss="mse").columns


def test_rows_to_predict_for(hint: Any, tmp_path: Path) -> None:
    table = frame(alone=[True, False] * (N // 2), day=pandas.date_range("2020-01-01", periods=N))
    model = fitted(table)
    with hint("make them numbers before (pandas: pandas.to_numeric(table[{}], errors='coerce'))"):
        model.predict(table.assign(age="old"))
    aged = table.assign(age="12")
    assert len(model.predict(aged.assign(age=pandas.to_numeric(aged["age"], errors="coerce")))) == N
    with hint("make them booleans before (pandas: table[{}].map({'yes': True, 'no': False}))"):
        model.predict(table.assign(alone="yes"))
    answered = table.assign(alone="yes")
    assert len(model.predict(answered.assign(alone=answered["alone"].map({"yes": True, "no": False})))) == N
    with hint(
        "make them text as they were in training (pandas: table[{}].astype(str), or read_csv with dtype={{}: str})"
    ):
        model.predict(table.assign(sex=1))
    coded = table.assign(sex=1)
    assert len(model.predict(coded.assign(sex=coded["sex"].astype(str)))) == N
    coded.to_csv(tmp_path / "coded.csv", index=False)
    assert len(model.predict(pandas.read_csv(tmp_path / "coded.csv", dtype={"sex": str}, parse_dates=["day"]))) == N
    with hint("make them dates before (pandas: pandas.to_datetime(table[{}]))"):
        model.predict(table.assign(day="Monday"))
    written = table.assign(day="2020-01-05 10:00")
    assert len(model.predict(written.assign(day=pandas.to_datetime(written["day"])))) == N


def test_arguments_of_tables(hint: Any) -> None:
    table = frame()[["age", "y"]]
    with hint("leave preprocess= out"):
        fitted(table, preprocess=None, drop=["age"])
    assert fitted(frame(), drop=["sex"]).columns["age"]
    untreated = fitted(table, model=net(1, 2))
    with hint("see graph for the data, and fit(..., preprocess=) for treatments"):
        _ = untreated.columns
    assert untreated.graph.feature_sets
    assert aa.fit(net, table, target="y", preprocess="auto", epochs=1, progress="none").columns["age"]
