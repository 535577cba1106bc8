"""The formulas of docs/reference/formulas.md once more, in NumPy and float64, apart from core's own code."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from anyaccel.specs import Optimizer

Array = np.ndarray[Any, np.dtype[Any]]


def mean_squared_error(y: Array, t: Array) -> tuple[float, float]:
    """Sum of squared differences, and their number."""
    return float(np.square(y - t).sum()), float(y.size)


def mean_absolute_error(y: Array, t: Array) -> tuple[float, float]:
    """Sum of absolute differences, and their number."""
    return float(np.abs(y - t).sum()), float(y.size)


def cross_entropy(y: Array, t: Array) -> tuple[float, float]:
    """Sum of negative log-probabilities of the targets (indices, or probabilities), and the number of samples."""
    logs = np.log(np.exp(y) / np.exp(y).sum(-1, keepdims=True))
    chances = np.eye(y.shape[-1])[t] if t.ndim < y.ndim else t
    return float(-(chances * logs).sum()), float(len(y))


def binary_cross_entropy(y: Array, t: Array) -> tuple[float, float]:
    """Sum of negative log-probabilities of the bits, and their number."""
    chance = 1.0 / (1.0 + np.exp(-y))
    return float(-(t * np.log(chance) + (1 - t) * np.log(1 - chance)).sum()), float(y.size)


LOSSES: Mapping[str, Callable[[Array, Array], tuple[float, float]]] = {
    "mse": mean_squared_error,
    "mae": mean_absolute_error,
    "cross_entropy": cross_entropy,
    "binary_cross_entropy": binary_cross_entropy,
}


def loss(name: str, outputs: Array, targets: Array) -> tuple[float, float]:
    """A named loss as (sum, weight)."""
    whole = targets if targets.dtype.kind in "iu" else targets.astype(np.float64)
    return LOSSES[name](outputs.astype(np.float64), whole)


def clip_scale(gradients: Sequence[Array], limit: float) -> float:
    """The factor by which all gradients of one optimizer are multiplied."""
    norm = math.sqrt(sum(float(np.square(g.astype(np.float64)).sum()) for g in gradients))
    return min(1.0, limit / (norm + 1e-6))


def trained(
    recipe: Optimizer, values: Mapping[str, Array], gradients: Sequence[Sequence[Array]], scale: float = 1.0
) -> dict[str, Array]:
    """The parameters after one step for each list of gradients (one gradient for each parameter, in order)."""
    one = {"sgd": _descend, "momentum": _descend, "adam": _adam, "adamw": _adam}[recipe.name]
    found = {}
    for i, (name, value) in enumerate(values.items()):
        mine = [scale * step[i].astype(np.float64) for step in gradients]
        found[name] = one(recipe, value.astype(np.float64), mine)
    return found


def _descend(recipe: Optimizer, w: Array, gradients: Sequence[Array]) -> Array:
    u, decay = recipe.settings["momentum"], recipe.settings["weight_decay"]
    velocity = np.zeros_like(w)
    for t, gradient in enumerate(gradients, 1):
        g = gradient + decay * w
        velocity = u * velocity + g
        w = w - recipe.rate(t - 1) * (g + u * velocity if recipe.settings["nesterov"] else velocity)
    return w


def _adam(recipe: Optimizer, w: Array, gradients: Sequence[Array]) -> Array:
    (b1, b2), eps, decay = recipe.settings["betas"], recipe.settings["eps"], recipe.settings["weight_decay"]
    m = v = np.zeros_like(w)
    for t, g in enumerate(gradients, 1):
        lr = recipe.rate(t - 1)
        if recipe.name == "adamw":
            w = w * (1 - lr * decay)
        else:
            g = g + decay * w
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g * g
        w = w - lr / (1 - b1**t) * m / (np.sqrt(v) / math.sqrt(1 - b2**t) + eps)
    return w
