"""The hint on NaN in features."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from anyaccel import AppliedLoss
from anyaccel.data import FeatureSet
from anyaccel.errors import NaNWarning
from anyaccel.graph import ModelGraph, ModelNode
from anyaccel.numpy_backend import Dense
from anyaccel.phases import TrainPhase

MSE = AppliedLoss("mse", on="net")


def houses(*, area: int = 0, price: int = 0) -> FeatureSet:
    """120 rows: the first `area` of them have NaN for their area, the last `price` for their price."""
    draw = np.random.default_rng(0)
    shapes = {"rooms": (120, 2), "area": (120, 1), "price": (120,)}
    columns = {name: draw.normal(size=shape).astype("float32") for name, shape in shapes.items()}
    columns["area"][:area] = np.nan
    columns["price"][120 - price :] = np.nan
    return FeatureSet.from_dict("houses", columns, ["rooms", "area"], "price")


def graph(data: FeatureSet, *features: str) -> ModelGraph:
    source = data.reference(list(features) or ["rooms", "area"])
    return ModelGraph([ModelNode("net", Dense(1), source)], "adam")


def test_the_hint_on_nan_in_features_works(experiment):
    impute = pytest.importorskip("sklearn.impute")
    data = houses(area=30).fit_transform(impute.SimpleImputer(), ["area"], fit_on="all")
    with warnings.catch_warnings():
        warnings.simplefilter("error", NaNWarning)
        result = experiment(graph(data)).run_phase(TrainPhase("t", data="all", losses=[MSE]))
    assert np.isfinite(result.loss).all()
