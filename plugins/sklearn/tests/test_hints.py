"""Hints that show code: the code does what the hint says."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from anyaccel import FeatureSet, PairSampler, Same, Where
from anyaccel.errors import AnyaccelError


def example() -> FeatureSet:
    data = {
        "x": np.arange(12.0).reshape(6, 2),
        "big": np.arange(6, dtype="uint64"),
        "small": np.arange(6, dtype="int64"),
        "kind": list("aabbcc"),
    }
    data_set = FeatureSet.from_dict("fs", data, ["x", "big", "small"], (), "kind")
    data_set.split_random({"train": 0.5, "test": 0.5})
    return data_set


def hint_of(call: Callable[[], object]) -> str:
    with pytest.raises(AnyaccelError) as caught:
        call()
    return caught.value.hint


def code_in(hint: str, pattern: str) -> str:
    match = re.search(pattern, hint)
    assert match, hint
    return match.group()


def run(code: str, **names: Any) -> Any:
    return eval(code, names)  # noqa: S307 - the code of our own hints


def test_the_hint_for_a_column_of_several_feature_sets_says_which() -> None:
    fs = example()
    rows: dict[str, Any] = {"fs": fs, "more": FeatureSet("more", fs.to_arrow())}
    name = code_in(hint_of(lambda: PairSampler(2, Same("kind")).epoch_orders(rows)), r"'fs\.kind'").strip("'")
    assert PairSampler(2, Same(name)).epoch_orders(rows).n == 6


def test_the_hint_of_where_is_a_function() -> None:
    code = code_in(hint_of(lambda: Where("small", 3)), r"Where\(.*\)")  # type: ignore[arg-type]
    condition = run(code, Where=Where)
    assert PairSampler(2, condition).epoch_orders({"fs": example()}).n == 5


class Double:
    """The least transform that can be inverted."""

    def fit(self, x: np.ndarray) -> Double:
        return self

    def transform(self, x: np.ndarray) -> np.ndarray:
        return x * 2


def test_the_hint_for_a_missing_fit_on_names_a_split() -> None:
    fs = example()
    code = code_in(hint_of(lambda: fs.fit_transform(Double(), "x")), r"fit_on='\w+'")
    assert run(f"fs.fit_transform(Double(), 'x', {code})", fs=fs, Double=Double).transforms


def test_the_hint_for_a_class_makes_a_transform() -> None:
    fs = example()
    hint = hint_of(lambda: fs.fit_transform(Double, "x", fit_on="train"))
    transform = run(code_in(hint, r"Double\(\)"), Double=Double)
    assert fs.fit_transform(transform, "x", fit_on="train").transforms
