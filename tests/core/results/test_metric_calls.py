"""Metrics of the user's: how functions and metric objects are called."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from anyaccel import EvalPhase, Metric
from anyaccel.errors import SpecError

OUTPUTS, TARGETS = np.array([[1.0], [2.0], [4.0]]), np.array([2.0, 2.0, 2.0])


def relative(y_true, y_pred, scale=1.0):
    return scale * np.mean((y_pred - y_true) / y_true)


@pytest.mark.parametrize(
    "function",
    [
        lambda y_true, y_pred: float(y_true[0] * 10 + y_pred[0]),
        lambda y_true, y_score, weight=1: float(y_true[0] * 10 + y_score[0]),
        lambda targets, outputs: float(targets[0] * 10 + outputs[0]),
        lambda target, prediction: float(target[0] * 10 + prediction[0]),
        lambda labels, logits: float(labels[0] * 10 + logits[0]),
        lambda y, y_hat: float(y[0] * 10 + y_hat[0]),
        lambda y, pred: float(y[0] * 10 + pred[0]),
        lambda expected, output: float(expected[0] * 10 + output[0]),
        lambda y, p: float(y[0] * 10 + p[0]),
    ],
)
def test_a_function_that_names_the_targets_first_gets_them_first(function):
    assert Metric(function).compute(OUTPUTS, TARGETS) == 21.0


def test_a_function_of_other_names_gets_the_outputs_first():
    assert Metric(lambda a, b: float(a[0] * 10 + b[0])).compute(OUTPUTS, TARGETS) == 12.0
    assert Metric(lambda y_hat, y: float(y_hat[0] * 10 + y[0])).compute(OUTPUTS, TARGETS) == 12.0
    assert Metric(lambda x, y: float(x[0] * 10 + y[0])).compute(OUTPUTS, TARGETS) == 12.0
    assert Metric(lambda y, x: float(y[0] * 10 + x[0])).compute(OUTPUTS, TARGETS) == 12.0
    assert Metric(max, label="most").compute(np.array(3.0), np.array(4.0)) == 4.0  # its parameters are not known


def test_a_partial_has_the_name_and_order_of_its_function():
    metric = Metric(partial(relative, scale=2.0))
    assert metric.label == "relative"
    assert metric.compute(OUTPUTS, TARGETS) == pytest.approx(2 * (7 / 3 - 2) / 2)


def test_outputs_and_targets_that_would_broadcast_come_as_one_number_per_sample():
    shapes = []
    metric = Metric(lambda outputs, targets: shapes.append((outputs.shape, targets.shape)) or 0.0)
    metric.compute(OUTPUTS, TARGETS)
    metric.compute(OUTPUTS, OUTPUTS)
    metric.compute(np.zeros((3, 2, 1)), np.zeros((3, 2)))
    metric.compute(np.zeros((3, 4)), TARGETS)
    assert shapes == [((3,), (3,)), ((3, 1), (3, 1)), ((3, 2), (3, 2)), ((3, 4), (3,))]


class MeanOfKeras:
    """The methods of a Keras metric."""

    name = "mean_ratio"

    def __init__(self):
        self.values = []

    def reset_state(self):
        self.values = []

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.values.append(float(np.mean(y_true) / np.mean(y_pred)))

    def result(self):
        return np.float32(sum(self.values))

    def __call__(self, y_true, y_pred):
        raise AssertionError("an object is not called")


class SumOfTorchmetrics:
    """The methods of a metric of torchmetrics."""

    def __init__(self):
        self.total = 0.0

    def reset(self):
        self.total = 0.0

    def update(self, preds, target):
        self.total += float(np.sum(preds) * 10 + np.sum(target))

    def compute(self):
        return self.total


def test_objects_with_states_are_reset_and_given_all(experiment):
    ratio, total = Metric(MeanOfKeras()), Metric(SumOfTorchmetrics())
    assert (ratio.label, total.label) == ("mean_ratio", "SumOfTorchmetrics")
    for _ in range(2):
        assert ratio.compute(OUTPUTS, TARGETS) == pytest.approx(2 / (7 / 3))
        assert total.compute(OUTPUTS, TARGETS) == 76.0
    for given in (SumOfTorchmetrics(), MeanOfKeras()):  # one need not be in a list
        metrics = experiment.run_phase(EvalPhase("e", data="last", metrics=given, outputs=["guess"])).metrics
        assert set(metrics) == {f"guess.{Metric(given).label}", f"wide.{Metric(given).label}"}


def test_functions_and_scorers_of_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    outputs, targets = np.array([1.0, 2.0, 4.0]), np.array([2.0, 2.0, 2.0])
    expected = metrics.mean_absolute_percentage_error(targets, outputs)
    assert Metric(metrics.mean_absolute_percentage_error).compute(outputs, targets) == expected
    classes = Metric(partial(metrics.precision_score, average="macro", zero_division=0))
    assert classes.compute(np.array([0, 0, 1]), np.array([0, 1, 1])) == 0.75
    with pytest.raises(
        SpecError, match=r"is a scorer, which is called with an estimator.* Hint: pass its score function"
    ):
        Metric(metrics.get_scorer("f1_macro"))


def test_a_function_that_wants_classes_is_answered_with_the_name_of_the_metric(experiment):
    metrics = pytest.importorskip("sklearn.metrics")
    with pytest.raises(SpecError, match=r"metric 'f1_score' on node 'guess' raised .* Hint: write metrics=\['f1'\]"):
        experiment.run_phase(EvalPhase("e", data="all", metrics=[Metric(metrics.f1_score, "guess")]))
