"""Predictions of models that were fitted to text."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler

import anyaccel as aa
from anyaccel.errors import DataError, PhaseError, TransformError
from anyaccel_sklearn.transforms.class_encoder import ClassEncoder

X = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")


FAST = {"epochs": 1, "progress": "none"}


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
    with pytest.raises(PhaseError, match=r"the target 'y' has 2 classes, 'no', 'yes', but the model has 3 outputs"):
        aa.fit(aa.SequentialMLP(3), (X, kinds), loss="cross_entropy", **FAST)
    fitted = aa.fit(aa.SequentialMLP(2), (X, kinds), loss="cross_entropy", **FAST)
    (data,) = fitted.graph.feature_sets.values()
    with pytest.raises(
        TransformError, match=r"2 is not the index of a class\. Available: 0 to 1: no, yes\. Hint: use a"
    ):
        data.inverse(np.array([0, 2]), ["y"])


def test_scaled_class_numbers_of_a_text_target_are_not_taken_for_classes() -> None:
    x, y = np.random.default_rng(0).random((60, 3)).astype("float32"), np.array(["a", "b", "c"] * 20)
    data = aa.FeatureSet.from_dict("data", {"x": x, "y": y}, ["x"], [], ["y"])
    data = data.fit_transform(ClassEncoder(), "y", fit_on="all", role="target")
    data = data.fit_transform(StandardScaler(), "y", fit_on="all")
    fitted = aa.fit("mlp", data, loss="mse", epochs=1, framework="numpy", progress="none")
    with pytest.raises(DataError, match="the target 'y' was text, but the meaning of outputs is known only"):
        fitted.predict(x[:4])
