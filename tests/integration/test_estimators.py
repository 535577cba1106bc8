"""Estimators in graphs with models of every framework: fitted on their outputs, or feeding them."""

from __future__ import annotations

import numpy as np
import pytest

from anyaccel import (
    AppliedLoss,
    Estimator,
    EvalPhase,
    Experiment,
    FeatureSet,
    FitPhase,
    Metric,
    ModelGraph,
    ModelNode,
    TrainPhase,
)
from anyaccel.errors import AnyaccelError
from anyaccel.registry import registry

LOSS = AppliedLoss("mse", on="net")


class Ridge:
    """Least squares, at once or batch by batch."""

    def fit(self, x, y):
        self.coef_ = np.linalg.solve(x.T @ x + 0.1 * np.eye(x.shape[1]), x.T @ y)

    def predict(self, x):
        return x @ self.coef_


class BatchwiseRidge(Ridge):
    fit = None

    def __init__(self):
        self.seen = []

    def partial_fit(self, x, y):
        self.seen.append(x)
        super().fit(np.concatenate(self.seen), np.zeros(sum(map(len, self.seen)), "float32"))


class Scale:
    def __init__(self, dtype):
        self.dtype = dtype

    def fit(self, x):
        self.mean_, self.spread_ = x.mean(axis=0), x.std(axis=0)

    def transform(self, x):
        return ((x - self.mean_) / self.spread_).astype(self.dtype)


@pytest.fixture
def data():
    random = np.random.default_rng(0)
    x = random.normal(size=(96, 5)).astype("float32")
    fs = FeatureSet.from_dict("fs", {"x": 3 * x + 1, "y": np.abs(x[:, :1]) + x[:, 1:2]}, "x", "y")
    fs.split_random({"train": 0.75, "test": 0.25}, seed=0)
    return fs


@pytest.fixture
def mlp(framework):
    """`mlp(width)` is the framework's own small network, not yet built."""
    make = registry().computing(framework).models()["SequentialMLP"]
    return lambda width, n_layers=2: make((width,), n_layers=n_layers, hidden_dim=8)


def test_a_graph_of_a_scaler_an_encoder_and_three_heads_trains_and_fits(data, mlp):
    nodes = [
        ModelNode("ridge", Ridge(), "enc"),
        ModelNode("taught", BatchwiseRidge(), "enc"),
        ModelNode("net", mlp(1, 1), "enc"),
        ModelNode("enc", mlp(4), "scale"),
        ModelNode("scale", Estimator(Scale("float32"), method="transform"), data.reference()),
    ]
    graph = ModelGraph(nodes, "adam")
    experiment = Experiment("e", graph, progress="none")
    graph.summary(), graph.visualize(), graph.state()  # before anything behind the scaler is known
    experiment.run_phase(FitPhase("scale", data="train", nodes="scale"))
    validation = EvalPhase("val", data="test", metrics=[Metric("mse", on="taught")])
    phase = TrainPhase("t", data="train", losses=[LOSS], epochs=3, validation=validation)
    trained = experiment.run_phase(phase)
    assert trained.loss[-1] < trained.loss[0] and np.isfinite(trained.figure("val_mse")).all()
    assert len(graph["taught"].model.estimator.seen) == 9
    graph.freeze("taught")
    fitted = experiment.run_phase(FitPhase("fit", data="train"))
    assert fitted.nodes == ("ridge",)
    result = experiment.run_phase(
        EvalPhase("e", data="test", metrics=[Metric("r2", on="ridge")], outputs=["enc", "ridge", "net"])
    )
    assert result.plan.device("enc").kind == "cpu"
    for name in ("enc", "ridge", "net"):
        assert type(result.prediction(name)) is np.ndarray and len(result.prediction(name)) == 24
    expected = result.prediction("enc") @ graph["ridge"].model.estimator.coef_
    np.testing.assert_allclose(result.prediction("ridge"), expected, rtol=1e-4, atol=1e-5)


def test_outputs_in_another_dtype_are_accepted_or_refused_with_a_hint(data, mlp):
    """An estimator that computes in float64 before a model in float32."""
    nodes = [
        ModelNode("scale", Estimator(Scale("float64"), method="transform"), data.reference()),
        ModelNode("net", mlp(1), "scale"),
    ]
    experiment = Experiment("e", ModelGraph(nodes, "adam"), progress="none")
    try:
        experiment.run_phase(FitPhase("scale", data="train"))
        experiment.run_phase(TrainPhase("t", data="train", losses=[LOSS]))
    except AnyaccelError as error:
        assert "output_dtype='float32'" in str(error)
    nodes[0] = ModelNode("scale", Estimator(Scale("float64"), "transform", output_dtype="float32"), data.reference())
    experiment = Experiment("e", ModelGraph([nodes[0], ModelNode("net", mlp(1), "scale")], "adam"), progress="none")
    experiment.run_phase(FitPhase("scale", data="train"))
    assert np.isfinite(experiment.run_phase(TrainPhase("t", data="train", losses=[LOSS])).loss).all()
