"""Wrong arguments of pair samplers and transforms: each is an AnyaccelError with a hint, or valid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from wrong_calls import wrongly_read, wrongly_taken

import anyaccel as aa
from anyaccel.data import sampler_from_config

X = np.random.default_rng(0).standard_normal((12, 3)).astype("float32")


class Halves:
    """A transform that learns nothing."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return {}

    def fit(self, x: Any) -> Halves:
        return self

    def transform(self, x: Any) -> Any:
        return x / 2

    def inverse_transform(self, x: Any) -> Any:
        return x * 2


def data() -> aa.FeatureSet:
    features = aa.FeatureSet.from_dict("data", {"x": X, "y": X[:, 0]}, ["x"], ["y"])
    features.add_splits({"train": range(6), "val": range(6, 12)})
    return features


def scaled() -> aa.FeatureSet:
    return data().fit_transform(Halves(), "x", fit_on="train")


DRAWN = {"per_anchor": 1, "shuffle": True, "drop_last": False, "seed": 0}
CALLS: dict[str, Callable[[], tuple[Callable[..., Any], dict[str, Any]]]] = {
    "Beyond": lambda: (aa.Beyond, {"column": "x", "distance": 1.0}),
    "Different": lambda: (aa.Different, {"column": "x"}),
    "PairSampler": lambda: (
        aa.PairSampler,
        {"batch_size": 2, "match": aa.Same("k"), "unlike": None, "unlike_per_anchor": 1, **DRAWN},
    ),
    "PairSampler.from_config": lambda: (
        aa.PairSampler.from_config,
        {"config": aa.PairSampler(2, aa.Same("k")).get_config()},
    ),
    "FeatureSet.fit_transform": lambda: (
        data().fit_transform,
        {"transform": Halves(), "columns": "x", "fit_on": "train", "role": None, "into": None},
    ),
    "FeatureSet.inverse": lambda: (scaled().inverse, {"values": X, "columns": "x"}),
    "FeatureSet.transform_like": lambda: (data().transform_like, {"other": scaled()}),
    "Same": lambda: (aa.Same, {"column": "x"}),
    "TripletSampler": lambda: (
        aa.TripletSampler,
        {"batch_size": 2, "positive": aa.Same("k"), "negative": aa.Different("k"), **DRAWN},
    ),
    "TripletSampler.from_config": lambda: (
        aa.TripletSampler.from_config,
        {"config": aa.TripletSampler(2, aa.Same("k"), aa.Different("k")).get_config()},
    ),
    "Where": lambda: (aa.Where, {"column": "x", "function": max}),
    "Within": lambda: (aa.Within, {"column": "x", "distance": 1.0}),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_is_an_error_with_a_hint_or_valid(name: str) -> None:
    wrong = wrongly_taken(name, CALLS[name])
    assert not wrong, "\n".join(wrong)


def test_a_wrong_value_in_a_configuration_is_an_error_with_a_hint_or_valid() -> None:
    pairs = aa.PairSampler(2, [aa.Same("k"), aa.Within("x", 1.0)])
    phase = aa.EvalPhase("v", data="all", sampler=pairs).get_config()
    wrong = wrongly_read(pairs.get_config(), sampler_from_config) + wrongly_read(phase, aa.EvalPhase.from_config)
    assert not wrong, "\n".join(wrong)
