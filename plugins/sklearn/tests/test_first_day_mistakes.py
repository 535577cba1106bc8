"""Mistakes of a first day with transforms: what is said, and that its hint helps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.preprocessing import OneHotEncoder

import anyaccel as aa
from anyaccel.errors import ColumnError, TransformError

X, TEXT = np.random.default_rng(0).normal(size=(60, 3)), ["a", "b", "c"] * 20


class Halve:
    """A transform in the style of scikit-learn."""

    def fit(self, x: Any) -> Halve:
        return self

    def transform(self, x: Any) -> Any:
        return x / 2


def data() -> aa.FeatureSet:
    features = aa.FeatureSet.from_dict("data", {"x": X, "kind": TEXT}, ["x"], [], ["kind"])
    features.split_random({"train": 0.8, "val": 0.2}, seed=0)
    return features


def test_text_as_a_target_or_a_feature() -> None:
    with pytest.raises(ColumnError, match=r"cannot be read as numbers.*Hint: name it in tags.*role='target'"):
        aa.FeatureSet.from_dict("data", {"x": X, "kind": TEXT}, ["x"], ["kind"])
    assert data().fit_transform(OneHotEncoder(), "kind", fit_on="train", role="target").targets == ("kind",)
    with pytest.raises(ColumnError, match=r"cannot be read as numbers.*OneHotEncoder\(\), 'kind'.*role='feature'"):
        aa.FeatureSet.from_dict("data", {"x": X, "kind": TEXT}, ["x", "kind"])
    assert data().fit_transform(OneHotEncoder(), "kind", fit_on="train", role="feature").features == ("x", "kind")


@pytest.mark.parametrize(
    ("transform", "settings", "message"),
    [
        ("standard", {"fit_on": "train"}, r"a str is not a transform.*Hint: pass an object"),
        (Halve, {"fit_on": "train"}, r"is a class.*Hint: create an object: Halve\(\)"),
        (Halve(), {}, r"needs fit_on=.*Hint: write fit_on='train'"),
    ],
)
def test_a_transform_by_name_its_class_and_one_that_is_fitted_on_nothing(
    transform: Any, settings: dict[str, str], message: str
) -> None:
    with pytest.raises(TransformError, match=message):
        data().fit_transform(transform, "x", **settings)
    assert data().fit_transform(Halve(), "x", fit_on="train").transforms
