"""Metrics: golden numbers, and shapes that are aligned or refused but never broadcast."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from anyaccel import EvalPhase, Metric
from anyaccel.errors import ConfigError, GraphError, SpecError
from anyaccel.metrics import METRICS, is_higher_better
from anyaccel.metrics.classification import accuracy
from anyaccel.metrics.regression import mae, mse, r2, rmse

SHAPES = hnp.array_shapes(min_dims=1, max_dims=3, max_side=4)
NUMBERS = st.floats(-100, 100, width=32)


def test_numbers_that_anyone_can_check_by_hand():
    outputs, targets = np.array([1.0, 2.0, 4.0]), np.array([1.0, 4.0, 1.0])
    assert mse(outputs, targets) == pytest.approx((0 + 4 + 9) / 3)
    assert rmse(outputs, targets) == pytest.approx(np.sqrt(13 / 3))
    assert mae(outputs, targets) == pytest.approx(5 / 3)
    assert r2(outputs, targets) == pytest.approx(1 - 13 / 6)
    assert r2(targets, targets) == 1.0
    assert r2(np.full(3, 2.0), targets) == pytest.approx(0.0)


def test_constant_targets_have_an_r2_of_1_if_they_are_met_and_else_of_0():
    assert r2(np.array([1.0, 2.0]), np.array([3.0, 3.0])) == 0.0
    assert r2(np.array([3.0, 3.0]), np.array([3.0, 3.0])) == 1.0
    assert np.isnan(r2(np.array([1.0]), np.array([1.0])))


def test_sums_are_in_double_precision():
    outputs = np.full(10_000, 0.1, "float32")
    assert mse(outputs, np.zeros(10_000, "float32")) == pytest.approx(float(np.float32(0.1)) ** 2, rel=1e-12)
    assert mae(np.full(4, 60_000, "float16"), np.full(4, -60_000, "float16")) == pytest.approx(120_000, rel=1e-3)


@pytest.mark.parametrize("targets", [[2, 0, 1], [[2], [0], [1]], [[0, 0, 1], [1, 0, 0], [0, 1, 0]], [2.0, 0.0, 1.0]])
def test_accuracy_of_scores_takes_indices_or_probabilities(targets):
    scores = np.array([[0.1, 0.2, 0.7], [0.9, 0.0, 0.1], [0.5, 0.2, 0.3]])
    assert accuracy(scores, np.array(targets)) == pytest.approx(2 / 3)


@pytest.mark.parametrize("shape", [(4,), (4, 1)])
@pytest.mark.parametrize("dtype", ["int64", "float32", "bool"])
def test_accuracy_of_logits_takes_zero_and_one(shape, dtype):
    logits = np.array([-2.0, 0.5, 3.0, -0.1]).reshape(shape)
    assert accuracy(logits, np.array([0, 1, 0, 0]).astype(dtype)) == pytest.approx(3 / 4)


def test_accuracy_of_classes_compares_them():
    assert accuracy(np.array([3, 1, 2]), np.array([[3], [1], [0]])) == pytest.approx(2 / 3)
    assert accuracy(np.array([True, False]), np.array([1, 1])) == pytest.approx(1 / 2)


@given(hnp.arrays("float32", SHAPES, elements=NUMBERS), st.data())
def test_single_axes_are_aligned_and_everything_else_is_refused(outputs, data):
    axes = data.draw(st.permutations(range(1, outputs.ndim)))
    targets = outputs.transpose(0, *axes)
    squeezed = tuple(size for size in outputs.shape[1:] if size != 1)
    fits = tuple(size for size in targets.shape[1:] if size != 1) == squeezed
    for measure in (mse, mae, rmse):
        if fits:
            expected = measure(outputs, targets.reshape(outputs.shape))
            assert measure(outputs, targets) == expected
            assert measure(outputs, targets.reshape(len(targets), *squeezed)) == expected
        else:
            with pytest.raises(SpecError, match=r"a metric cannot compare outputs .* with targets"):
                measure(outputs, targets)


@pytest.mark.parametrize("measure", [metric.measure for metric in METRICS.values()])
@pytest.mark.parametrize(
    ("outputs", "targets"),
    [
        ((4, 3), (4, 2)),
        ((4,), (1,)),
        ((1,), (4,)),
        ((4, 1), (4, 4)),
        ((4, 2, 3), (4, 3, 2)),
        ((4, 6), (4, 2, 3)),
        ((4,), ()),
    ],
)
def test_shapes_that_would_broadcast_or_fold_are_refused(measure, outputs, targets):
    with pytest.raises((SpecError, TypeError)):
        measure(np.zeros(outputs), np.zeros(targets))


def test_the_message_names_both_shapes_and_the_remedy():
    with pytest.raises(SpecError) as caught:
        accuracy(np.zeros((4, 3)), np.zeros((4, 2), int))
    assert "a metric cannot compare outputs [4] with targets [4, 2]" in str(caught.value)
    assert "Metric(..., targets='FEATURE_SET.COLUMN')" in str(caught.value)


# -- Metric ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_by_name_goes_there_and_back(name):
    metric = Metric(name, on="a", targets="fs.y", label="mine")
    assert Metric.from_config(metric.get_config()) == metric
    assert Metric(name).label == name and metric.measure is METRICS[name].measure
    assert Metric(metric.measure).name == name


def test_a_function_is_a_metric_under_its_own_name():
    def spread(outputs, targets):
        return float(outputs.max() - targets.min())

    assert Metric(spread).label == "spread"
    with pytest.raises(ConfigError, match=r"which cannot be saved in a configuration. Hint: use a named"):
        Metric(spread).get_config()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("rsme", r"no metric is called 'rsme'. Available: accuracy, .* Hint: did you mean 'rmse'\?"),
        ("rmsle", r"no metric is called 'rmsle'.* Hint: did you mean 'root_mean_squared_log_error'\?"),
        ("neg_mean_squared_error", r"Hint: did you mean 'mse'\?"),
        ("auc", r"Hint: did you mean 'roc_auc'\?"),
        (None, "None is not a metric. Available: accuracy, .* Hint: pass a name or a function"),
        (3, "3 is not a metric"),
        ("acc", r"no metric is called 'acc'.* Hint: did you mean 'accuracy'\?"),
        ("ce", r"Hint: cross_entropy is a loss: write losses=\[AppliedLoss\('cross_entropy', on='NODE'\)\]"),
        (dict, r"<class 'dict'> is not a metric.* Hint: create one: dict\(\)"),
    ],
)
def test_what_is_no_metric_is_told(given, message):
    with pytest.raises(SpecError, match=message):
        Metric(given)


@pytest.mark.parametrize("config", [None, {}, "mse", {"measure": None}, {"measure": "mse", "more": 1}])
def test_what_is_no_configuration_is_told(config):
    with pytest.raises(
        ConfigError, match=r"is not the configuration of a metric. Available: keys: measure, on, targets"
    ):
        Metric.from_config(config)


# -- in a phase --------------------------------------------------------------------------------------------------------


def test_metrics_are_over_all_rows_whatever_the_batches(experiment, data):
    whole = experiment.run_phase(EvalPhase("w", data="all", metrics=[Metric("mse", on="guess")]))
    parts = experiment.run_phase(EvalPhase("p", data="all", metrics=[Metric("mse", on="guess")], batch_size=4))
    expected = np.mean((whole.prediction("guess").reshape(6) - data.array("y")) ** 2)
    assert whole.metrics["mse"] == pytest.approx(expected, rel=1e-6) == parts.metrics["mse"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            lambda outputs, targets: outputs.detach(),
            r"raised AttributeError: .*outputs float32\[6, 1\] and targets float",
        ),
        (lambda outputs, targets: {}["a"], r"raised KeyError: 'a'"),
        (lambda outputs, targets: 1 / 0, r"raised ZeroDivisionError"),
        (lambda outputs, targets: outputs, r": it returned values of shape \[6\], not one number.*Hint: average"),
        (
            lambda outputs, targets: None,
            r": it returned a NoneType, not one number. Hint: end the function with: return",
        ),
        (lambda outputs, targets: {"a": 1.0}, r": it returned a dict with a, not one number. Hint: pass each metric"),
        (lambda outputs, targets: "0.5", r": it returned a str, not one number"),
    ],
)
def test_a_metric_that_fails_or_gives_no_number_is_named(experiment, wrong, message):
    with pytest.raises(SpecError, match=rf"metric 'own' on node 'guess'.*{message}"):
        experiment.run_phase(EvalPhase("w", data="all", metrics=[Metric(wrong, "guess", label="own")]))


def test_a_metric_of_ones_own_is_given_whole_arrays(experiment, data):
    seen = []

    def measure(outputs, targets):
        seen.append((outputs.shape, targets.shape))
        return 7

    result = experiment.run_phase(EvalPhase("w", data="last", metrics=[Metric(measure, "wide", "fs.row", "seven")]))
    assert (seen, result.metrics) == ([((2, 3, 1), (2,))], {"seven": 7.0})


def test_a_metric_without_a_node_judges_every_tail_by_name(experiment):
    result = experiment.run_phase(EvalPhase("w", data="all", metrics=[lambda outputs, targets: len(outputs.shape)]))
    assert result.metrics == {"guess.<lambda>": 1.0, "wide.<lambda>": 3.0}


def test_a_metric_on_a_node_that_is_not_there_is_answered_with_the_closest(experiment):
    with pytest.raises(
        GraphError, match=r"metric 'mse' is on the node 'gues'. Available: guess, wide. Hint: did you mean"
    ):
        experiment.run_phase(EvalPhase("w", data="all", metrics=[Metric("mse", on="gues")]))


def test_every_direction_is_that_of_a_metric():
    for figure in ("f1_macro", "val_f1_score", "val_net.r2_score", "accuracy"):
        assert is_higher_better(figure) is True, figure
    for figure in ("loss", "val_loss", "loss.net", "val_net.loss", "mse", "val_mean_squared_error"):
        assert is_higher_better(figure) is False, figure
    assert is_higher_better("profit") is None and is_higher_better("val_net.profit") is None


def test_f1_of_classes_by_hand():
    predicted, true = np.array([0, 1, 1, 2, 2, 2]), np.array([0, 1, 2, 2, 2, 0])
    of_class = [2 / 3, 2 / 3, 4 / 6]  # 2 hits / (predicted + true)
    assert Metric("f1_macro").compute(predicted, true) == pytest.approx(np.mean(of_class))
    assert Metric("f1_micro").compute(predicted, true) == pytest.approx(4 / 6)
    assert Metric("f1_weighted").compute(predicted, true) == pytest.approx(np.average(of_class, weights=[2, 1, 3]))
    yes, no = np.array([1.0, -1.0, 2.0, 3.0]), np.array([1, 1, 0, 1])
    assert Metric("f1").compute(yes, no) == pytest.approx(2 * 2 / (3 + 3))
    assert Metric("f1").compute(-np.ones(3), np.zeros(3)) == 0.0
    with pytest.raises(SpecError, match=r"f1 needs the classes 0 and 1.* Available: f1_macro, .* Hint: .*'f1_macro'"):
        Metric("f1").compute(predicted, true)
