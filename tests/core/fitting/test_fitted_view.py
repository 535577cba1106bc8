"""What a fitted model shows of itself, and that its next steps run as they stand."""

from __future__ import annotations

import io
import re
import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

import anyaccel as aa

rng = np.random.default_rng(0)
TABLE = {"a": rng.normal(size=60), "b<&": rng.normal(size=60)}
TABLE["value"] = TABLE["a"] - TABLE["b<&"]


def fit(**settings):
    given = {"target": "value", "loss": "mse", "epochs": 12, "progress": "none", "validation": 0.25, **settings}
    return aa.fit(aa.SequentialMLP(1), TABLE, **given)


def code_of(text):
    return [line.partition("#")[0].strip() for line in text.partition("next:")[2].strip().splitlines()]


def test_figures_of_the_last_and_the_best_epoch():
    fitted = fit(metrics=["mae", "r2"], optimizer=aa.Optimizer("sgd", lr=0.3))
    text = repr(fitted)
    assert text.startswith("FittedModel: 12 epochs, on cpu:0 (numpy)") and "columns: a, b<& -> value" in text
    for name, choose in (("loss", np.argmin), ("val_loss", np.argmin), ("val_mae", np.argmin), ("val_r2", np.argmax)):
        values = fitted.results.figure(name)
        row = next(line.split() for line in text.splitlines() if line.split()[:1] == [name])
        best = int(choose(values))
        assert row[1:4] == [f"{values[-1]:.4g}", f"{values[best]:.4g}", str(best)]


def test_the_curve_has_the_form_of_the_values():
    falling = next(line for line in repr(fit(epochs=8)).splitlines() if line.startswith("loss"))
    bars = falling.split()[-1]
    assert len(bars) == 8 and bars[0] == "\u2588" and bars[-1] == "\u2581"
    assert [*bars] == sorted(bars, reverse=True)


def test_next_steps_run_as_they_stand(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib").use("Agg")
    monkeypatch.chdir(tmp_path)
    fitted = fit()
    steps = code_of(repr(fitted))
    assert len(steps) == 4
    for step in steps:
        exec(step, {"fitted": fitted})  # noqa: S102
    loaded = aa.load("model")
    steps = code_of(repr(loaded))
    assert len(steps) == 3 and "print" not in str(steps)
    for step in steps:
        exec(step, {"fitted": loaded, "rows": TABLE})  # noqa: S102
    np.testing.assert_array_equal(fitted.predict("all"), loaded.predict(TABLE))


def test_a_notebook_gets_the_same_with_curves_that_are_drawn():
    fitted = fit(metrics="mae")
    html = fitted._repr_html_()
    tree = ElementTree.fromstring(html)
    assert len(tree.findall(".//svg/polyline")) == 3
    points = [tuple(map(float, it.split(","))) for it in tree.find(".//svg/polyline").get("points").split()]
    assert len(points) == 12 and all(0 <= x <= 160 and 0 <= y <= 32 for x, y in points)
    heights = -np.array([y for _, y in points])
    np.testing.assert_array_equal(np.argsort(heights), np.argsort(fitted.results.loss))
    assert "b&lt;&amp;" in html and "b<&" not in html
    code = tree.find(".//pre/code").text
    for step in re.sub(r"#.*", "", code).strip().splitlines():
        assert step.strip() in repr(fitted)


def test_nothing_is_shown_that_there_is_not():
    fitted = fit(epochs=0)
    assert "curve" not in repr(fitted) and "0 epochs" in repr(fitted)
    assert "svg" not in fitted._repr_html_() and "polyline" not in fit(epochs=1)._repr_html_()
    untrained = aa.FittedModel(aa.Experiment("fit", fitted.graph, progress="none"), aa.Loss("mse"))
    assert repr(untrained).startswith("FittedModel(ModelGraph(") and "not trained yet" in untrained._repr_html_()


def test_a_terminal_that_has_no_bars_gets_none(monkeypatch):
    fitted = fit()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    text = repr(fitted)
    assert text.isascii() and "val_loss" in text


def test_columns_that_were_treated_are_in_it():
    pytest.importorskip("anyaccel_sklearn")
    table = {"a": TABLE["a"], "kind": np.array(["x", "y", None] * 20, dtype=object), "value": TABLE["value"]}
    fitted = aa.fit("mlp", table, target="value", epochs=1, progress="none", framework="numpy")
    assert "a, kind -> value; treated, see fitted.columns" in repr(fitted)
    assert "category" in fitted._repr_html_()
