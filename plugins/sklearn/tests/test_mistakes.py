"""Estimators in the wrong kind of phase: the plan says what is fitted, and errors what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.errors import (
    AnyaccelError,
    ArgumentError,
    EstimatorError,
    PhaseError,
)

X = np.random.default_rng(0).standard_normal((20, 3)).astype("float32")


def source(**more: np.ndarray) -> aa.FeatureSet:
    columns = {"x": X, "y": X[:, 0], **more}
    features = aa.FeatureSet.from_dict("data", columns, ["x"], ["y", *more])
    features.split_random({"train": 0.8, "val": 0.2})
    return features


class OnlyFit:
    """An estimator without partial_fit."""

    def fit(self, x, y=None):
        self.mean_ = x.mean(axis=0)

    def predict(self, x):
        return x - self.mean_


class WithPartialFit(OnlyFit):
    """An estimator with partial_fit."""

    def partial_fit(self, x, y=None):
        self.fit(x)


def experiment(*nodes: aa.ModelNode) -> aa.Experiment:
    return aa.Experiment("e", aa.ModelGraph(list(nodes), "adam"), progress="none")


def test_a_plan_of_a_fit_phase_says_what_is_fitted_in_which_order() -> None:
    data = source()
    runner = experiment(aa.ModelNode("cls", OnlyFit(), "sc"), aa.ModelNode("sc", OnlyFit(), data.reference()))
    note = "fits sc (OnlyFit), then cls (OnlyFit), on the host"
    assert note in runner.plan(aa.FitPhase("f", data="train")).notes
    assert "fits cls" in " ".join(runner.run_phase(aa.FitPhase("f", data="train")).plan.notes)


def test_estimators_without_partial_fit_are_refused_in_a_train_phase() -> None:
    data, train = source(), aa.TrainPhase("t", data="train")
    with pytest.raises(PhaseError, match=r"has no loss.*Hint: 'cls' has no partial_fit: run a FitPhase"):
        experiment(aa.ModelNode("cls", OnlyFit(), data.reference())).run_phase(train)
    fitted = experiment(aa.ModelNode("cls", WithPartialFit(), data.reference()))
    fitted.run_phase(aa.FitPhase("f", data="train"))
    with pytest.raises(PhaseError, match=r"Hint: 'cls' is frozen: graph.unfreeze\('cls'\)\.$"):
        fitted.run_phase(train)
    for first in (OnlyFit(), WithPartialFit()):
        two = experiment(aa.ModelNode("sc", first, data.reference()), aa.ModelNode("cls", WithPartialFit(), "sc"))
        with pytest.raises(PhaseError, match=r"FitPhase\('fit', data=..., nodes='sc'\)"):
            two.run_phase(train)


VALUES = [None, True, -1, 3.5, float("nan"), "", "x", b"x", [], [3], {}, object(), int, len]


def calls() -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    """What users call, with arguments that are right."""
    node = aa.ModelNode("fit", OnlyFit(), source().reference())

    def planned(label: Any, **settings: Any) -> Any:
        return experiment(node).plan(aa.FitPhase(label, **settings))

    settings = {"accelerator": "cpu", "final_device": "cpu", "strict": True, "compile": "off", "residency": "auto"}
    return {
        "Estimator": (aa.Estimator, {"estimator": OnlyFit(), "method": "predict", "output_dtype": "float32"}),
        "FitPhase": (planned, {"label": "f", "data": "train", "nodes": ["fit"], "batch_size": 4, **settings}),
        "from_split": (aa.FitPhase.from_split, {"label": "f", "split": "train", "nodes": ["fit"]}),
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", calls())
def test_a_wrong_argument_is_an_error_with_a_hint_or_valid(name: str) -> None:
    call, right = calls()[name]
    call(**right)
    refused = 0
    for argument, value in ((argument, value) for argument in right for value in VALUES):
        try:
            calls()[name][0](**{**right, argument: value})
        except AnyaccelError as error:
            assert error.hint, error
            refused += 1
    assert refused > len(VALUES)


def judge() -> aa.EvalPhase:
    return aa.EvalPhase("v", data="val", metrics=["mse"])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (aa.TrainPhase("t", data="train", losses=[aa.AppliedLoss("mse", on="net")]), "run a FitPhase first"),
        (judge(), r"run a FitPhase first, FitPhase\('fit'"),
    ],
)
def test_an_estimator_is_asked_before_it_is_fitted(wrong: Any, message: str) -> None:
    class Mean(OnlyFit):
        def predict(self, x):
            return super().predict(x).mean(axis=1)

    unfitted = experiment(aa.ModelNode("net", Mean(), source().reference(target=["y"])))
    with pytest.raises(PhaseError, match=rf"an estimator that is not fitted\. Hint: {message}"):
        unfitted.run_phase(wrong)
    assert unfitted.run(aa.FitPhase("fit", data="train", nodes="net"), judge())[1].metrics["mse"] >= 0


def test_a_learning_rate_is_not_sought_with_estimators_that_learn() -> None:
    class Mean:
        def partial_fit(self, x: Any, y: Any) -> None:
            self.mean_ = y.mean()

        def predict(self, x: Any) -> Any:
            return np.full((len(x), 1), getattr(self, "mean_", 0.0), np.float32)

    data = source()
    nodes = [aa.ModelNode("net", aa.SequentialMLP(1), data.reference()), aa.ModelNode("mean", Mean(), data.reference())]
    phase = aa.TrainPhase("t", data="train", losses=[aa.AppliedLoss("mse", on="net")])
    with pytest.raises(PhaseError, match=r"'mean' would learn by partial_fit.*Hint: freeze it.*freeze\('mean'\)"):
        aa.find_learning_rate(aa.ModelGraph(nodes, "adam"), phase)


def test_an_array_is_no_dtype() -> None:
    with pytest.raises(EstimatorError, match="is not a floating dtype"):
        aa.Estimator(OnlyFit(), output_dtype=np.zeros(2))


def test_weights_of_rows_in_fit_are_called_sample_weight() -> None:
    table, settings = {"x": X, "y": X[:, 0]}, {"loss": "mse", "target": "y", "epochs": 1, "progress": "none"}
    with pytest.raises(ArgumentError, match=r"fit has no argument 'weights'\. Hint: it is called 'sample_weight'\."):
        aa.fit(aa.SequentialMLP(1), table, weights=np.ones(len(X)), **settings)
    assert aa.fit(aa.SequentialMLP(1), table, sample_weight=np.ones(len(X)), **settings).results.loss.size
