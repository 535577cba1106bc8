"""The named metrics that core does not have, with scikit-learn's functions, which are imported when they are used.

Outputs and targets mean the same as for the metrics of core, and undefined metrics have the same value. scikit-learn's
functions receive classes and scores that they accept, and issue no messages. Numbers that are not finite are computed
with, not refused, so that a diverging model does not end the training.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np

from anyaccel.errors import SpecError
from anyaccel.metrics.class_values import (
    UndefinedValue,
    aligned,
    classes,
    is_distribution,
    is_scores,
    true_classes,
    zero_or_one,
)
from anyaccel.metrics.named import Measure, NamedMetric
from anyaccel.metrics.regression import columns_of

AVERAGES = ("macro", "micro", "weighted")


def computed(function: str, truth: np.ndarray, outputs: np.ndarray, **settings: Any) -> float:
    """Return the result of a function of `sklearn.metrics`."""
    import sklearn
    from sklearn import metrics

    with sklearn.config_context(assume_finite=True), warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return float(getattr(metrics, function)(truth, outputs, **settings))


# -- of classes --------------------------------------------------------------------------------------------------------


def _of_classes(name: str, function: str, outputs: np.ndarray, targets: np.ndarray, **settings: Any) -> float:
    """Compute a function of true and predicted classes of any kind."""
    predicted, truth = classes(name, outputs, targets)
    labels, indices = np.unique(np.concatenate([predicted, truth]), return_inverse=True)
    if function == "cohen_kappa_score" and len(labels) == 1:
        return UndefinedValue(float("nan"), "outputs and targets contain only one class, the same one")
    return computed(function, indices[len(truth) :], indices[: len(truth)], **settings)


def _of_class_1(name: str, outputs: np.ndarray, targets: np.ndarray) -> float:
    predicted, truth = classes(name, outputs, targets)
    more = is_scores(outputs) and outputs.shape[1] > 2
    if more or not (_are_0_and_1(predicted) and _are_0_and_1(truth)):
        raise SpecError(
            f"{name} needs the classes 0 and 1, but the targets have others",
            available=", ".join(f"{name}_{average}" for average in AVERAGES),
            hint=f"use an average over classes: '{name}_macro'",
        )
    return computed(f"{name}_score", truth == 1, predicted == 1, zero_division=0)


def _are_0_and_1(values: np.ndarray) -> bool:
    return values.dtype.kind in "biuf" and bool(np.isin(values, (0, 1)).all())


def _averaged(name: str) -> tuple[NamedMetric, ...]:
    """Return a metric of class 1, and its averages over classes."""
    measures: list[Measure] = [partial(_of_class_1, name)]
    for average in AVERAGES:
        settings: dict[str, Any] = {"average": average, "zero_division": 0}
        measures.append(partial(_of_classes, f"{name}_{average}", f"{name}_score", **settings))
    return tuple(NamedMetric(measure, of_classes=True, higher_is_better=True) for measure in measures)


precision, precision_macro, precision_micro, precision_weighted = _averaged("precision")
recall, recall_macro, recall_micro, recall_weighted = _averaged("recall")
jaccard, jaccard_macro, jaccard_micro, jaccard_weighted = _averaged("jaccard")


def _class_metric(name: str, function: str) -> NamedMetric:
    return NamedMetric(partial(_of_classes, name, function), of_classes=True, higher_is_better=True)


balanced_accuracy = _class_metric("balanced_accuracy", "balanced_accuracy_score")
matthews_corrcoef = _class_metric("matthews_corrcoef", "matthews_corrcoef")
cohen_kappa = _class_metric("cohen_kappa", "cohen_kappa_score")


# -- of scores and probabilities of classes ----------------------------------------------------------------------------


def scored_classes(name: str, outputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return scores [n, classes] or those of class 1, [n], and true classes [n]; see `class_values.classes`.

    For two classes, the score is the probability of class 1 if rows are probabilities, and the difference of both
    scores otherwise.

    Raises:
        SpecError: See `classes`; or the outputs are classes, which have no scores.
    """
    if outputs.dtype.kind not in "fc":
        raise SpecError(
            f"{name} needs a score for each class, but the outputs are classes",
            hint="use a metric of classes, such as 'f1_macro', or return scores from the node: for an "
            "estimator with anyaccel.Estimator(..., method='predict_proba')",
        )
    if not is_scores(outputs):
        truth = aligned(targets, outputs)
        return outputs.reshape(-1), zero_or_one(name, truth).reshape(-1)
    truth = true_classes(name, outputs, targets)
    if outputs.shape[1] > 2:
        return probabilities(outputs), truth
    wide = outputs.astype(np.float64)
    return (wide[:, 1] if is_distribution(outputs) else wide[:, 1] - wide[:, 0]), truth


def probabilities(outputs: np.ndarray) -> np.ndarray:
    """Return the probability of each class, [n, classes]; for one logit, of classes 0 and 1.

    Rows that are probabilities already (none negative, with a sum of 1) keep their values and dtype. Other scores are
    converted by the softmax, one logit by the sigmoid, in float64.
    """
    if is_scores(outputs):
        if is_distribution(outputs):
            return outputs
        logits = outputs.astype(np.float64)
    else:
        single = outputs.reshape(len(outputs), -1).astype(np.float64)
        logits = np.concatenate([np.zeros_like(single), single], axis=1)
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def _area(scores: np.ndarray, positive: np.ndarray) -> float:
    """Compute the area under the receiver operating characteristic from the order of scores, also infinite ones."""
    if positive.all() or not positive.any():
        return UndefinedValue(float("nan"), f"all targets are of class {int(positive.any())}")
    return computed("roc_auc_score", positive, np.unique(scores, return_inverse=True)[1].reshape(-1))


def _precision_over_recall(scores: np.ndarray, positive: np.ndarray) -> float:
    if not positive.any():
        return UndefinedValue(0.0, "no target is of class 1")
    return computed("average_precision_score", positive, np.unique(scores, return_inverse=True)[1].reshape(-1))


def _roc_auc(outputs: np.ndarray, targets: np.ndarray) -> float:
    scores, truth = scored_classes("roc_auc", outputs, targets)
    if scores.ndim == 2:
        raise SpecError(
            f"roc_auc needs two classes, but there are {scores.shape[1]} scores per sample",
            available="roc_auc_ovr, roc_auc_ovo, roc_auc_ovr_weighted, roc_auc_ovo_weighted",
            hint="use 'roc_auc_ovr' to compare each class with the rest",
        )
    return _area(scores, truth == 1)


def _over_classes(
    name: str, area: Callable[[np.ndarray, np.ndarray], float], weighted: bool, outputs: np.ndarray, targets: np.ndarray
) -> float:
    """Compute the mean over classes; a class without targets makes it undefined, unless it has no weight.

    Averaged here: scikit-learn refuses targets that lack a class in some versions.
    """
    scores, truth = scored_classes(name, outputs, targets)
    if scores.ndim == 1:
        return area(scores, truth == 1)
    counts = np.bincount(truth, minlength=scores.shape[1])
    taken = np.flatnonzero(counts) if weighted else range(len(counts))
    areas = [area(scores[:, index], truth == index) for index in taken]
    mean = float(np.average(areas, weights=counts[taken] if weighted else None))
    return UndefinedValue(mean, _absent(counts)) if not counts.all() else mean


def _over_pairs(name: str, weighted: bool, outputs: np.ndarray, targets: np.ndarray) -> float:
    """Compute the mean over the pairs of classes in the targets; averaged here as in `_over_classes`."""
    scores, truth = scored_classes(name, outputs, targets)
    if scores.ndim == 1:
        return _area(scores, truth == 1)
    counts = np.bincount(truth, minlength=scores.shape[1])
    areas, weights = [], []
    for first, second in combinations(np.flatnonzero(counts), 2):
        rows = (truth == first) | (truth == second)
        both = (_area(scores[rows, index], truth[rows] == index) for index in (first, second))
        areas.append(sum(both) / 2)
        weights.append(counts[first] + counts[second])
    mean = float(np.average(areas, weights=weights if weighted else None)) if areas else float("nan")
    return UndefinedValue(mean, _absent(counts)) if not counts.all() else mean


def _absent(counts: np.ndarray) -> str:
    return f"no target is of class {int(np.argmin(counts > 0))}"


def _log_loss(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Compute the mean negative logarithm of the probability of the true class.

    A separate formula: scikit-learn's rounding of float32 probabilities depends on its version.
    """
    _, truth = scored_classes("log_loss", outputs, targets)
    chances = probabilities(outputs)
    smallest = np.finfo(chances.dtype).eps
    return float(np.mean(-np.log(np.clip(chances[np.arange(len(truth)), truth], smallest, 1 - smallest))))


def _brier_score(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Compute the mean squared error of probabilities, summed over classes; for two classes, that of class 1.

    A separate formula: scikit-learn supports several classes only from 1.7.
    """
    _, truth = scored_classes("brier_score", outputs, targets)
    chances = probabilities(outputs).astype(np.float64)
    errors = np.sum((np.eye(chances.shape[1])[truth] - chances) ** 2, axis=1)
    return float(np.mean(errors)) * (0.5 if chances.shape[1] == 2 else 1.0)


def _top_k(k: int, outputs: np.ndarray, targets: np.ndarray) -> float:
    """Compute how often the true class is among the `k` highest scores; for equal scores, later classes come first."""
    _, truth = scored_classes("top_k_accuracy", outputs, targets)
    n_classes = outputs.shape[1] if is_scores(outputs) else 2
    if n_classes <= k:
        return UndefinedValue(1.0, f"with {n_classes} classes, the true class is always among the top {k}")
    return computed("top_k_accuracy_score", truth, outputs, k=k, labels=range(n_classes))


def _score_metric(measure: Measure, *, higher_is_better: bool = True) -> NamedMetric:
    return NamedMetric(measure, of_classes=True, higher_is_better=higher_is_better)


top_k_accuracy, top_3_accuracy, top_5_accuracy = (_score_metric(partial(_top_k, k)) for k in (2, 3, 5))
roc_auc = _score_metric(_roc_auc)
roc_auc_ovr = _score_metric(partial(_over_classes, "roc_auc_ovr", _area, False))
roc_auc_ovr_weighted = _score_metric(partial(_over_classes, "roc_auc_ovr_weighted", _area, True))
roc_auc_ovo = _score_metric(partial(_over_pairs, "roc_auc_ovo", False))
roc_auc_ovo_weighted = _score_metric(partial(_over_pairs, "roc_auc_ovo_weighted", True))
average_precision = _score_metric(partial(_over_classes, "average_precision", _precision_over_recall, False))
log_loss = _score_metric(_log_loss, higher_is_better=False)
brier_score = _score_metric(_brier_score, higher_is_better=False)


# -- of numbers --------------------------------------------------------------------------------------------------------


def _of_numbers(function: str, outputs: np.ndarray, targets: np.ndarray) -> float:
    """Compute a function of numbers, the mean over outputs of a sample."""
    predicted, truth = columns_of(outputs, targets)
    return computed(function, truth, predicted)


def _explained_variance(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Compute r2 without the effect of a constant error; scikit-learn replaces results that are not finite."""
    predicted, truth = columns_of(outputs, targets)
    return computed("explained_variance_score", truth, predicted) if np.isfinite(predicted - truth).all() else np.nan


def _max_error(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Compute the largest absolute error, over all outputs of a sample."""
    predicted, truth = columns_of(outputs, targets)
    return computed("max_error", truth.reshape(-1), predicted.reshape(-1))


def _of_logarithms(function: str, outputs: np.ndarray, targets: np.ndarray) -> float:
    """Compute a function of log(1 + value); undefined logarithms of a model's outputs do not end the training."""
    predicted, truth = columns_of(outputs, targets)
    for whose, values in (("outputs", predicted), ("targets", truth)):
        if (values <= -1).any():
            return UndefinedValue(float("nan"), f"it needs values above -1, but the {whose} have {values.min():g}")
    return computed(function, np.log1p(truth), np.log1p(predicted))


root_mean_squared_error = NamedMetric(partial(_of_numbers, "root_mean_squared_error"))
median_absolute_error = NamedMetric(partial(_of_numbers, "median_absolute_error"))
max_error = NamedMetric(_max_error)
mean_absolute_percentage_error = NamedMetric(partial(_of_numbers, "mean_absolute_percentage_error"))
mean_squared_log_error = NamedMetric(partial(_of_logarithms, "mean_squared_error"))
root_mean_squared_log_error = NamedMetric(partial(_of_logarithms, "root_mean_squared_error"))
explained_variance = NamedMetric(_explained_variance, higher_is_better=True)
