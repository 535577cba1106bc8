"""A fitted model's predictions: classes of the right axis, and none that were made of nothing."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.errors import DataError, NaNWarning, TransformError

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
    fitted = aa.fit(aa.SequentialMLP(width), (X, X[:, 0] > 0), loss=loss, **FAST)
    broken = X.copy()
    broken[7, 2] = np.nan
    with pytest.warns(NaNWarning, match=r"NaN in 1 of 40 rows, the first in row 7; classes there mean nothing\. Hint:"):
        fitted.predict(broken)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NaNWarning)
        assert np.isnan(fitted.predict(broken[7:8], outputs=True)).all()


def test_outputs_of_an_unknown_loss_are_not_decoded_as_text():
    fitted = aa.fit(aa.SequentialMLP(2), (X, np.where(X[:, 0] > 0, "yes", "no")), loss="cross_entropy", **FAST)
    unknown = aa.FittedModel(fitted.experiment)
    with pytest.raises(
        DataError, match=r"'y' was text.*Available: its classes: no, yes\. Hint: write predict\(data, out"
    ):
        unknown.predict(X)
    np.testing.assert_array_equal(unknown.predict(X, outputs=True), fitted.predict(X, outputs=True))


def test_an_output_of_no_class_is_not_decoded_as_another():
    kinds = np.where(X[:, 0] > 0, "yes", "no")
    fitted = aa.fit(aa.SequentialMLP(3), (X, kinds), loss="cross_entropy", **FAST)
    state = fitted.graph.state()
    name = next(name for name, array in state.items() if array.shape == (3,) and "parameters/" in name)
    fitted.graph.load_state({**state, name: np.array([0.0, 0.0, 1e3], dtype=state[name].dtype)})
    with pytest.raises(
        TransformError, match=r"2 is not the index of a class\. Available: 0 to 1: no, yes\. Hint: give the"
    ):
        fitted.predict(X)
