"""predict_proba, classes_ and score of a fitted model: scikit-learn's conventions, softmax and sigmoid by hand."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, log_loss, r2_score, roc_auc_score

import anyaccel as aa
from anyaccel.errors import ColumnError, DataError

draw = np.random.default_rng(0)
X = draw.standard_normal((120, 3)).astype("float32")
KIND = np.array(["low", "mid", "top"])[np.digitize(X[:, 0] + 0.3 * draw.standard_normal(120), [-0.5, 0.7])]
COLUMNS = {"a": X[:, 0], "b": X[:, 1], "c": X[:, 2]}


def fit(target, loss=None, columns=COLUMNS, **settings):
    data = {**columns, "y": target}
    given = {"target": "y", "loss": loss, "epochs": 3, "framework": "numpy", "progress": "none", **settings}
    return aa.fit("mlp", data, **given), data


def test_probabilities_are_the_softmax_of_the_outputs_in_the_order_of_the_classes():
    fitted, data = fit(KIND)
    logits = fitted.predict(COLUMNS, outputs=True).astype("float64")
    expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    found = fitted.predict_proba(COLUMNS)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert found.dtype == np.float64 and found.shape == (120, 3)
    np.testing.assert_allclose(found.sum(axis=1), 1.0, atol=1e-12)
    reference = LogisticRegression().fit(X, KIND)
    np.testing.assert_array_equal(fitted.classes_, reference.classes_)
    np.testing.assert_array_equal(fitted.classes_[found.argmax(axis=1)], fitted.predict(COLUMNS))
    assert roc_auc_score(KIND, found, multi_class="ovr") > 0.5
    assert abs(log_loss(KIND, found, labels=fitted.classes_) - fitted.evaluate(data).loss) < 1e-6


@pytest.mark.parametrize("target", [KIND == "top", np.where(KIND == "top", "yes", "no"), (KIND == "top").astype(int)])
@pytest.mark.parametrize("loss", ["cross_entropy", "binary_cross_entropy"])
def test_two_classes_have_two_columns_with_either_loss(target, loss):
    fitted, data = fit(target, loss)
    found = fitted.predict_proba(data)
    assert found.shape == (120, 2)
    np.testing.assert_allclose(found.sum(axis=1), 1.0, atol=1e-12)
    np.testing.assert_array_equal(fitted.classes_, np.unique(target))
    assert fitted.classes_.dtype == fitted.predict(data).dtype == np.unique(target).dtype
    np.testing.assert_array_equal(fitted.classes_[found.argmax(axis=1)], fitted.predict(data))
    assert 0.0 <= roc_auc_score(target, found[:, 1]) <= 1.0
    if loss == "binary_cross_entropy":
        logits = fitted.predict(data, outputs=True).astype("float64").reshape(-1)
        np.testing.assert_allclose(found[:, 1], 1 / (1 + np.exp(-logits)), rtol=1e-12)


def test_large_outputs_do_not_overflow():
    fitted, _ = fit(KIND == "top", "binary_cross_entropy", epochs=1)
    huge = {name: values * np.float32(1e30) for name, values in COLUMNS.items()}
    with np.errstate(over="raise", invalid="raise"):
        found = fitted.predict_proba(huge)
    assert np.isfinite(found).all()


def test_several_yes_or_no_targets_have_a_column_each():
    columns = {"a": X[:, 0], "b": X[:, 1], "u": (X[:, 0] > 0) * 1.0, "v": (X[:, 1] > 0) * 1.0}
    settings = {"loss": "binary_cross_entropy", "epochs": 2, "framework": "numpy", "progress": "none"}
    fitted = aa.fit("mlp", columns, target=["u", "v"], **settings)
    logits = fitted.predict(columns, outputs=True).astype("float64")
    np.testing.assert_allclose(fitted.predict_proba(columns), 1 / (1 + np.exp(-logits)), rtol=1e-12)
    expected = accuracy_score(np.stack([columns["u"], columns["v"]], axis=1), fitted.predict(columns))
    assert fitted.score(columns) == pytest.approx(expected)


def test_score_is_the_accuracy_of_classes():
    fitted, data = fit(KIND, validation=0.25)
    assert fitted.score(data) == pytest.approx(accuracy_score(KIND, fitted.predict(data)))
    rows = fitted.graph.feature_sets["data"].splits["validation"].rows
    assert fitted.score("validation") == pytest.approx(accuracy_score(KIND[rows], fitted.predict(data)[rows]))


@pytest.mark.parametrize("target", [X[:, 0] * 1000 + 7, np.arange(120)])
def test_score_is_r2_of_numbers_in_their_units(target):
    fitted, data = fit(target, "mse")
    assert fitted.score(data) == pytest.approx(r2_score(target, fitted.predict(data)), abs=1e-5)


def test_score_of_several_numbers_is_the_mean_over_them():
    data = {**COLUMNS, "u": X[:, 0] * 10, "v": X[:, 1]}
    settings = {"target": ["u", "v"], "loss": "mse", "epochs": 2, "framework": "numpy", "progress": "none"}
    fitted = aa.fit("mlp", data, **settings)
    expected = r2_score(np.stack([data["u"], data["v"]], axis=1), fitted.predict(data))
    assert fitted.score(data) == pytest.approx(expected, abs=1e-5)


def test_score_of_a_constant_target_is_that_of_scikit_learn():
    fitted, data = fit(X[:, 0], "mse")
    few = {name: values[:4] for name, values in data.items()} | {"y": np.full(4, 2.0, "float32")}
    assert fitted.score(few) == r2_score(few["y"], fitted.predict(few)) == 0.0


def test_a_loaded_model_has_them_too(tmp_path):
    fitted, data = fit(KIND, class_weights="balanced", sample_weight=draw.uniform(0.1, 2.0, 120))
    fitted.save(tmp_path / "model")
    loaded = aa.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(data), fitted.predict_proba(data))
    np.testing.assert_array_equal(loaded.classes_, fitted.classes_)
    assert loaded.score(data) == fitted.score(data)


def test_what_a_regression_has_not():
    fitted, data = fit(X[:, 0], "mse")
    with pytest.raises(DataError, match=r"predict_proba needs outputs that are classes, .* trained with mse"):
        fitted.predict_proba(data)
    with pytest.raises(DataError, match="classes_ needs outputs"):
        fitted.classes_  # noqa: B018


def test_score_needs_the_target():
    fitted, _ = fit(KIND)
    with pytest.raises(ColumnError, match="'y'"):
        fitted.score(COLUMNS)
