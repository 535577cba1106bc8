"""Probabilities, classes and scores of a fitted model, in the conventions of scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np

from anyaccel.specs import Loss

CLASSES, YES_OR_NO = "cross_entropy", "binary_cross_entropy"


def class_probabilities(outputs: np.ndarray, loss: Loss) -> np.ndarray:
    """Return probabilities in float64 for a model's outputs: logits of classes, or of yes and no.

    >>> import numpy as np
    >>> from anyaccel.fitting.probabilities import class_probabilities
    >>> from anyaccel.specs import Loss
    >>> class_probabilities(np.zeros((1, 4), "float32"), Loss("cross_entropy"))
    array([[0.25, 0.25, 0.25, 0.25]])

    Args:
        outputs: Outputs [n, classes], or [n, ..., classes] with the class axis of the loss; for binary_cross_entropy
            [n] or [n, k].
        loss: cross_entropy or binary_cross_entropy.

    Returns:
        An array with the shape of the outputs; for binary_cross_entropy with one output [n, 2], the probabilities of no
        and of yes.
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


def accuracy(targets: Any, predicted: Any) -> float:
    """Return the fraction of rows whose predictions all equal the targets."""
    is_equal = np.asarray(targets) == np.asarray(predicted)
    return float(is_equal.reshape(len(is_equal), -1).all(axis=1).mean())
