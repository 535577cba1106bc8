"""Training data of a fit with transforms: text, and tables to validate on."""

from __future__ import annotations

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.errors import TransformError

rng = np.random.default_rng(0)


A, B = rng.normal(2.0, 3.0, 60), rng.normal(-1.0, 0.5, 60)


KIND = np.where(A > 2.0, "large", "small")


def fit(data, model=None, **settings):
    given = {"loss": "mse", "target": "value", "epochs": 2, "progress": "none", **settings}
    return aa.fit(model or aa.SequentialMLP(1), data, **given)


def test_a_missing_and_an_unknown_class_name_the_row_and_the_classes():
    data = {"a": A, "b": B, "kind": [None, *KIND[1:]]}
    with pytest.raises(TransformError, match=r"of 'data': the class label of row 0 is missing\. Hint: leave such rows"):
        fit(data, aa.SequentialMLP(2), target="kind", loss="cross_entropy")
    fitted = fit({"a": A, "b": B, "kind": KIND}, aa.SequentialMLP(2), target="kind", loss="cross_entropy")
    with pytest.raises(
        TransformError,
        match=r"'huge' was not among the fitted classes\. Available: 'large', 'small'\. "
        r"Hint:",
    ):
        fitted.evaluate({"a": A, "b": B, "kind": ["huge", *KIND[1:]]})


def test_a_table_to_validate_on_goes_through_the_transforms_of_the_data():
    table = {"a": A, "b": B, "kind": KIND, "value": A - B}
    data = aa.FeatureSet.from_dict("numbers", table, ["a", "b"], ["value"], ["kind"])

    class Both:
        def fit(self, x):
            return self

        def transform(self, x):
            return np.concatenate([x, x.sum(axis=1, keepdims=True)], axis=1)

    data = data.fit_transform(Both(), ["a", "b"], fit_on="all", into="all_of_them")
    fitted = fit(data, target=None, validation={name: column[::-1].copy() for name, column in table.items()})
    assert fitted.results.figure("val_loss")[-1] == pytest.approx(fitted.evaluate(table).loss, rel=1e-6)


def test_a_pair_may_have_text_lists_and_frames():
    x = np.stack([A, B], axis=1)
    named = fit({"x": x, "y": KIND}, aa.SequentialMLP(2), target="y", loss="cross_entropy")
    for pair in ((x, KIND), (x.tolist(), KIND.tolist())):
        fitted = fit(pair, aa.SequentialMLP(2), target=None, loss="cross_entropy")
        np.testing.assert_array_equal(fitted.results.loss, named.results.loss)
        assert set(fitted.predict(x)) <= {"large", "small"}
        assert fitted.evaluate((x, KIND)).loss == named.evaluate({"x": x, "y": KIND}).loss


def test_a_missing_class_of_a_file_names_its_row(tmp_path):
    (tmp_path / "t.csv").write_text('a,name\n1,x\n2,\n3,NA\n4,"NA"\n5,""\n')
    with pytest.raises(TransformError, match="the class label of row 1 is missing"):
        fit(tmp_path / "t.csv", aa.SequentialMLP(2), target="name", loss="cross_entropy")
