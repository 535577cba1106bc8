"""Data in other units than those of the graph's data, which would give wrong numbers, are refused."""

from __future__ import annotations

import numpy as np
import pytest

from anyaccel import Pad
from anyaccel.data import FeatureSet
from anyaccel.errors import PhaseError
from anyaccel.experiment import Experiment
from anyaccel.graph import ModelGraph, ModelNode
from anyaccel.numpy_backend import Dense
from anyaccel.phases import EvalPhase


def test_rows_that_are_padded_with_another_value_than_the_graphs_are_refused():
    def rows(value, lengths=(1, 3, 2)):
        ragged = [np.ones(length, dtype="float32") for length in lengths]
        return FeatureSet.from_dict("d", {"x": ragged, "y": np.ones(3)}, ["x"], ["y"], pad={"x": Pad(value, length=4)})

    experiment = Experiment("e", ModelGraph([ModelNode("net", Dense(1), rows(0).reference())]), progress="none")
    with pytest.raises(PhaseError, match=r"column 'x' is padded with 9\.0; .* with 0\.0\. Hint: .*pad="):
        experiment.run_phase(EvalPhase("e", data=rows(9)))
    assert len(experiment.run_phase(EvalPhase("e", data=rows(0, (4, 2, 2)))).prediction("net")) == 3
