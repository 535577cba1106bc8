"""Out of memory: estimators learn from each step once, are fitted to the same rows, or the phase ends with a report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from anyaccel import AppliedLoss, SimpleSampler
from anyaccel.adapter import ArrayProgram
from anyaccel.data import FeatureSet
from anyaccel.errors import OutOfMemoryError
from anyaccel.experiment import Experiment
from anyaccel.graph import ModelGraph, ModelNode
from anyaccel.metrics import Metric
from anyaccel.numpy_backend import SequentialMLP
from anyaccel.phases import EvalPhase, Phase, TrainPhase, oom_recovery
from anyaccel.specs import Optimizer
from anyaccel_sklearn import Estimator, FitPhase

MSE = AppliedLoss("mse", on="net")
ROWS, BATCH = 90, 16  # five full batches, and ten rows
STEPS = 6  # of an epoch
STREAMED = "rows are streamed from now on"

Limit = Callable[..., list[int]]


class Steps:
    """Least squares by gradient steps, and a diary of what it learned from."""

    def __init__(self) -> None:
        self.diary: list[Any] = []

    def partial_fit(self, features: Any, targets: Any) -> None:
        self.diary.append((features.tolist(), targets.tolist()))
        if not hasattr(self, "coef_"):
            self.coef_ = np.zeros(features.shape[1])
        self.coef_ -= 0.01 * features.T @ (features @ self.coef_ - targets)

    def predict(self, features: Any) -> Any:
        return features @ self.coef_

    def transform(self, features: Any) -> Any:
        return features * self.coef_


class Slots(Steps):
    """Not all of its state is in `__dict__`, so that it is replaced by a copy where it is restored."""

    __slots__ = ("coef_",)


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Limit:
    """`limit("forward", 7)`: a method of programs raises where it has more than seven rows; gives what it was asked.

    `after` calls all fit, and it raises `times` times at most.
    """
    compute = {name: getattr(ArrayProgram, name) for name in ("forward", "forward_pullback")}

    def make(method: str, most: int, after: int = 0, times: int = 10**9) -> list[int]:
        asked: list[int] = []
        failed: list[int] = []

        def limited(self: ArrayProgram, inputs: Any, *more: Any) -> Any:
            asked.append(max(len(item) for item in inputs if item is not None))
            if asked[-1] > most and len(asked) > after and len(failed) < times:
                failed.append(asked[-1])
                raise OutOfMemoryError("the device has no room", available="0 bytes free")
            return compute[method](self, inputs, *more)

        monkeypatch.setattr(ArrayProgram, method, limited)
        return asked

    return make


def line(*nodes: ModelNode, **estimators: Any) -> ModelGraph:
    """A network on 90 rows, and estimators on the same rows."""
    draw = np.random.default_rng(0)
    data = FeatureSet.from_dict(
        "data", {"x": draw.normal(size=(ROWS, 3)), "y": draw.normal(size=(ROWS, 1))}, ["x"], ["y"]
    )
    data.add_splits({"train": np.arange(ROWS), "val": np.arange(40)})
    net = ModelNode("net", SequentialMLP((1,), 2, 5, "tanh", dtype="float64"), data.reference())
    beside = [ModelNode(label, estimator, data.reference()) for label, estimator in estimators.items()]
    return ModelGraph([net, *nodes, *beside], Optimizer("adam", lr=0.02), seed=3)


def train(*on: str, **settings: Any) -> TrainPhase:
    drawn = SimpleSampler(BATCH, shuffle=True, seed=1)
    validation = EvalPhase("val", data="val", metrics=[Metric("mse", on=label, label=label) for label in on])
    return TrainPhase(
        "t", data="train", losses=MSE, sampler=drawn, epochs=3, validation=validation if on else None, **settings
    )


def run(graph: ModelGraph, phase: Phase) -> Any:
    return Experiment("e", graph, progress="none").run_phase(phase)


def told(result: Any) -> list[str]:
    """What was done each time that memory ran out."""
    return [event.message.rpartition("; ")[2] for event in result.events if event.kind == "memory"]


def same(graph: ModelGraph, other: ModelGraph) -> None:
    one, two = graph.state(), other.state()
    assert sorted(one) == sorted(two)
    for name, array in one.items():
        np.testing.assert_array_equal(array, two[name], err_msg=name)


# -- learning by partial_fit -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [1e-12, 1e9], ids=["a snapshot an epoch", "a snapshot a step"])
@pytest.mark.parametrize("after", [0, 1, 5, 6, 9, 17])
def test_estimators_go_back_with_the_network_and_learn_from_each_step_once(
    after: int, share: float, limit: Limit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the first step, in the middle, in a last partial batch, in later epochs; an epoch or a step is repeated."""
    monkeypatch.setattr(oom_recovery, "_SNAPSHOT_SHARE", share)

    def graph() -> ModelGraph:
        return line(ModelNode("behind", Steps(), "net"), beside=Steps())

    one, plain = graph(), graph()
    expected = run(plain, train("beside", "behind"))
    limit("forward_pullback", 0, after=after, times=1)
    result = run(one, train("beside", "behind"))
    same(one, plain)
    assert told(result) == [STREAMED]
    for label in ("beside", "behind"):
        model, other = one[label].model, plain[label].model
        assert len(model.estimator.diary) == 3 * STEPS and model.estimator.diary == other.estimator.diary
        assert model.estimator.coef_.tolist() == other.estimator.coef_.tolist()
        assert model.is_fitted and model.partially_fitted
    assert [epoch.validation for epoch in result.epochs] == [epoch.validation for epoch in expected.epochs]


@pytest.mark.parametrize(("kind", "replaced"), [(Steps, False), (Slots, True)])
def test_nodes_that_share_an_estimator_share_it_when_it_has_been_restored(
    kind: type[Any], replaced: bool, limit: Limit
) -> None:
    def graph(shared: Any) -> ModelGraph:
        return line(predicts=Estimator(shared), scales=Estimator(shared, method="transform"))

    mine = kind()
    one, plain = graph(mine), graph(kind())
    run(plain, train("predicts"))
    limit("forward_pullback", 0, after=9, times=1)
    assert told(run(one, train("predicts"))) == [STREAMED]
    estimator = one["predicts"].model.estimator
    assert (estimator is not mine) is replaced
    assert one["scales"].model.estimator is estimator and len(estimator.diary) == 3 * STEPS
    assert estimator.coef_.tolist() == plain["scales"].model.estimator.coef_.tolist()


def test_an_estimator_of_sklearn_is_the_one_of_a_training_where_memory_lasted(limit: Limit) -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    one, plain = (line(sgd=linear_model.SGDRegressor(random_state=0)) for _ in range(2))
    run(plain, train("sgd"))
    limit("forward_pullback", 0, after=9, times=1)
    assert told(run(one, train("sgd"))) == [STREAMED]
    fitted, other = one["sgd"].model.estimator, plain["sgd"].model.estimator
    assert fitted.t_ == other.t_ == 3 * ROWS + 1 and fitted.coef_.tolist() == other.coef_.tolist()


def test_estimators_that_cannot_be_copied_train_until_memory_runs_out(limit: Limit) -> None:
    class Stuck(Steps):
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("a lock")

    graph = line(est=Stuck())
    run(graph, train())
    assert len(graph["est"].model.estimator.diary) == 3 * STEPS
    limit("forward_pullback", 0, after=4, times=1)
    with pytest.raises(
        OutOfMemoryError, match="phase 't': not enough memory to train 16 rows at once, and micro-batches are ruled"
    ) as caught:
        run(graph, train())
    assert "the estimator 'est', which learns from each batch" in str(caught.value)


def test_steps_are_not_split_where_an_estimator_learns_from_each_batch_and_what_was_learned_is_undone(
    limit: Limit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oom_recovery, "_SNAPSHOT_SHARE", 1e-12)
    graph, untrained = line(est=Steps()), line(est=Steps())
    limit("forward_pullback", 7, after=2)
    with pytest.raises(OutOfMemoryError, match="the estimator 'est', which learns from each batch"):
        run(graph, train())
    assert graph.optimizer_states["net"].step == 0
    untrained.build()
    for name, value in untrained.state().items():
        np.testing.assert_array_equal(graph.state()[name], value, err_msg=name)
    model = graph["est"].model
    assert model.estimator.diary == [] and not model.is_fitted and not model.partially_fitted


# -- a FitPhase --------------------------------------------------------------------------------------------------------


def test_fits_are_computed_in_smaller_batches(limit: Limit) -> None:
    class Kept:
        def fit(self, features: Any) -> None:
            self.seen_ = features.copy()

        def predict(self, features: Any) -> Any:
            return features

    fitted = []
    for most in (10**6, 7):
        graph = line(ModelNode("est", Kept(), "net"))
        limit("forward", most)
        result = run(graph, FitPhase("p", data="train", batch_size=30))
        fitted.append(graph["est"].model.estimator.seen_)
        assert result.fitted[0].rows == ROWS
    assert fitted[0].shape == (ROWS, 1)
    np.testing.assert_allclose(fitted[1], fitted[0], rtol=1e-12)
    assert told(result) == [STREAMED, "15 of 30 rows at a time from now on", "6 of 30 rows at a time from now on"]
