"""NaN in the data of a TrainPhase: when there is a warning, and what it says."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from anyaccel import AppliedLoss
from anyaccel.data import FeatureSet
from anyaccel.errors import NaNWarning
from anyaccel.graph import ConcatNode, ModelGraph, ModelNode
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


def test_nan_in_features_is_one_warning_and_a_note_in_the_plan(experiment):
    data = houses(area=30)
    with pytest.warns(NaNWarning) as told:
        result = experiment(graph(data)).run_phase(TrainPhase("t", data="all", losses=[MSE], epochs=2))
    note = (
        "features 'area' hold NaN in 30 of 120 rows; losses will be NaN. "
        "Hint: build the graph on houses.fit_transform(SimpleImputer(), ['area'], fit_on='all')"
    )
    assert [str(message.message) for message in told] == [f"phase 't': {note}."]
    assert told[0].filename == __file__
    assert result.plan.notes == (note,) and f"note  {note}" in str(result.plan)
    assert np.isnan(result.loss).all() and "loss nan" in repr(result)


def test_nan_in_targets_is_a_warning_if_a_named_loss_takes_them(experiment):
    data = houses(price=5)
    phase = TrainPhase("t", data="all", losses=[MSE])
    with pytest.warns(NaNWarning, match=r"targets 'price' hold NaN in 5 of 120 rows.*filter\(\{'price': np.isfinite\}"):
        experiment(graph(data)).run_phase(phase)


def test_the_hint_on_nan_in_targets_works(experiment):
    data = houses(price=5)
    rows = data.split("all").filter({"price": np.isfinite})
    with warnings.catch_warnings():
        warnings.simplefilter("error", NaNWarning)
        result = experiment(graph(data)).run_phase(TrainPhase("t", data=rows, losses=[MSE]))
    assert np.isfinite(result.loss).all() and len(rows) == 115


def test_unused_rows_and_columns_with_nan_are_no_warning(experiment):
    data = houses(area=20)
    data.add_split("train", np.arange(20, 120))
    with warnings.catch_warnings():
        warnings.simplefilter("error", NaNWarning)
        whole = experiment(graph(data)).run_phase(TrainPhase("t", data="train", losses=[MSE]))
        other = experiment(graph(data, "rooms")).run_phase(TrainPhase("t", data="all", losses=[MSE]))
    assert np.isfinite([whole.loss, other.loss]).all() and not whole.plan.notes + other.plan.notes


def test_nan_is_followed_through_concat_nodes_and_frozen_models(experiment):
    data = houses(area=7)
    nodes = [
        ModelNode("enc", Dense(2), data.reference(["area"])),
        ConcatNode("both", ["enc", data.reference(["rooms"])]),
        ModelNode("net", Dense(1), "both"),
    ]
    made = ModelGraph(nodes, "adam")
    made.freeze("enc")
    with pytest.warns(NaNWarning, match="features 'area' hold NaN in 7 of 120 rows"):
        experiment(made).run_phase(TrainPhase("t", data="all", losses=[MSE]))
