"""Phases take data with the transforms of the graph, and say what those lack that have others."""

from __future__ import annotations

import numpy as np
import pytest

from anyaccel import AppliedLoss
from anyaccel.data import FeatureSet
from anyaccel.errors import (
    ColumnError,
    PhaseError,
)
from anyaccel.experiment import Experiment
from anyaccel.graph import ModelGraph, ModelNode
from anyaccel.numpy_backend import Dense, SequentialMLP
from anyaccel.phases import EvalPhase


class Hundredth:
    """A transform that changes every number."""

    def fit(self, values):
        return self

    def transform(self, values):
        return values / 100

    def inverse_transform(self, values):
        return values * 100


@pytest.mark.parametrize("which", ["view", "fresh"])
def test_data_without_the_transforms_of_the_graph_are_refused(which):
    arrays = {"x": np.arange(12.0).reshape(6, 2), "y": np.arange(6.0)}
    raw = FeatureSet.from_dict("d", arrays, ["x"], ["y"])
    raw.split_random({"train": 0.5, "test": 0.5})
    scaled = raw.fit_transform(Hundredth(), "x", fit_on="train")
    experiment = Experiment("e", ModelGraph([ModelNode("net", SequentialMLP(), scaled.reference())]), progress="none")
    given = raw["test"] if which == "view" else FeatureSet.from_dict("d", arrays, ["x"], ["y"])
    with pytest.raises(
        PhaseError,
        match=r"given 'd' without the transforms.*Hundredth on x.*fresh.transform_like\(data\)",
    ):
        experiment.run_phase(EvalPhase("e", data=given))
    right = experiment.run_phase(EvalPhase("e", data="test")).prediction("net")
    fresh = FeatureSet.from_dict("d", arrays, ["x"], ["y"]).transform_like(scaled).take(raw["test"].rows)
    np.testing.assert_array_equal(experiment.run_phase(EvalPhase("e", data=fresh)).prediction("net"), right)


def scaled_data(label="d"):
    arrays = {"x": np.arange(12.0).reshape(6, 2), "y": np.arange(6.0), "t": list("ababab")}
    raw = FeatureSet.from_dict(label, arrays, ["x"], ["y"], ["t"])
    return raw, raw.fit_transform(Scaler(), "x", fit_on="all")


class Scaler(Hundredth):
    """A transform with fitted state."""

    def fit(self, values):
        self.scale = values.max(axis=0)
        return self

    def transform(self, values):
        return values / self.scale


@pytest.mark.parametrize("which", ["further", "fewer", "of other rows"])
def test_data_with_other_transforms_than_the_graph_are_refused(which):
    raw, scaled = scaled_data()
    twice = scaled.fit_transform(Hundredth(), "x", fit_on="all")
    rows = raw.add_split("some", [0, 1, 2])
    made, given, shown = {
        "further": (scaled, twice, "Scaler on x, .*given: .*Scaler on x, .*Hundredth on x"),
        "fewer": (twice, scaled, "Scaler on x, .*Hundredth on x, .*given: .*Scaler on x, "),
        "of other rows": (scaled, raw.fit_transform(Scaler(), "x", fit_on=rows), "fitted on 'all'.*fitted on 'some'"),
    }[which]
    experiment = Experiment("e", ModelGraph([ModelNode("net", SequentialMLP(), made.reference())]), progress="none")
    with pytest.raises(
        PhaseError, match=rf"given 'd' with other transforms than the graph's.*{shown}.*fresh.transform_like\(data\)"
    ):
        experiment.run_phase(EvalPhase("e", data=given))


def test_data_with_the_same_transforms_are_taken():
    raw, scaled = scaled_data()
    experiment = Experiment("e", ModelGraph([ModelNode("net", SequentialMLP(), scaled.reference())]), progress="none")
    right = experiment.run_phase(EvalPhase("e", data="all")).prediction("net")
    again = scaled_data()[1]
    beside = scaled.fit_transform(Hundredth(), "x", fit_on="all", into="small")
    recast = scaled.cast({"y": "float32"})
    for given in (again, beside, recast, raw.transform_like(scaled), again.take([0, 1, 2, 3, 4, 5])):
        np.testing.assert_array_equal(experiment.run_phase(EvalPhase("e", data=given)).prediction("net"), right)


def test_a_column_that_a_transform_made_is_missing_in_raw_data():
    raw, _ = scaled_data()
    made = raw.fit_transform(Hundredth(), "y", fit_on="all", into="z")
    nodes = [ModelNode("net", Dense(1), made.reference("x", "z"))]
    phase = EvalPhase("e", data=raw, losses=[AppliedLoss("mse", on="net", inputs=["outputs", "d.z"])])
    with pytest.raises(
        ColumnError,
        match=r"'d' has no column 'z', which a transform added to the graph's data.*Hundredth on y into z.*"
        r"Hint: pass fresh.transform_like\(data\)",
    ):
        Experiment("e", ModelGraph(nodes), progress="none").run_phase(phase)


def test_a_transform_of_targets_only_is_not_checked():
    arrays = {"x": np.arange(12.0).reshape(6, 2), "y": np.arange(6.0)}
    raw = FeatureSet.from_dict("d", arrays, ["x"], ["y"])
    scaled = raw.fit_transform(Hundredth(), "y", fit_on="all")
    experiment = Experiment("e", ModelGraph([ModelNode("net", SequentialMLP(), scaled.reference())]), progress="none")
    assert experiment.run_phase(EvalPhase("e", data=raw)).prediction("net").shape == (6, 1)
