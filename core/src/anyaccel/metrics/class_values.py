"""Interpret outputs and targets of a classifier: classes, and the probability of each class."""

from __future__ import annotations

import numpy as np

from anyaccel.errors import SpecError


class UndefinedValue(float):
    """The value of a metric that is not defined: the number that scikit-learn returns, and the `cause`."""

    cause: str

    def __new__(cls, value: float, cause: str) -> UndefinedValue:
        """Create the number with its cause."""
        undefined = super().__new__(cls, value)
        undefined.cause = cause
        return undefined


def aligned(targets: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """Return targets in the shape of the outputs if they differ only in axes of size 1; anything else would broadcast.

    Raises:
        SpecError: other shapes.
    """
    if not same_axes(targets, outputs):
        if is_scores(outputs) and targets.size == len(outputs):
            hint = "if these are scores of classes, use a metric of classes, such as 'accuracy'"
        else:
            hint = "name other targets in Metric(..., targets='FEATURE_SET.COLUMN'), or pass a function as metric"
        shapes = f"outputs {list(outputs.shape)} with targets {list(targets.shape)}"
        raise SpecError(f"a metric cannot compare {shapes}", hint=hint)
    return targets.reshape(outputs.shape)


def same_axes(targets: np.ndarray, outputs: np.ndarray) -> bool:
    """Return whether both have the same number of samples and, apart from axes of size 1, the same axes."""
    axes, wanted = ([size for size in array.shape[1:] if size != 1] for array in (targets, outputs))
    return axes == wanted and len(targets) == len(outputs)


def is_scores(outputs: np.ndarray) -> bool:
    """Return whether outputs have a score for each of several classes, [n, classes]."""
    return outputs.dtype.kind in "fc" and outputs.ndim == 2 and outputs.shape[1] > 1


def classes(name: str, outputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the predicted and the true classes, each [n].

    Args:
        name: Name of the metric, for messages.
        outputs: Scores [n, classes]; or logits of class 1, [n] or [n, 1]; or classes, not floating point.
        targets: Class indices [n] or [n, 1], or for scores also probabilities [n, classes].

    Raises:
        SpecError: shapes that do not match, a class without a score, or several classes for one sample.
    """
    if is_scores(outputs):
        return outputs.argmax(axis=1), true_classes(name, outputs, targets)
    truth = aligned(targets, outputs)
    if outputs.dtype.kind not in "fc":
        return outputs.reshape(-1), truth.reshape(-1)
    return (outputs > 0).astype("int64").reshape(-1), zero_or_one(name, truth).reshape(-1)


def true_classes(name: str, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return class indices, integers [n], for scores [n, classes]; see `classes`."""
    if targets.shape == scores.shape:
        if not np.allclose(targets.sum(axis=1, dtype=np.float64), 1.0, atol=1e-2):
            raise SpecError(
                f"{name}: the targets are not one class per sample: their rows do not sum to 1",
                hint="use a separate metric for each label, or pass a function as metric",
            )
        return np.asarray(targets.argmax(axis=1))
    indices, count = aligned(targets, scores[:, 0]), scores.shape[1]
    wrong = indices[~((indices >= 0) & (indices < count) & (indices == np.floor(indices)))]
    if wrong.size:
        raise SpecError(
            f"{name}: the targets have class index {wrong[0]}, but there are {count} scores per sample",
            available=f"0 to {count - 1}",
            hint=f"to ignore it, write Metric({name!r}, ignore_index={wrong[0]:.0f}); otherwise number "
            "the classes from 0",
        )
    return indices.astype("int64")


def is_distribution(scores: np.ndarray) -> bool:
    """Return whether every row of scores [n, classes] is non-negative and sums to 1, within rounding of its dtype."""
    tolerance = np.sqrt(np.finfo(scores.dtype).eps)
    return bool((scores >= 0).all() and np.allclose(scores.sum(axis=1, dtype=np.float64), 1.0, rtol=0, atol=tolerance))


def zero_or_one(name: str, targets: np.ndarray) -> np.ndarray:
    """Return targets of a single output, which are the classes 0 and 1, as integers.

    Raises:
        SpecError: there are other classes.
    """
    if not np.isin(targets, (0, 1)).all():
        raise SpecError(
            f"{name} takes a single output as the logit of class 1, but the targets have {len(np.unique(targets))} "
            "values, not only 0 and 1",
            hint="use a model with one output per class; metrics of numbers are 'r2', 'mae' and 'rmse'",
        )
    return targets.astype("int64")
