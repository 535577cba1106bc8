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
