"""The functions that layers are made of: each gives its output, and the pullback from its cotangent."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from anyaccel import rng
from anyaccel.errors import RecipeError
from anyaccel.models import ACTIVATIONS
from anyaccel.reference.arrays import Array, made_like

Back = Callable[[Array], Array]


def linear(x: Array, weight: Array, bias: Array | None) -> tuple[Array, Callable[[Array], tuple[Array, Array, Array]]]:
    """`x @ weight.T + bias` over the last axis; pulls back to x, weight and bias.

    Args:
        x: [..., in].
        weight: [out, in].
        bias: [out], or None.
    """
    y = x @ weight.T
    if bias is not None:
        y = y + bias

    def pullback(c: Array) -> tuple[Array, Array, Array]:
        rows = c.reshape(-1, c.shape[-1])
        return c @ weight, rows.T @ x.reshape(-1, x.shape[-1]), np.sum(rows, axis=0)

    return y, pullback


def activation(name: str, x: Array) -> tuple[Array, Back]:
    """An activation by name, as in `anyaccel.models.ACTIVATIONS`.

    Raises:
        RecipeError: there is none of this name.
    """
    if name not in _ACTIVATIONS:
        raise RecipeError(f"no activation is called {name!r}", there=", ".join(ACTIVATIONS))
    return _ACTIVATIONS[name](x)


def _relu(x: Array) -> tuple[Array, Back]:
    return np.maximum(x, 0), lambda c: np.where(x > 0, c, np.zeros_like(c))


def _tanh(x: Array) -> tuple[Array, Back]:
    y = np.tanh(x)
    return y, lambda c: c * (1 - y * y)


def _sigmoid(x: Array) -> tuple[Array, Back]:
    y = 0.5 * (1 + np.tanh(0.5 * x))  # never overflows, as exp(-x) would
    return y, lambda c: c * y * (1 - y)


def _identity(x: Array) -> tuple[Array, Back]:
    return x, lambda c: c


_ACTIVATIONS: dict[str, Callable[[Array], tuple[Array, Back]]] = {
    "relu": _relu,
    "tanh": _tanh,
    "sigmoid": _sigmoid,
    "identity": _identity,
}


def dropout(x: Array, rate: float, key: int) -> tuple[Array, Back]:
    """Zero each element with probability `rate`, and scale the rest so that the mean stays; `key` says which."""
    kept = rng.uniform(key, x.shape, 0.0, 1.0) >= rate
    mask = made_like((kept / (1.0 - rate)).astype(x.dtype), x)
    return x * mask, lambda c: c * mask


def normalized(x: Array, mean: Array, variance: Array, eps: float) -> Array:
    """`(x - mean) / sqrt(variance + eps)` for each feature, all [features]."""
    return (x - mean) / np.sqrt(variance + eps)


def batch_normalized(x: Array, eps: float) -> tuple[Array, Array, Array, Back]:
    """Features normalized over the batch, with its mean and (biased) variance, and the pullback through all three.

    Args:
        x: [batch, features].
        eps: added to the variance.
    """
    mean, variance = np.mean(x, axis=0), np.var(x, axis=0)
    y = normalized(x, mean, variance, eps)

    def pullback(c: Array) -> Array:
        centred = c - np.mean(c, axis=0) - y * np.mean(c * y, axis=0)
        return np.asanyarray(centred / np.sqrt(variance + eps))

    return y, mean, variance, pullback
