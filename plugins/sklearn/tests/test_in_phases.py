"""Estimators in phases: what is refused before anything moves, NaN that they may handle, and devices."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import anyaccel as aa
from anyaccel import AppliedLoss, Estimator, FitPhase, ModelGraph, ModelNode, TrainPhase
from anyaccel.data import FeatureSet
from anyaccel.errors import (
    GraphError,
    NaNWarning,
    PhaseError,
)
from anyaccel.numpy_backend import Dense
from anyaccel.phases import EvalPhase


def test_estimators_that_learn_are_refused(data, experiment, tmp_path):
    linear_model = pytest.importorskip("sklearn.linear_model")
    node = ModelNode("net", Estimator(linear_model.SGDRegressor()), data.reference(["x"], ["y"]))
    with pytest.raises(PhaseError, match=r"the estimator 'net' learns in it, but its state could only be pickled"):
        experiment(ModelGraph([node])).run_phase(TrainPhase("train", data="train", checkpoint=tmp_path))


def test_an_estimator_that_was_not_fitted_cannot_be_evaluated(data, experiment):
    class Mean:
        def fit(self, features, targets):
            self.mean_ = targets.mean()

        def predict(self, features):
            return np.full(len(features), self.mean_)

    graph = ModelGraph([ModelNode("est", Mean(), data.reference(["x"], ["y"]))])
    with pytest.raises(PhaseError, match=r"phase 'e' needs 'est', an estimator that is not fitted.* run a FitPhase"):
        experiment(graph).run_phase(EvalPhase("e", data="val"))


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


class Impute:
    """Takes NaN and gives numbers."""

    def fit(self, x):
        self.mean_ = np.nanmean(x, axis=0)

    def predict(self, x):
        return np.where(np.isnan(x), self.mean_, x).astype(x.dtype)


def test_nan_in_evaluations_and_for_estimators_is_no_warning(experiment):
    data = houses(area=20)
    nodes = [ModelNode("fill", Impute(), data.reference()), ModelNode("net", Dense(1), "fill")]
    filled = experiment(ModelGraph(nodes, "adam"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", NaNWarning)
        experiment(graph(data)).run_phase(EvalPhase("e", data="all", losses=[MSE]))
        filled.run_phase(FitPhase("f", data="all"))
        result = filled.run_phase(TrainPhase("t", data="all", losses=[MSE]))
    assert np.isfinite(result.loss).all()


@pytest.fixture
def at_home(sims, data, line, experiment):
    """An experiment with a network that was trained on sim:0 and lives there."""
    ours = experiment(line())
    ours.run_phase(TrainPhase("first", data="train", losses=[MSE], accelerator="sim:0", batch_size=4))
    return ours


@pytest.mark.parametrize(
    ("settings", "error", "problem", "hint"),
    [
        ({"nodes": "net"}, PhaseError, "node 'net' is not an estimator", "train it in a TrainPhase"),
        ({"nodes": ["nett"]}, GraphError, "phase 'bad' fits the node 'nett'", "'net'"),
        ({}, PhaseError, "phase 'bad' has nothing to fit", "set nodes=[...] to fit one again"),
    ],
)
def test_fitting_a_model_that_is_not_an_estimator_is_refused_before_anything_moves(
    at_home, sims, settings, error, problem, hint
):
    moved = []
    hears = type("Hears", (aa.Callback,), {"before_placement": lambda self, run: moved.append(run)})()
    graph = at_home.graph
    parameters = dict(graph["net"].model.parameters)
    states, progress = dict(graph.optimizer_states), dict(graph.progress)
    for sim in sims:
        sim.clear()
    used = [sim.used for sim in sims]
    assert used[0] and parameters and states and progress
    with pytest.raises(error) as caught:
        at_home.run_phase(FitPhase("bad", data="train", accelerator="sim:1", callbacks=[hears], **settings))
    assert problem in caught.value.problem and hint in caught.value.hint and not moved
    assert [sim.used for sim in sims] == used
    assert all(s.transfers.into.number == s.transfers.out.number == s.transfers.between.number == 0 for s in sims)
    assert all(graph["net"].model.parameters[name] is array for name, array in parameters.items())
    assert graph.optimizer_states == states and graph.progress == progress
    assert at_home.history[-1].error is caught.value


def test_a_fit_gives_no_evaluation_at_its_end(line, experiment):
    heard = []
    hears = type("Hears", (aa.Callback,), {"phase_end": lambda self, run: heard.append((run, run.evaluation))})()
    graph = line()
    graph.add_node(ModelNode("fill", Impute(), "net"))
    result = experiment(graph).run_phase(FitPhase("fit", data="train", callbacks=[hears]))
    ((run, evaluation),) = heard
    assert result.fitted and evaluation is None and run.evaluation is None


def test_a_fit_phase_without_accelerator_needs_no_framework(data: FeatureSet) -> None:
    class Mean:
        def fit(self, x: np.ndarray, y: np.ndarray) -> None:
            self.mean_ = y.mean()

        def predict(self, x: np.ndarray) -> np.ndarray:
            return np.full(len(x), self.mean_)

    graph = aa.ModelGraph([aa.ModelNode("mean", Mean(), data.reference(["x"], ["y"]))])
    experiment = aa.Experiment("e", graph, progress="none")
    experiment.run(aa.FitPhase("fit", data="train"), aa.EvalPhase("eval", data="val", metrics=["mse"]))
    assert np.isfinite(experiment.last_run.metrics["mse"])
