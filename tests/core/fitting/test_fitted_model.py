"""A fitted model's predictions: classes of the right axis, and none that were made of nothing."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.errors import NaNWarning

X = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
FAST = {"epochs": 1, "progress": "none"}


def test_classes_are_those_of_the_axis_of_the_loss():
    kinds = np.random.default_rng(1).integers(0, 3, size=(40, 5))
    for shape, axis in (((3, 5), 1), ((5, 3), -1), ((5, 3), 2)):
        fitted = aa.fit(aa.SequentialMLP(shape), (X, kinds), loss=aa.Loss("cross_entropy", class_axis=axis), **FAST)
        classes = fitted.predict(X)
        assert classes.shape == kinds.shape
        np.testing.assert_array_equal(classes, fitted.predict(X, outputs=True).argmax(axis=axis))


@pytest.mark.parametrize(("loss", "width"), [("cross_entropy", 2), ("binary_cross_entropy", 1)])
def test_a_class_made_of_nan_is_told(loss, width):
    fitted = aa.fit(aa.SequentialMLP(width), (X, (X[:, 0] > 0).astype("int64")), loss=loss, **FAST)
    broken = X.copy()
    broken[7, 2] = np.nan
    with pytest.warns(
        NaNWarning,
        match=r"NaN in 1 of 40 rows, the first in row 7; their classes are meaningless\. "
        r"Hint:",
    ):
        fitted.predict(broken)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NaNWarning)
        assert np.isnan(fitted.predict(broken[7:8], outputs=True)).all()


@pytest.mark.parametrize("call", ["evaluate", "score"])
def test_targets_that_are_nan_are_told(call):
    y = X.sum(axis=1, keepdims=True)
    fitted = aa.fit(aa.SequentialMLP(1), (X, y), loss="mse", **FAST)
    y[[5, 9]] = np.nan
    with pytest.warns(
        NaNWarning, match=rf"{call}: the target 'y' is NaN in 2 of 40 rows, the first in row 5.*leave these rows out"
    ):
        results = getattr(fitted, call)((X, y))
    assert np.isnan(results if call == "score" else results.loss)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NaNWarning)
        getattr(fitted, call)((X[10:], y[10:]))


@pytest.mark.parametrize("shape", [(40,), (40, 1), (40, 3)])
def test_predictions_of_booleans_are_booleans(shape, tmp_path):
    y = X[:, : shape[-1]].reshape(shape) > 0 if len(shape) == 2 else X[:, 0] > 0
    data = aa.FeatureSet.from_dict("data", {"x": X, "y": y}, ["x"], ["y"])
    for rows in ((X, y), {"x": X, "y": y}, data):
        fitted = aa.fit(aa.SequentialMLP(y[0].size), rows, target="y", loss="binary_cross_entropy", **FAST)
        predicted = fitted.predict({"x": X})
        expected = fitted.predict({"x": X}, outputs=True) > 0
        assert predicted.dtype == np.bool_ and fitted.classes_.dtype == np.bool_
        np.testing.assert_array_equal(predicted, expected.reshape(predicted.shape))
        alike = (predicted.reshape(40, -1) == y.reshape(40, -1)).all(axis=1)
        assert fitted.score({"x": X, "y": y}) == np.mean(alike), "all labels of a row, as in scikit-learn"
        fitted.save(tmp_path / "model")
        np.testing.assert_array_equal(aa.load(tmp_path / "model").predict({"x": X}), predicted)
        assert aa.load(tmp_path / "model").predict({"x": X}).dtype == np.bool_
    shares = np.where(y, 0.75, 0.25)
    outputs = fitted.predict({"x": X}, outputs=True).reshape(y.shape).astype(float)
    by_hand = (np.logaddexp(0.0, outputs) - shares * outputs).mean()
    np.testing.assert_allclose(fitted.evaluate({"x": X, "y": shares}).loss, by_hand, rtol=1e-5)
    numbers = aa.fit(aa.SequentialMLP(y[0].size), (X, y), loss="mse", **FAST)
    assert numbers.predict({"x": X}).dtype.kind == "f", "values between False and True"
    encoded = aa.fit(aa.SequentialMLP(y[0].size), (X, y.astype(int)), loss="binary_cross_entropy", **FAST)
    assert encoded.predict({"x": X}).dtype.kind == "i"
