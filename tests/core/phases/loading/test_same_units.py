"""Data in other units than those of the graph's data, which would give wrong numbers, are refused."""

from __future__ import annotations

import numpy as np
import pytest

from anyaccel import AppliedLoss, Pad
from anyaccel.data import FeatureSet
from anyaccel.errors import PhaseError
from anyaccel.experiment import Experiment
from anyaccel.graph import ModelGraph, ModelNode
from anyaccel.numpy_backend import Dense
from anyaccel.phases import EvalPhase


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
    for given, shown in ((raw, "as it was before the transforms"), (other, "with other transforms than")):
        with pytest.raises(PhaseError, match=rf"given 'd' {shown}.*Scaler on y, .*fresh.transform_like\(data\)"):
            experiment.run_phase(EvalPhase("e", data=given, **compares))
    fresh = raw.transform_like(scaled)
    again, right = (experiment.run_phase(EvalPhase("e", data=data, **compares)) for data in (fresh, "all"))
    assert (again.losses, again.metrics) == (right.losses, right.metrics)
    expected = experiment.run_phase(EvalPhase("e", data="all")).prediction("net")
    np.testing.assert_array_equal(experiment.run_phase(EvalPhase("e", data=raw)).prediction("net"), expected)


def test_rows_that_are_padded_with_another_value_than_the_graphs_are_refused():
    def rows(value, lengths=(1, 3, 2)):
        ragged = [np.ones(length, dtype="float32") for length in lengths]
        return FeatureSet.from_dict("d", {"x": ragged, "y": np.ones(3)}, ["x"], ["y"], pad={"x": Pad(value, length=4)})

    experiment = Experiment("e", ModelGraph([ModelNode("net", Dense(1), rows(0).reference())]), progress="none")
    with pytest.raises(PhaseError, match=r"column 'x' is padded with 9\.0; .* with 0\.0\. Hint: .*pad="):
        experiment.run_phase(EvalPhase("e", data=rows(9)))
    assert len(experiment.run_phase(EvalPhase("e", data=rows(0, (4, 2, 2)))).prediction("net")) == 3
