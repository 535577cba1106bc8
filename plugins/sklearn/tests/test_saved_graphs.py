"""Saved graphs know the transforms of their data."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from anyaccel import (
    AppliedLoss,
    EvalPhase,
    Experiment,
    FeatureSet,
    ModelGraph,
    ModelNode,
    SequentialMLP,
    TrainPhase,
)
from anyaccel.errors import ConfigError, PhaseError, SplitError, StateError


class Shift:
    """A transform whose class no file may name."""

    def __init__(self, by=0.0):
        self.by = by

    def fit(self, x):
        self.mean = x.mean(axis=0)
        return self

    def transform(self, x):
        return x - self.mean - self.by


def raw(seed=0):
    x = np.random.default_rng(seed).normal(3.0, 2.0, size=(40, 2))
    return FeatureSet.from_dict(
        "data", {"x": x, "y": x[:, 0] - x[:, 1], "id": list(map(str, range(40)))}, "x", "y", "id"
    )


def scaled(data):
    scaler = pytest.importorskip("sklearn.preprocessing").StandardScaler()
    return data.fit_transform(scaler, "x", fit_on="all").fit_transform(scaler, "y", fit_on="all")


def trained(data):
    graph = ModelGraph([ModelNode("net", SequentialMLP(), data.reference())], "adam", seed=1)
    phase = TrainPhase("train", data="all", losses=[AppliedLoss("mse", on="net")], epochs=2)
    Experiment("e", graph, progress="none").run_phase(phase)
    return graph


def predicted(graph, data, undo=False):
    return Experiment("p", graph, progress="none").run_phase(EvalPhase("p", data=data)).prediction("net", undo=undo)


def assert_same(first, second):
    assert first.keys() == second.keys()
    for name, array in first.items():
        assert array.dtype == second[name].dtype and array.tobytes() == second[name].tobytes(), name


def test_the_transforms_of_the_data_come_back(tmp_path):
    data = scaled(raw())
    graph = trained(data)
    graph.save(tmp_path)
    again = ModelGraph.load(str(tmp_path))
    assert_same(again.state(), graph.state())
    new = raw(7).select(target=()).transform_like(again.feature_sets["data"])
    expected = predicted(graph, raw(7).transform_like(data), undo=True)
    np.testing.assert_array_equal(predicted(again, new, undo=True), expected)


def test_it_is_loaded_in_a_new_process(tmp_path):
    graph = trained(scaled(raw()))
    graph.save(tmp_path / "saved")
    code = """
import sys, json, numpy as np, anyaccel as aa
graph = aa.ModelGraph.load(sys.argv[1])
x = np.load(sys.argv[2])
new = aa.FeatureSet.from_dict("data", {"x": x}, "x").transform_like(graph.feature_sets["data"])
results = aa.Experiment("p", graph, progress="none").run_phase(aa.EvalPhase("p", data=new))
print(json.dumps(results.prediction("net", undo=True).reshape(-1).tolist()))
"""
    np.save(tmp_path / "x.npy", raw(3).array("x"))
    command = [sys.executable, "-c", code, str(tmp_path / "saved"), str(tmp_path / "x.npy")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expected = predicted(graph, raw(3).transform_like(graph.feature_sets["data"]), undo=True)
    np.testing.assert_array_equal(json.loads(done.stdout), expected.reshape(-1))


def test_a_loaded_graph_has_no_rows_and_says_so(tmp_path):
    graph = trained(scaled(raw()))
    graph.save(tmp_path)
    again = ModelGraph.load(tmp_path)
    with pytest.raises(SplitError, match=r"no split 'all': the graph was loaded.*transform_like\(graph.feature_sets"):
        predicted(again, "all")
    with pytest.raises(PhaseError, match="has no rows"):
        predicted(again, again.feature_sets["data"])
    assert repr(again.feature_sets["data"]) == "DataSchema('data', 1 features, without rows)"


def test_rows_without_the_transforms_are_refused_by_name(tmp_path):
    trained(scaled(raw())).save(tmp_path)
    again = ModelGraph.load(tmp_path)
    with pytest.raises(PhaseError, match=r"without the transforms.*StandardScaler on x"):
        predicted(again, raw())
    with pytest.raises(ConfigError, match=r"the graph: StandardScaler on x; StandardScaler on y; given: no transforms"):
        ModelGraph.load(tmp_path, feature_sets=[raw()])
    with pytest.raises(StateError, match=r"have other transforms than the data of the state: data"):
        ModelGraph.load(tmp_path, feature_sets=[scaled(raw(1))])


def test_data_with_the_same_transforms_may_be_given(tmp_path):
    data = scaled(raw())
    trained(data).save(tmp_path)
    again = ModelGraph.load(tmp_path, feature_sets=[data])
    assert again.feature_sets["data"] is data and predicted(again, "all").shape == (40, 1)


def test_a_state_alone_is_refused_by_a_graph_of_other_data():
    state = trained(scaled(raw())).state()
    assert {"transforms/data/0/mean_", "transforms/data/1/scale_"} <= set(state)
    with pytest.raises(StateError, match=r"here: no transforms; the state has data/0/.*transform_like\(data\)"):
        trained(raw()).load_state(state)
    with pytest.raises(StateError, match=r"here: StandardScaler on x; .*the state has no transforms"):
        trained(scaled(raw())).load_state(trained(raw()).state())
    with pytest.raises(StateError, match="have other transforms than the data of the state"):
        trained(scaled(raw(1))).load_state(state)
    trained(scaled(raw())).load_state(state)


def test_a_transform_of_ones_own_is_asked_for(tmp_path):
    data = raw().fit_transform(Shift(), "x", fit_on="all")
    graph = trained(data)
    graph.save(tmp_path)
    with pytest.raises(ConfigError, match=r"Shift' cannot be read.*allow=\[Shift\].*feature_sets=\[data\]"):
        ModelGraph.load(tmp_path)
    allowed = ModelGraph.load(tmp_path, allow=[Shift])
    new = raw(2).transform_like(allowed.feature_sets["data"])
    np.testing.assert_array_equal(predicted(allowed, new), predicted(graph, raw(2).transform_like(data)))
    again = ModelGraph.load(tmp_path, feature_sets=[data])
    np.testing.assert_array_equal(predicted(again, "all"), predicted(graph, "all"))
    with pytest.raises(ConfigError, match="have other transforms"):
        ModelGraph.load(tmp_path, feature_sets=[raw().fit_transform(Shift(1.0), "x", fit_on="all")])
