"""Metrics of scores and probabilities of classes, each as scikit-learn's function of this name computes it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np

from anyaccel.errors import SpecError
from anyaccel.metrics.class_values import UndefinedValue, is_scores, probabilities, scored_classes


def roc_auc(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Area under the receiver operating characteristic of class 1, of two classes."""
    scores, truth = scored_classes("roc_auc", outputs, targets)
    if scores.ndim == 2:
        raise SpecError(
            f"roc_auc is that of two classes, and there are {scores.shape[1]} scores per sample",
            available="roc_auc_ovr, roc_auc_ovo, roc_auc_ovr_weighted, roc_auc_ovo_weighted",
            hint="use 'roc_auc_ovr', each class against the rest",
        )
    return _area(scores, truth == 1)


def roc_auc_ovr(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Mean area under the curve of each class against the rest."""
    return _over_classes("roc_auc_ovr", _area, outputs, targets, weighted=False)


def roc_auc_ovr_weighted(outputs: np.ndarray, targets: np.ndarray) -> float:
    """As roc_auc_ovr, each class weighted by how often it is true."""
    return _over_classes("roc_auc_ovr_weighted", _area, outputs, targets, weighted=True)


def roc_auc_ovo(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Mean area under the curve of each class against each other."""
    return _over_pairs("roc_auc_ovo", outputs, targets, weighted=False)


def roc_auc_ovo_weighted(outputs: np.ndarray, targets: np.ndarray) -> float:
    """As roc_auc_ovo, each pair of classes weighted by how often they are true."""
    return _over_pairs("roc_auc_ovo_weighted", outputs, targets, weighted=True)


def average_precision(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Mean of the precisions at each score, weighted by the gain in recall; of many classes, their mean."""
    return _over_classes("average_precision", _precision_over_recall, outputs, targets, weighted=False)


def log_loss(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Mean negative logarithm of the probability of the true class."""
    _, truth = scored_classes("log_loss", outputs, targets)
    chances = probabilities(outputs)
    smallest = np.finfo(chances.dtype).eps
    return float(np.mean(-np.log(np.clip(chances[np.arange(len(truth)), truth], smallest, 1 - smallest))))


def brier_score(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Mean squared error of probabilities, summed over classes; of two classes, that of class 1."""
    _, truth = scored_classes("brier_score", outputs, targets)
    chances = probabilities(outputs).astype(np.float64)
    errors = np.sum((np.eye(chances.shape[1])[truth] - chances) ** 2, axis=1)
    return float(np.mean(errors)) * (0.5 if chances.shape[1] == 2 else 1.0)


def top_k(k: int) -> Callable[[np.ndarray, np.ndarray], float]:
    """The metric of how often the true class is among the `k` with the highest scores."""

    def top_k_accuracy(outputs: np.ndarray, targets: np.ndarray) -> float:
        """How often the true class is among those with the highest scores."""
        _, truth = scored_classes("top_k_accuracy", outputs, targets)
        n_classes = outputs.shape[1] if is_scores(outputs) else 2
        if n_classes <= k:
            return UndefinedValue(1.0, f"of {n_classes} classes the true one is always among {k}")
        best = np.argsort(outputs, axis=1, kind="stable")[:, ::-1][:, :k]  # of equal scores, the last class first
        return float(np.mean((best == truth[:, None]).any(axis=1)))

    return top_k_accuracy


Area = Callable[[np.ndarray, np.ndarray], float]


def _over_classes(name: str, area: Area, outputs: np.ndarray, targets: np.ndarray, *, weighted: bool) -> float:
    """The mean over classes; as in scikit-learn one without targets makes it undefined, unless it has no weight."""
    scores, truth = scored_classes(name, outputs, targets)
    if scores.ndim == 1:
        return area(scores, truth == 1)
    counts = np.bincount(truth, minlength=scores.shape[1])
    taken = np.flatnonzero(counts) if weighted else range(len(counts))
    areas = [area(scores[:, index], truth == index) for index in taken]
    mean = float(np.average(areas, weights=counts[taken] if weighted else None))
    return UndefinedValue(mean, _absent(counts)) if not counts.all() else mean


def _over_pairs(name: str, outputs: np.ndarray, targets: np.ndarray, *, weighted: bool) -> float:
    """The mean over the pairs of the classes that targets have, as in scikit-learn."""
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


def _area(scores: np.ndarray, positive: np.ndarray) -> float:
    """Chance that a positive sample has a higher score than a negative one; equal scores count half."""
    n_positive = int(positive.sum())
    n_negative = len(positive) - n_positive
    if not n_positive or not n_negative:
        return UndefinedValue(float("nan"), f"all targets are of class {int(bool(n_positive))}")
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2  # of equal scores, the mean rank
    return float((ranks[places][positive].sum() - n_positive * (n_positive + 1) / 2) / (n_positive * n_negative))


def _precision_over_recall(scores: np.ndarray, positive: np.ndarray) -> float:
    if not positive.any():
        return UndefinedValue(0.0, "no target is of class 1")
    values, places = np.unique(scores, return_inverse=True)
    hits = np.cumsum(np.bincount(places, weights=positive, minlength=len(values))[::-1])  # from the highest score on
    total = np.cumsum(np.bincount(places, minlength=len(values))[::-1])
    return float(np.sum(np.diff(hits, prepend=0) / hits[-1] * (hits / total)))
