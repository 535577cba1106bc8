"""Probabilities, classes and scores of a fitted model, in the conventions of scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np

from anyaccel.specs import Loss

CLASSES, YES_OR_NO = "cross_entropy", "binary_cross_entropy"


def class_probabilities(outputs: np.ndarray, loss: Loss) -> np.ndarray:
    """Probabilities in float64 of what a model gives: logits of classes, or of yes and no.

    Args:
        outputs: [n, classes], or [n, ..., classes] with the axis of classes that the loss has; for
            binary_cross_entropy [n] or [n, k].
        loss: cross_entropy or binary_cross_entropy.

    Returns:
        the shape of the outputs; for binary_cross_entropy with one output [n, 2], the probability of no and of yes.
    """
    logits = outputs.astype(np.float64)
    if loss.name == CLASSES:
        axis = loss.kwargs.get("class_axis", -1)
        shifted = np.exp(logits - logits.max(axis=axis, keepdims=True))
        return np.asarray(shifted / shifted.sum(axis=axis, keepdims=True))
    small = np.exp(-np.abs(logits))
    yes = np.where(logits >= 0, 1.0, small) / (1.0 + small)
    no = np.where(logits >= 0, small, 1.0) / (1.0 + small)
    if yes.size == len(yes):
        return np.stack([no.reshape(-1), yes.reshape(-1)], axis=1)
    return np.asarray(yes)


def r2(targets: np.ndarray, predicted: np.ndarray) -> float:
    """The share of the variance that is explained, mean over the targets; as scikit-learn's `r2_score`.

    A target that is the same in all rows counts 1 where it is predicted exactly, else 0.
    """
    targets, predicted = (np.asarray(values, np.float64).reshape(len(values), -1) for values in (targets, predicted))
    residual = ((targets - predicted) ** 2).sum(axis=0)
    total = ((targets - targets.mean(axis=0)) ** 2).sum(axis=0)
    scores = 1.0 - residual / np.where(total > 0, total, 1.0)
    scores = np.where(total > 0, scores, np.where(residual > 0, 0.0, 1.0))
    return float(scores.mean())


def accuracy(targets: Any, predicted: Any) -> float:
    """The share of rows in which all predictions are the targets."""
    is_equal = np.asarray(targets) == np.asarray(predicted)
    return float(is_equal.reshape(len(is_equal), -1).all(axis=1).mean())
