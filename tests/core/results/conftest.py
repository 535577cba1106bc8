"""What tests of results share: a registry with NumPy alone, data with targets and tags, and a graph over them."""

from __future__ import annotations

import numpy as np
import pytest

from anyaccel import Experiment, FeatureSet, ModelGraph, ModelNode, SequentialMLP
from anyaccel.numpy_backend import NumpyBackend
from anyaccel.registry import Registry


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    monkeypatch.setattr("anyaccel.registry._registry", [Registry(NumpyBackend, lambda: ())])


@pytest.fixture
def data():
    """Six rows: features x [2], target y, tags of text and of integers; the split "last" has the last two, turned."""
    columns = {
        "x": np.arange(12, dtype="float32").reshape(6, 2) / 10,
        "y": np.arange(6, dtype="float32"),
        "name": ["a", "b", "c", "d", "e", None],
        "row": np.arange(6),
    }
    fs = FeatureSet.from_dict("fs", columns, "x", "y", ["name", "row"])
    fs.add_split("last", [5, 4])
    return fs


@pytest.fixture
def experiment(data):
    """One node that guesses y, and one with three outputs per sample."""
    nodes = [
        ModelNode("guess", SequentialMLP((1,), n_layers=1), data.reference()),
        ModelNode("wide", SequentialMLP((3, 1), n_layers=1), data.reference()),
    ]
    return Experiment("e", ModelGraph(nodes, "sgd"), progress="none")
