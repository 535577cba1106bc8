"""Metrics of numbers, each as scikit-learn's function of this name computes it: the mean over outputs of a sample."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from anyaccel.metrics.class_values import UndefinedValue, aligned


def mse(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Mean squared error over all elements."""
    predicted, truth = _columns(outputs, targets)
    return float(np.mean((predicted - truth) ** 2))


def rmse(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Square root of the mean squared error over all elements."""
    return float(np.sqrt(mse(outputs, targets)))


def root_mean_squared_error(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Square root of the mean squared error of each output, then the mean over outputs: rmse if there is one."""
    predicted, truth = _columns(outputs, targets)
    return float(np.mean(np.sqrt(np.mean((predicted - truth) ** 2, axis=0))))


def mae(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Mean absolute error over all elements."""
    predicted, truth = _columns(outputs, targets)
    return float(np.mean(np.abs(predicted - truth)))


def median_absolute_error(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Median of the absolute errors."""
    predicted, truth = _columns(outputs, targets)
    return float(np.mean(np.median(np.abs(predicted - truth), axis=0)))


def max_error(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Largest absolute error."""
    predicted, truth = _columns(outputs, targets)
    return float(np.max(np.abs(predicted - truth)))


def mean_absolute_percentage_error(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Mean absolute error relative to the targets, as a fraction: 0.1 is ten percent."""
    predicted, truth = _columns(outputs, targets)
    return float(np.mean(np.abs(predicted - truth) / np.maximum(np.abs(truth), np.finfo(np.float64).eps)))


def mean_squared_log_error(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Mean squared error of log(1 + value)."""
    return _of_logarithms(mse, outputs, targets)


def root_mean_squared_log_error(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Root mean squared error of log(1 + value)."""
    return _of_logarithms(root_mean_squared_error, outputs, targets)


def r2(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Coefficient of determination; of constant targets 1 if they are met, else 0; NaN of fewer than two samples."""
    predicted, truth = _columns(outputs, targets)
    if len(truth) < 2:
        return UndefinedValue(float("nan"), "there is one sample")
    errors = np.sum((truth - predicted) ** 2, axis=0)
    return _explained(errors, np.sum((truth - truth.mean(axis=0)) ** 2, axis=0))


def explained_variance(outputs: np.ndarray, targets: np.ndarray) -> float:
    """As r2, but a constant error does not count."""
    predicted, truth = _columns(outputs, targets)
    return _explained(np.var(truth - predicted, axis=0), np.var(truth, axis=0))


def _explained(errors: np.ndarray, variation: np.ndarray) -> float:
    parts = 1.0 - np.divide(errors, variation, out=(errors != 0).astype(float), where=variation != 0)
    return float(np.mean(np.where(np.isnan(errors), np.nan, parts)))


def _of_logarithms(
    measure: Callable[[np.ndarray, np.ndarray], float], outputs: np.ndarray, targets: np.ndarray
) -> float:
    """A measure of log(1 + value). A model may give values that have none: they end no training."""
    predicted, truth = _columns(outputs, targets)
    for whose, values in (("outputs", predicted), ("targets", truth)):
        if (values <= -1).any():
            return UndefinedValue(float("nan"), f"it needs values above -1, and the {whose} have {values.min():g}")
    return measure(np.log1p(predicted), np.log1p(truth))


def _columns(outputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both in float64, [n, outputs of a sample]."""
    truth = aligned(targets, outputs)
    shape = (len(outputs), -1) if outputs.size else (0, 1)
    return tuple(array.astype(np.float64).reshape(shape) for array in (outputs, truth))  # type: ignore[return-value]
