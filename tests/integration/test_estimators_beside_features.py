"""Estimators in graphs that are sharded, replicated or larger than a device: each is refused for them by name."""

from __future__ import annotations

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.errors import CapabilityError, GraphError, PhaseError

pytestmark = pytest.mark.without_framework

X = np.zeros((4, 3), "float32")


def test_an_estimator_has_no_device_map() -> None:
    linear = pytest.importorskip("sklearn.linear_model").LinearRegression()
    data = aa.FeatureSet.from_dict("data", {"x": X, "y": X[:, :1]}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("line", linear, data.reference(), device_map={"": "cpu"})])
    experiment = aa.Experiment("test", graph, progress="none")
    experiment.run_phase(aa.FitPhase("fit", data=data, nodes="line"))
    with pytest.raises(CapabilityError, match="has a device_map, but is an estimator"):
        experiment.run_phase(aa.EvalPhase("eval", data=data))


def rows() -> aa.FeatureSet:
    x = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
    return aa.FeatureSet.from_dict("d", {"x": x, "y": x[:, :1]}, "x", "y")


ROWS = rows()


def test_an_estimator_has_no_sharding() -> None:
    linear = pytest.importorskip("sklearn.linear_model").LinearRegression()
    linear.fit(ROWS.array("x"), ROWS.array("y"))
    nodes = [
        aa.ModelNode("fit", linear, ROWS.reference(), sharding="full"),
        aa.ModelNode("net", aa.SequentialMLP(1), ROWS.reference()),
    ]
    graph = aa.ModelGraph(nodes, "adam")
    losses = [aa.AppliedLoss("mse", on=label) for label in ("fit", "net")]
    with pytest.raises(GraphError, match=r"node 'fit' has sharding='full', but is an estimator"):
        aa.Experiment(graph).plan(aa.TrainPhase("train", data=ROWS, losses=losses))


def test_an_estimator_that_learns_has_no_replicas() -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    nodes = [aa.ModelNode("net", aa.SequentialMLP((1,)), ROWS.reference())]
    nodes.append(aa.ModelNode("sgd", linear_model.SGDRegressor(), ROWS.reference()))
    experiment = aa.Experiment(aa.ModelGraph(nodes, aa.Optimizer("sgd", lr=0.1)), progress="none")
    loss = aa.AppliedLoss("mse", on="net")
    phase = aa.TrainPhase("train", data=ROWS, losses=[loss], batch_size=16, accelerator="sim", replicas=2)
    with aa.simulate(2):
        for call in (experiment.plan, experiment.run_phase):
            with pytest.raises(PhaseError, match=r"the estimator 'sgd' learns from each batch.*freeze it"):
                call(phase)
