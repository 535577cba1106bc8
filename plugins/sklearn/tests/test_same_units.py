"""Data in other units than those of the graph are refused."""

from __future__ import annotations

import numpy as np
import pytest

from anyaccel import AppliedLoss, IterableSource, MapSource
from anyaccel.data import FeatureSet
from anyaccel.errors import PhaseError
from anyaccel.experiment import Experiment
from anyaccel.graph import ModelGraph, ModelNode
from anyaccel.numpy_backend import Dense
from anyaccel.phases import EvalPhase, TrainPhase


class Scaler:
    """A transform with fitted state."""

    def fit(self, values):
        self.scale = values.max(axis=0)
        return self

    def transform(self, values):
        return values / self.scale


@pytest.mark.parametrize("compares", [{"losses": [AppliedLoss("mse", on="net")]}, {"metrics": "mse"}])
def test_targets_in_other_units_than_the_graphs_are_refused_where_something_compares_them(compares):
    raw = FeatureSet.from_dict("d", {"x": np.ones((6, 2)), "y": np.arange(6.0)}, ["x"], ["y"])
    scaled = raw.fit_transform(Scaler(), "y", fit_on="all")
    experiment = Experiment("e", ModelGraph([ModelNode("net", Dense(1), scaled.reference())]), progress="none")
    other = raw.fit_transform(Scaler(), "y", fit_on=raw.add_split("some", [0, 1, 2]))
    for given, shown in ((raw, "without the transforms"), (other, "with other transforms than")):
        with pytest.raises(PhaseError, match=rf"given 'd' {shown}.*Scaler on y, .*fresh.transform_like\(data\)"):
            experiment.run_phase(EvalPhase("e", data=given, **compares))
    fresh = raw.transform_like(scaled)
    again, right = (experiment.run_phase(EvalPhase("e", data=data, **compares)) for data in (fresh, "all"))
    assert (again.losses, again.metrics) == (right.losses, right.metrics)
    expected = experiment.run_phase(EvalPhase("e", data="all")).prediction("net")
    np.testing.assert_array_equal(experiment.run_phase(EvalPhase("e", data=raw)).prediction("net"), expected)


@pytest.mark.parametrize("as_items", [False, True])
def test_rows_of_a_source_are_not_transformed(as_items):
    table = {"x": np.ones((6, 2)), "y": np.arange(6.0)}
    scaled = FeatureSet.from_dict("d", table, ["x"], ["y"]).fit_transform(Scaler(), "x", fit_on="all")
    graph = ModelGraph([ModelNode("net", Dense(1), scaled.reference())], "sgd")
    rows = [{name: column[i] for name, column in table.items()} for i in range(6)]
    data = (
        MapSource("d", rows, features="x", target="y")
        if as_items
        else IterableSource("d", [table], features="x", target="y")
    )
    loss = AppliedLoss("mse", on="net")
    for phase in (TrainPhase("t", data=data, losses=loss), EvalPhase("v", data=data)):
        with pytest.raises(PhaseError, match=r"whose rows are not transformed.*Scaler.*transform_like"):
            Experiment("e", graph, progress="none").run_phase(phase)
