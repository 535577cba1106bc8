"""Metrics of numbers, computed as scikit-learn's function with this name: the mean over the outputs of a sample."""

from __future__ import annotations

import numpy as np

from anyaccel.metrics.class_values import UndefinedValue, aligned


def mse(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Compute the mean squared error over all elements."""
    predicted, truth = columns_of(outputs, targets)
    return float(np.mean((predicted - truth) ** 2))


def rmse(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Compute the square root of the mean squared error over all elements."""
    return float(np.sqrt(mse(outputs, targets)))


def mae(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Compute the mean absolute error over all elements."""
    predicted, truth = columns_of(outputs, targets)
    return float(np.mean(np.abs(predicted - truth)))


def r2(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Compute the coefficient of determination. For constant targets: 1 if met exactly, otherwise 0; NaN below two
    samples.
    """
    predicted, truth = columns_of(outputs, targets)
    if len(truth) < 2:
        return UndefinedValue(float("nan"), "there is one sample")
    errors = np.sum((truth - predicted) ** 2, axis=0)
    variation = np.sum((truth - truth.mean(axis=0)) ** 2, axis=0)
    parts = 1.0 - np.divide(errors, variation, out=(errors != 0).astype(float), where=variation != 0)
    return float(np.mean(np.where(np.isnan(errors), np.nan, parts)))


def columns_of(outputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return both in float64, [n, outputs of a sample]."""
    truth = aligned(targets, outputs)
    shape = (len(outputs), -1) if outputs.size else (0, 1)
    return tuple(array.astype(np.float64).reshape(shape) for array in (outputs, truth))  # type: ignore[return-value]
