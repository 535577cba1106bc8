"""Functions of which layers are made: each returns its output and its pullback."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from anyaccel import rng
from anyaccel.adapter.model_specs import ACTIVATIONS
from anyaccel.arguments import shown
from anyaccel.errors import SpecError
from anyaccel.numpy_backend.sim_array import Array, put_like

Pullback = Callable[[Array], Array]


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


def convolution(x: Array, weight: Array, bias: Array) -> tuple[Array, Callable[[Array], tuple[Array, Array, Array]]]:
    """A cross-correlation with stride 1 and zero padding that keeps height and width; pulls back to x, weight and bias.

    Args:
        x: [batch, in, height, width].
        weight: [out, in, size, size], size odd.
        bias: [out].
    """
    patches, patches_pullback = im2col(x, weight.shape[-1])
    columns = patches.reshape(len(x), math.prod(weight.shape[1:]), math.prod(x.shape[2:]))
    rows = weight.reshape(len(weight), columns.shape[1])
    y = rows @ columns + bias.reshape(-1, 1)

    def pullback(c: Array) -> tuple[Array, Array, Array]:
        flat = c.reshape(y.shape)
        weight_gradient = np.tensordot(flat, columns, axes=((0, 2), (0, 2))).reshape(weight.shape)
        x_cotangent = patches_pullback((rows.T @ flat).reshape(patches.shape))
        return x_cotangent, weight_gradient, np.sum(flat, axis=(0, 2))

    return y.reshape(len(x), len(weight), *x.shape[2:]), pullback


def im2col(x: Array, size: int) -> tuple[Array, Pullback]:
    """The patch of size by size around each pixel, with zeros beyond the edges.

    Args:
        x: [batch, channels, height, width].
        size: odd.

    Returns:
        [batch, channels, size * size, height, width], and the pullback.
    """
    height, width = x.shape[2:]
    edge = size // 2
    padded = np.pad(x, ((0, 0), (0, 0), (edge, edge), (edge, edge)))
    offsets = [(slice(i, i + height), slice(j, j + width)) for i in range(size) for j in range(size)]

    def pullback(c: Array) -> Array:
        back = np.zeros_like(padded)
        for index, (rows, columns) in enumerate(offsets):
            back[:, :, rows, columns] += c[:, :, index]
        return back[:, :, edge : edge + height, edge : edge + width]

    return np.stack([padded[:, :, rows, columns] for rows, columns in offsets], axis=2), pullback


def max_pool(x: Array, size: int) -> tuple[Array, Pullback]:
    """The maximum of each window of size by size, without overlap; rows and columns that fill no window are dropped.

    The cotangent goes to the first of equal values, row by row.

    Args:
        x: [batch, channels, height, width].
        size: height and width of a window.
    """
    batch, channels, height, width = x.shape
    high, wide = height // size, width // size
    split = (batch, channels, high, size, wide, size)
    covered = (slice(None), slice(None), slice(high * size), slice(wide * size))
    windows = x[covered].reshape(split).transpose(0, 1, 2, 4, 3, 5).reshape(batch, channels, high, wide, size * size)
    first = np.expand_dims(np.argmax(windows, axis=-1), -1)

    def pullback(c: Array) -> Array:
        spread, back = np.zeros_like(windows), np.zeros_like(x)
        np.put_along_axis(spread, first, np.expand_dims(c, -1), axis=-1)
        blocks = spread.reshape(batch, channels, high, wide, size, size).transpose(0, 1, 2, 4, 3, 5)
        back[covered] = blocks.reshape(x[covered].shape)
        return back

    return np.take_along_axis(windows, first, axis=-1)[..., 0], pullback


def activation(name: str, x: Array) -> tuple[Array, Pullback]:
    """An activation by name, one of `anyaccel.adapter.model_specs.ACTIVATIONS`.

    Raises:
        SpecError: an unknown name.
    """
    if not isinstance(name, str) or name not in _ACTIVATIONS:
        raise SpecError(f"unknown activation {shown(name)}", available=", ".join(ACTIVATIONS), hint="use one of these")
    return _ACTIVATIONS[name](x)


def _relu(x: Array) -> tuple[Array, Pullback]:
    return np.maximum(x, 0), lambda c: np.where(x > 0, c, np.zeros_like(c))


def _tanh(x: Array) -> tuple[Array, Pullback]:
    y = np.tanh(x)
    return y, lambda c: c * (1 - y * y)


def _sigmoid(x: Array) -> tuple[Array, Pullback]:
    y = 0.5 * (1 + np.tanh(0.5 * x))  # never overflows, as exp(-x) would
    return y, lambda c: c * y * (1 - y)


def _identity(x: Array) -> tuple[Array, Pullback]:
    return x, lambda c: c


_ACTIVATIONS: dict[str, Callable[[Array], tuple[Array, Pullback]]] = {
    "relu": _relu,
    "tanh": _tanh,
    "sigmoid": _sigmoid,
    "identity": _identity,
}


def dropout(x: Array, rate: float, key: int) -> tuple[Array, Pullback]:
    """Zero each element with probability `rate`, as `key` determines, and scale the others by 1 / (1 - rate)."""
    kept = rng.uniform(key, x.shape, 0.0, 1.0) >= rate
    mask = put_like((kept / (1.0 - rate)).astype(x.dtype), x)
    return x * mask, lambda c: c * mask


def normalize(x: Array, mean: Array, variance: Array, eps: float) -> tuple[Array, Pullback]:
    """`(x - mean) / sqrt(variance + eps)` for each feature, with constant statistics [features]."""
    deviation = np.sqrt(variance + eps)
    return (x - mean) / deviation, lambda c: c / deviation


def batch_norm(x: Array, eps: float) -> tuple[Array, Array, Array, Pullback]:
    """Features normalized over the batch, its mean and biased variance, and the pullback through all three.

    Args:
        x: [batch, features].
        eps: added to the variance.
    """
    mean, variance = np.mean(x, axis=0), np.var(x, axis=0)
    y, _ = normalize(x, mean, variance, eps)

    def pullback(c: Array) -> Array:
        centred = c - np.mean(c, axis=0) - y * np.mean(c * y, axis=0)
        return np.asanyarray(centred / np.sqrt(variance + eps))

    return y, mean, variance, pullback
