"""The formulas of docs/reference/formulas.md in NumPy and float64, written independently of core's own code."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from anyaccel.specs import Optimizer

Array = np.ndarray[Any, np.dtype[Any]]


def mean_squared_error(y: Array, t: Array) -> tuple[float, float]:
    """Sum of squared differences, and their count."""
    return float(np.square(y - t).sum()), float(y.size)


def mean_absolute_error(y: Array, t: Array) -> tuple[float, float]:
    """Sum of absolute differences, and their count."""
    return float(np.abs(y - t).sum()), float(y.size)


def cross_entropy(y: Array, t: Array) -> tuple[float, float]:
    """Sum of negative log-probabilities of the targets (indices, or probabilities), and the number of samples."""
    log_probabilities = np.log(np.exp(y) / np.exp(y).sum(-1, keepdims=True))
    probabilities = np.eye(y.shape[-1])[t] if t.ndim < y.ndim else t
    return float(-(probabilities * log_probabilities).sum()), float(len(y))


def binary_cross_entropy(y: Array, t: Array) -> tuple[float, float]:
    """Sum of negative log-probabilities of binary targets, and their count."""
    p = 1.0 / (1.0 + np.exp(-y))
    return float(-(t * np.log(p) + (1 - t) * np.log(1 - p)).sum()), float(y.size)


LOSSES: Mapping[str, Callable[[Array, Array], tuple[float, float]]] = {
    "mse": mean_squared_error,
    "mae": mean_absolute_error,
    "cross_entropy": cross_entropy,
    "binary_cross_entropy": binary_cross_entropy,
}


def loss(name: str, outputs: Array, targets: Array) -> tuple[float, float]:
    """Return a named loss as (sum, weight)."""
    converted = targets if targets.dtype.kind in "iu" else targets.astype(np.float64)
    return LOSSES[name](outputs.astype(np.float64), converted)


def weighted_loss(
    name: str, outputs: Array, targets: Array, settings: Mapping[str, Any], weights: Sequence[Array] = ()
) -> tuple[float, float]:
    """Return a named loss with settings as (sum, weight); `weights` belong to its samples, or also to its positions."""
    y = outputs.astype(np.float64)
    if name == "cross_entropy":
        y = np.moveaxis(y, settings.get("class_axis", -1), -1)
        n_classes, smoothing = y.shape[-1], settings.get("label_smoothing", 0.0)
        of_classes = np.asarray(settings.get("class_weights", [1.0] * n_classes))
        has_class = targets != settings.get("ignore_index", -1)
        index = np.where(has_class, targets, 0)
        q = np.eye(n_classes)[index] * (1 - smoothing) + smoothing / n_classes
        log_probabilities = y - np.log(np.exp(y).sum(-1, keepdims=True))
        losses, counts = -(of_classes * q * log_probabilities).sum(-1), of_classes[index] * has_class
    else:
        losses = _ELEMENTS[name](y, targets.astype(np.float64))
        counts = np.ones(losses.shape)
    factor = np.ones(max(map(np.shape, weights), key=len, default=losses.shape))
    for weight in weights:
        factor = factor * weight.reshape(*weight.shape, *[1] * (factor.ndim - weight.ndim))
    # Elements that share a weight add the mean of their losses.
    shared = tuple(range(factor.ndim, losses.ndim)) if name != "cross_entropy" else ()
    factor = factor.reshape(*factor.shape, *[1] * (losses.ndim - factor.ndim - len(shared)))
    means, counts = losses.mean(axis=shared), counts.mean(axis=shared)
    return float(np.where(factor * counts == 0, 0.0, factor * means).sum()), float((factor * counts).sum())


_ELEMENTS: Mapping[str, Callable[[Array, Array], Array]] = {
    "mse": lambda y, t: np.square(y - t),
    "mae": lambda y, t: np.abs(y - t),
    "binary_cross_entropy": lambda y, t: np.log(1 + np.exp(-y)) + (1 - t) * y,
}


def clip_scale(gradients: Sequence[Array], limit: float) -> float:
    """Return the factor that clips the gradients of one optimizer to a global norm."""
    norm = math.sqrt(sum(float(np.square(g.astype(np.float64)).sum()) for g in gradients))
    return min(1.0, limit / (norm + 1e-6))


def train(
    optimizer: Optimizer, values: Mapping[str, Array], gradients: Sequence[Sequence[Array]], scale: float = 1.0
) -> dict[str, Array]:
    """Return the parameters after one optimizer step for each list of gradients (one for each parameter, in order)."""
    rule = {"sgd": _sgd, "momentum": _sgd, "adam": _adam, "adamw": _adam}[optimizer.name]
    limit = math.inf if optimizer.clip_value is None else optimizer.clip_value
    scaled = [[np.clip(scale * g.astype(np.float64), -limit, limit) for g in step] for step in gradients]
    return {
        name: rule(optimizer, value.astype(np.float64), [step[i] for step in scaled])
        for i, (name, value) in enumerate(values.items())
    }


def _sgd(optimizer: Optimizer, w: Array, gradients: Sequence[Array]) -> Array:
    u, decay = optimizer.settings["momentum"], optimizer.settings["weight_decay"]
    velocity = np.zeros_like(w)
    for t, gradient in enumerate(gradients, 1):
        g = gradient + decay * w
        velocity = u * velocity + g
        w = w - optimizer.rate(t - 1) * (g + u * velocity if optimizer.settings["nesterov"] else velocity)
    return w


def _adam(optimizer: Optimizer, w: Array, gradients: Sequence[Array]) -> Array:
    (b1, b2), eps, decay = optimizer.settings["betas"], optimizer.settings["eps"], optimizer.settings["weight_decay"]
    m = v = np.zeros_like(w)
    for t, g in enumerate(gradients, 1):
        lr = optimizer.rate(t - 1)
        if optimizer.name == "adamw":
            w = w * (1 - lr * decay)
        else:
            g = g + decay * w
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g * g
        w = w - lr / (1 - b1**t) * m / (np.sqrt(v) / math.sqrt(1 - b2**t) + eps)
    return w
