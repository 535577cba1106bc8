"""Metrics of predicted classes, each as scikit-learn's function of this name computes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from anyaccel.errors import SpecError
from anyaccel.metrics.class_values import UndefinedValue, classes, is_scores

AVERAGES = ("macro", "micro", "weighted")


def accuracy(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Fraction of samples classified correctly.

    Outputs are scores [n, classes] with class indices [n] or [n, 1] or probabilities [n, classes] as targets; or
    logits [n] or [n, 1] of class 1 with targets of 0 and 1; or integer classes.
    """
    predicted, truth = classes("accuracy", outputs, targets)
    return float(np.mean(predicted == truth))


def balanced_accuracy(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Mean of the recalls of the classes that the targets have."""
    counts = _Counts("balanced_accuracy", outputs, targets)
    present = counts.true > 0
    return float(np.mean(counts.hits[present] / counts.true[present]))


def precision(hits: np.ndarray, predicted: np.ndarray, true: np.ndarray) -> np.ndarray:
    """Of what was predicted as a class, the fraction that is of it; 0 where nothing was predicted."""
    return _ratio(hits, predicted)


def recall(hits: np.ndarray, predicted: np.ndarray, true: np.ndarray) -> np.ndarray:
    """Of a class, the fraction that was predicted as it; 0 where there is none."""
    return _ratio(hits, true)


def f1(hits: np.ndarray, predicted: np.ndarray, true: np.ndarray) -> np.ndarray:
    """Harmonic mean of precision and recall; 0 where both are."""
    return _ratio(2 * hits, predicted + true)


def jaccard(hits: np.ndarray, predicted: np.ndarray, true: np.ndarray) -> np.ndarray:
    """Of what is of a class or was predicted as it, the fraction that is both."""
    return _ratio(hits, predicted + true - hits)


def matthews_corrcoef(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Correlation of predicted and true classes, from -1 to 1; 0 if either are all the same."""
    counts = _Counts("matthews_corrcoef", outputs, targets)
    n, (predicted, true) = counts.n, (counts.predicted.astype(float), counts.true.astype(float))
    covariance = counts.hits.sum() * n - predicted @ true
    spread = (n**2 - predicted @ predicted) * (n**2 - true @ true)
    return float(covariance / np.sqrt(spread)) if spread > 0 else 0.0


def cohen_kappa(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Agreement beyond chance, at most 1; NaN if there is one class alone."""
    counts = _Counts("cohen_kappa", outputs, targets)
    by_chance = (counts.predicted / counts.n) @ (counts.true / counts.n)
    if by_chance == 1:
        return UndefinedValue(float("nan"), "outputs and targets have one class alone, the same")
    return float((counts.hits.sum() / counts.n - by_chance) / (1 - by_chance))


OfClass = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def averages(name: str, of_class: OfClass) -> dict[str, Callable[[np.ndarray, np.ndarray], float]]:
    """A measure of each class: by its `name` that of class 1, and by `NAME_AVERAGE` averages over classes."""
    of_one: Mapping[str, Callable[[np.ndarray, np.ndarray], float]] = {name: partial(_of_class_1, name, of_class)}
    return {**of_one, **{f"{name}_{average}": partial(_average, name, of_class, average) for average in AVERAGES}}


def _of_class_1(name: str, of_class: OfClass, outputs: np.ndarray, targets: np.ndarray) -> float:
    predicted, truth = classes(name, outputs, targets)
    more = is_scores(outputs) and outputs.shape[1] > 2
    if more or not (_are_0_and_1(predicted) and _are_0_and_1(truth)):
        raise SpecError(
            f"{name} is that of class 1 of the classes 0 and 1, and here there are others",
            available=", ".join(f"{name}_{average}" for average in AVERAGES),
            hint=f"use an average over classes: '{name}_macro'",
        )
    hits, marked, true = (np.array([part.sum()]) for part in ((predicted == 1) & (truth == 1), predicted, truth))
    return float(of_class(hits, marked, true)[0])


def _average(name: str, of_class: OfClass, average: str, outputs: np.ndarray, targets: np.ndarray) -> float:
    counts = _Counts(f"{name}_{average}", outputs, targets)
    parts = (counts.hits, counts.predicted, counts.true)
    if average == "micro":
        return float(of_class(*(part.sum(keepdims=True) for part in parts))[0])
    return float(np.average(of_class(*parts), weights=counts.true if average == "weighted" else None))


class _Counts:
    """How often each class that occurs, sorted, was predicted rightly (`hits`), predicted at all, and is true."""

    def __init__(self, name: str, outputs: np.ndarray, targets: np.ndarray) -> None:
        predicted, truth = classes(name, outputs, targets)
        self.n = len(truth)
        labels, indices = np.unique(np.concatenate([predicted, truth]), return_inverse=True)
        first, second = indices[: self.n], indices[self.n :]
        count = partial(np.bincount, minlength=len(labels))
        self.hits, self.predicted, self.true = count(first[first == second]), count(first), count(second)


def _are_0_and_1(values: np.ndarray) -> bool:
    return values.dtype.kind in "biuf" and bool(np.isin(values, (0, 1)).all())


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.asarray(np.divide(part, whole, out=np.zeros(len(part)), where=whole != 0))
