"""Metrics of predicted classes; each computes the same as scikit-learn's function with this name."""

from __future__ import annotations

import numpy as np

from anyaccel.errors import SpecError
from anyaccel.metrics.class_values import classes, is_scores

AVERAGES = ("macro", "micro", "weighted")


def accuracy(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Compute the fraction of samples that are classified correctly.

    Outputs are scores [n, classes] with class indices [n] or [n, 1] or probabilities [n, classes] as targets; or logits
    [n] or [n, 1] of class 1 with targets of 0 and 1; or integer classes.
    """
    predicted, truth = classes("accuracy", outputs, targets)
    return float(np.mean(predicted == truth))


def f1(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Compute the harmonic mean of precision and recall of class 1, for the classes 0 and 1; 0 if both are 0."""
    predicted, truth = classes("f1", outputs, targets)
    more = is_scores(outputs) and outputs.shape[1] > 2
    if more or not (_are_0_and_1(predicted) and _are_0_and_1(truth)):
        raise SpecError(
            "f1 needs the classes 0 and 1, but the targets have others",
            available=", ".join(f"f1_{average}" for average in AVERAGES),
            hint="use an average over classes: 'f1_macro'",
        )
    hits, marked, true = (np.array([part.sum()]) for part in ((predicted == 1) & (truth == 1), predicted, truth))
    return float(_f1(hits, marked, true)[0])


def f1_average(average: str, outputs: np.ndarray, targets: np.ndarray) -> float:
    """Compute an average of f1 over the classes that occur: `"macro"`, `"micro"` or `"weighted"`."""
    predicted, truth = classes(f"f1_{average}", outputs, targets)
    labels, indices = np.unique(np.concatenate([predicted, truth]), return_inverse=True)
    first, second = indices[: len(truth)], indices[len(truth) :]
    hits, marked, true = (np.bincount(part, minlength=len(labels)) for part in (first[first == second], first, second))
    if average == "micro":
        return float(_f1(*(part.sum(keepdims=True) for part in (hits, marked, true)))[0])
    return float(np.average(_f1(hits, marked, true), weights=true if average == "weighted" else None))


def _f1(hits: np.ndarray, marked: np.ndarray, true: np.ndarray) -> np.ndarray:
    """Return F1 of each class, from its counts of correct predictions, predictions and targets."""
    both = marked + true
    return np.asarray(np.divide(2 * hits, both, out=np.zeros(len(hits)), where=both != 0))


def _are_0_and_1(values: np.ndarray) -> bool:
    return values.dtype.kind in "biuf" and bool(np.isin(values, (0, 1)).all())
