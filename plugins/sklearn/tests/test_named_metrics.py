"""Named metrics beside scikit-learn's functions of the same names, and what they refuse."""

from __future__ import annotations

import warnings
from functools import partial

import numpy as np
import pytest

from anyaccel import Metric
from anyaccel.errors import SpecError, UndefinedMetricWarning
from anyaccel.metrics import is_higher_better, metric_names

AVERAGES = ("macro", "micro", "weighted")


def softmax(logits):
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def value(name, outputs, targets, **settings):
    return Metric(name, **settings).compute(outputs, targets)


def close(actual, expected):
    assert actual == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.fixture(scope="module")
def sk():
    return pytest.importorskip("sklearn.metrics")


@pytest.fixture(params=[2, 3, 6])
def scores(request):
    """Logits [200, classes] with some equal ones, and true classes [200]."""
    rng = np.random.default_rng(request.param)
    logits = 2 * rng.normal(size=(200, request.param))
    logits[:30] = np.round(logits[:30])
    return logits, rng.integers(0, request.param, 200)


def test_metrics_of_classes_equal_those_of_scikit_learn(scores, sk):
    logits, true = scores
    predicted = logits.argmax(axis=1)
    for name in ("accuracy", "balanced_accuracy", "cohen_kappa"):
        close(value(name, logits, true), getattr(sk, f"{name}_score")(true, predicted))
        assert (
            value(name, predicted, true) == value(name, logits, true) == value(f"{name}_score", logits, true[:, None])
        )
    close(value("matthews_corrcoef", logits, true), sk.matthews_corrcoef(true, predicted))
    for name in ("precision", "recall", "f1", "jaccard"):
        function = getattr(sk, f"{name}_score")
        for average in AVERAGES:
            close(value(f"{name}_{average}", logits, true), function(true, predicted, average=average))
        if logits.shape[1] == 2:
            close(value(name, logits, true), function(true, predicted))
            close(value(name, logits[:, 1:] - logits[:, :1], true), function(true, predicted))


@pytest.mark.parametrize("are_probabilities", [True, False])
def test_metrics_of_scores_equal_those_of_scikit_learn(scores, sk, are_probabilities):
    logits, true = scores
    chances, two = softmax(logits), logits.shape[1] == 2
    outputs, wanted = chances if are_probabilities else logits, chances[:, 1] if two else chances
    close(value("log_loss", outputs, true), sk.log_loss(true, chances))
    close(value("brier_score", outputs, true), sk.brier_score_loss(true, wanted))
    close(value("average_precision", outputs, true), sk.average_precision_score(true, wanted))
    for way in ("ovr", "ovo"):
        close(value(f"roc_auc_{way}", outputs, true), sk.roc_auc_score(true, wanted, multi_class=way))
        expected = sk.roc_auc_score(true, wanted, multi_class=way, average="macro" if two else "weighted")
        close(value(f"roc_auc_{way}_weighted", outputs, true), expected)
    if two:
        close(value("roc_auc", outputs, true), sk.roc_auc_score(true, wanted))
        single = chances[:, 1:] if are_probabilities else logits[:, 1:] - logits[:, :1]
        for name in ("roc_auc", "log_loss", "brier_score", "average_precision", "accuracy", "f1"):
            close(value(name, single, true, from_logits=not are_probabilities), value(name, outputs, true))
    for k, name in ((2, "top_k_accuracy"), (3, "top_3_accuracy"), (5, "top_5_accuracy")):
        if k < logits.shape[1]:
            close(value(name, logits, true), sk.top_k_accuracy_score(true, logits, k=k))


def test_classes_that_are_never_predicted_or_never_true_count_as_in_scikit_learn(sk):
    logits, true = np.eye(5)[[0, 0, 1, 3, 0]], np.array([0, 1, 1, 2, 0])
    for name in ("precision", "recall", "f1", "jaccard"):
        for average in AVERAGES:
            function = partial(getattr(sk, f"{name}_score"), average=average, zero_division=0)
            close(value(f"{name}_{average}", logits, true), function(true, logits.argmax(axis=1)))
    with warnings.catch_warnings(action="ignore"):
        expected = sk.balanced_accuracy_score(true, logits.argmax(axis=1))
    close(value("balanced_accuracy", logits, true), expected)


BINARY = np.array([0.1, 0.2, 0.7])
CHANCES = np.array([[0.2, 0.3, 0.5], [0.6, 0.2, 0.2], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]])
TWO_OF_THREE, ONE_OF_THREE = np.array([0, 1, 1, 0]), np.zeros(4, int)
NAN = float("nan")


def several(way, average, true):
    return lambda sk: sk.roc_auc_score(true, CHANCES, multi_class=way, average=average, labels=[0, 1, 2])


@pytest.mark.parametrize(
    ("name", "outputs", "targets", "expected", "cause"),
    [
        ("roc_auc", BINARY, [0, 0, 0], lambda sk: sk.roc_auc_score([0, 0, 0], BINARY), "all targets are of class 0"),
        ("roc_auc", BINARY, [1, 1, 1], lambda sk: sk.roc_auc_score([1, 1, 1], BINARY), "all targets are of class 1"),
        ("roc_auc_ovo", BINARY, [1, 1, 1], lambda sk: NAN, "all targets are of class 1"),
        ("roc_auc_ovr", CHANCES, TWO_OF_THREE, several("ovr", "macro", TWO_OF_THREE), "no target is of class 2"),
        ("roc_auc_ovr_weighted", CHANCES, TWO_OF_THREE, several("ovr", "weighted", TWO_OF_THREE), "no target is of"),
        ("roc_auc_ovo", CHANCES, TWO_OF_THREE, several("ovo", "macro", TWO_OF_THREE), "no target is of class 2"),
        ("roc_auc_ovo_weighted", CHANCES, TWO_OF_THREE, several("ovo", "weighted", TWO_OF_THREE), "no target is of"),
        ("roc_auc_ovr", CHANCES, ONE_OF_THREE, several("ovr", "macro", ONE_OF_THREE), "no target is of class 1"),
        ("roc_auc_ovr_weighted", CHANCES, ONE_OF_THREE, several("ovr", "weighted", ONE_OF_THREE), "no target is of"),
        ("roc_auc_ovo", CHANCES, ONE_OF_THREE, several("ovo", "macro", ONE_OF_THREE), "no target is of class 1"),
        ("roc_auc_ovo_weighted", CHANCES, ONE_OF_THREE, lambda sk: NAN, "no target is of class 1"),  # it divides by 0
        (
            "average_precision",
            BINARY,
            [0, 0, 0],
            lambda sk: sk.average_precision_score([0, 0, 0], BINARY),
            "no target is of class 1",
        ),
        ("top_3_accuracy", CHANCES, [0, 1, 1, 0], lambda sk: sk.top_k_accuracy_score(
            [0, 1, 1, 0], CHANCES, k=3, labels=[0, 1, 2]), "with 3 classes, the true class is always among the top 3"),
        ("cohen_kappa", np.zeros(3, int), np.zeros(3, int), lambda sk: sk.cohen_kappa_score([0] * 3, [0] * 3), "one"),
        ("r2", np.array([1.5]), np.array([1.0]), lambda sk: sk.r2_score([1.0], [1.5]), "there is one sample"),
        ("mean_squared_log_error", np.array([-2.0]), np.array([1.0]), lambda sk: NAN, "but the outputs have -2"),
        ("root_mean_squared_log_error", np.array([1.0]), np.array([-3.0]), lambda sk: NAN, "the targets have -3"),
    ],
)  # fmt: skip
def test_a_metric_that_is_not_defined_is_what_scikit_learn_gives_with_a_warning(
    name, outputs, targets, expected, cause, sk
):
    with warnings.catch_warnings(action="ignore"):
        number = expected(sk)
    with pytest.warns(UndefinedMetricWarning, match=f"metric '{name}' is not defined: .*{cause}") as told:
        measured = value(name, outputs, np.array(targets), from_logits=None if outputs.ndim > 1 else True)
    assert measured == pytest.approx(number, nan_ok=True)
    assert sum(issubclass(warning.category, UndefinedMetricWarning) for warning in told) == 1


@pytest.mark.parametrize("name", ["precision", "recall", "f1", "jaccard", "accuracy", "matthews_corrcoef"])
def test_without_a_positive_sample_other_metrics_are_those_of_scikit_learn(name, sk):
    predicted, true = np.zeros(4, int), np.zeros(4, int)
    function = getattr(sk, f"{name}_score", None) or getattr(sk, name)
    with warnings.catch_warnings(action="ignore"):
        number = function(true, predicted)
    assert value(name, predicted, true) == number


@pytest.mark.parametrize(("outputs", "targets"), [([1.0], [1.5]), ([1.5, 2.0], [1.0, 1.0]), ([0.0, 0.0], [0.0, 0.0])])
def test_of_one_sample_and_of_constant_targets_numbers_are_those_of_scikit_learn(outputs, targets, sk):
    for name in (*NUMBERS, "max_error"):
        with warnings.catch_warnings(action="ignore"):
            number = getattr(sk, name)(targets, outputs)
            assert value(name, np.array(outputs), np.array(targets)) == pytest.approx(number, nan_ok=True), name


def test_of_no_sample_all_metrics_are_nan():
    for name in metric_names():
        with pytest.warns(UndefinedMetricWarning, match=f"metric '{name}' is not defined: no sample counts"):
            assert np.isnan(value(name, np.zeros((0, 3)), np.zeros(0, int)))


def test_float32_probabilities_are_taken_as_such(sk):
    chances = softmax(np.random.default_rng(0).normal(size=(50, 3))).astype("float32")
    chances[0] = [0, 1, 0]
    true = np.r_[0, np.arange(49) % 3]
    # scikit-learn 1.8 computes in float32; another smallest probability would change the first digit
    assert value("log_loss", chances, true) == pytest.approx(sk.log_loss(true, chances), rel=1e-6)


NUMBERS = (
    *("mean_squared_error", "mean_absolute_error", "r2_score", "explained_variance_score"),
    *("root_mean_squared_error", "median_absolute_error", "mean_absolute_percentage_error"),
    *("mean_squared_log_error", "root_mean_squared_log_error"),
)


@pytest.mark.parametrize("shape", [(50,), (50, 1), (50, 3)])
def test_metrics_of_numbers_equal_those_of_scikit_learn(sk, shape):
    rng = np.random.default_rng(0)
    outputs, targets = np.abs(rng.normal(size=shape)), np.abs(rng.normal(size=shape))
    targets.reshape(50, -1)[:, 2:] = 1.5  # a constant one
    for name in NUMBERS:
        close(value(name, outputs, targets), getattr(sk, name)(targets, outputs))
        assert Metric(name).label == name
    if outputs.size == 50:
        close(value("max_error", outputs, targets), sk.max_error(targets.ravel(), outputs.ravel()))
        close(value("rmse", outputs, targets), sk.root_mean_squared_error(targets, outputs))
    close(value("rmse", outputs, targets) ** 2, value("mse", outputs, targets))


def test_outputs_with_nan_have_no_metric():
    logits = np.array([[0.1, 0.9], [np.nan, np.nan]])
    for name in metric_names():
        targets = np.array([1, 0]) if Metric(name).name not in ("mse", "mae") else logits
        assert np.isnan(value(name, logits, targets)), name


LOGITS, TRUE = np.random.default_rng(0).normal(size=(6, 3)), np.array([0, 1, 2, 0, 1, 2])


@pytest.mark.parametrize(
    ("name", "outputs", "targets", "message"),
    [
        ("f1", LOGITS, TRUE, r"f1 needs the classes 0 and 1.* Available: f1_macro, f1_micro, .* Hint: .*'f1_macro'"),
        ("recall", TRUE, TRUE, r"recall needs the classes 0 and 1"),
        ("recall", np.array(["1", "0"]), np.array(["1", "0"]), r"recall needs the classes 0 and 1"),
        ("roc_auc", LOGITS, TRUE, r"roc_auc needs two classes, but there are 3 .* Hint: use 'roc_auc_ovr'"),
        ("roc_auc_ovo", TRUE, TRUE, r"roc_auc_ovo needs a score for each class, but the outputs are cl.*Hint: use"),
        ("accuracy", LOGITS, np.ones((6, 3)), r"accuracy: the targets are not one class per sample"),
        ("accuracy", LOGITS, np.array([0, 1, 2, 0, 1, np.nan]), r"accuracy: the targets have class index nan"),
        ("accuracy", LOGITS, TRUE + 0.5, r"accuracy: the targets have class index 0\.5"),
        ("log_loss", LOGITS, TRUE + 1, r"log_loss: the targets have class index 3, but there are 3 scores"),
    ],
)  # fmt: skip
def test_what_has_no_value_is_refused(name, outputs, targets, message):
    with pytest.raises(SpecError, match=message):
        value(name, outputs, targets)


def test_a_single_output_that_looks_like_a_probability_is_warned_of_unless_it_is_said_which_it_is():
    chances, true = np.array([[0.1], [0.9], [0.4]]), np.array([0, 1, 0])
    with pytest.warns(UserWarning, match=r"all outputs are from 0 to 1.*write Metric\('accuracy', from_logits=False\)"):
        assert value("accuracy", chances, true) == pytest.approx(1 / 3)
    assert value("accuracy", chances, true, from_logits=False) == 1.0
    assert value("accuracy", chances, true, from_logits=True) == pytest.approx(1 / 3)
    assert value("mse", chances, true) > 0  # of numbers: no warning
    with pytest.raises(SpecError, match=r"with from_logits=False, outputs must be from 0 to 1\. Hint: leave"):
        value("accuracy", 2 * chances, true, from_logits=False)
    again = Metric.from_config(Metric("accuracy", from_logits=False).get_config())
    assert again.from_logits is False


def test_names_of_other_libraries_lead_to_those_that_there_are():
    with pytest.raises(SpecError, match=r"Hint: did you mean 'roc_auc'\?"):
        Metric("auc")
    with pytest.raises(SpecError, match=r"Hint: did you mean 'top_5_accuracy'\?"):
        Metric("sparse_top_k_categorical_accuracy")
    with pytest.raises(SpecError, match=r"Available: accuracy, .*roc_auc.*did you mean 'rmse'"):
        Metric("rsme")


@pytest.mark.parametrize("name", metric_names())
def test_a_metric_by_name_goes_there_and_back(name):
    metric = Metric(name, on="a", targets="fs.y", label="mine")
    assert Metric.from_config(metric.get_config()) == metric and metric.name == name
    assert Metric(name).label == name


def test_every_direction_is_that_of_a_metric():
    lower = {"mse", "rmse", "mae", "log_loss", "brier_score", "root_mean_squared_error", "median_absolute_error"}
    lower |= {"max_error", "mean_absolute_percentage_error", "mean_squared_log_error", "root_mean_squared_log_error"}
    assert {name for name in metric_names() if not is_higher_better(name)} == lower
    assert is_higher_better("val_net.roc_auc_score") is True and is_higher_better("val_brier_score_loss") is False


@pytest.mark.parametrize(
    ("outputs", "targets"),
    [((4, 3), (4, 2)), ((4,), (1,)), ((1,), (4,)), ((4, 1), (4, 4)), ((4, 2, 3), (4, 3, 2)), ((4, 6), (4, 2, 3))],
)
def test_shapes_that_would_broadcast_or_fold_are_refused(outputs, targets):
    for name in metric_names():
        with pytest.raises((SpecError, TypeError)):
            Metric(name).measure(np.zeros(outputs), np.zeros(targets))


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
def test_numbers_that_are_not_finite_end_no_training(number):
    outputs, targets = np.arange(6.0), np.arange(6.0)[::-1].copy()
    broken = targets.copy()
    broken[2] = number
    for name in ("max_error", "explained_variance", "root_mean_squared_error", "mean_absolute_percentage_error"):
        assert not np.isfinite(value(name, outputs, broken)), name
        assert not np.isfinite(value(name, broken, targets)), name
    logits = np.where(np.arange(6) == 2, np.inf, outputs)
    assert value("roc_auc", logits, np.array([0, 0, 1, 1, 0, 1])) == pytest.approx(8 / 9)
