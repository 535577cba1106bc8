"""TensorFlow's functions under NumPy's names: the namespace that the adapter computes with (`ArrayOps.xp`).

`tnp.experimental_enable_numpy_behavior` would do the same, but for the whole process. Python numbers take the dtype of
the other operand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any

import tensorflow as tf

from anyaccel_tensorflow.tf_functions import run_alone

abs = tf.abs
copy = tf.identity
exp = tf.exp
float32 = tf.float32
isfinite = tf.math.is_finite
log = tf.math.log
log1p = tf.math.log1p
reshape = tf.reshape
sign = tf.sign
sqrt = tf.sqrt
tanh = tf.tanh


def _alone(function: Callable[..., Any]) -> Callable[..., Any]:
    return wraps(function)(partial(run_alone, function))


@_alone
def any(x: Any, axis: int | None = None, keepdims: bool = False) -> Any:
    """Return whether any element is true, as in NumPy."""
    return tf.reduce_any(x, axis, keepdims)


@_alone
def all(x: Any, axis: int | None = None, keepdims: bool = False) -> Any:
    """Return whether all elements are true, as in NumPy."""
    return tf.reduce_all(x, axis, keepdims)


@_alone
def max(x: Any, axis: int | None = None, keepdims: bool = False) -> Any:
    """Return the largest elements, as in NumPy."""
    return tf.reduce_max(x, axis, keepdims)


@_alone
def sum(x: Any, axis: int | None = None, keepdims: bool = False) -> Any:
    """Add up elements, as in NumPy."""
    return tf.reduce_sum(x, axis, keepdims)


@_alone
def concatenate(arrays: Sequence[Any], axis: int = 0) -> Any:
    """Concatenate arrays, as in NumPy."""
    return tf.concat(list(arrays), axis)


@_alone
def stack(arrays: Sequence[Any], axis: int = 0) -> Any:
    """Stack arrays, as in NumPy."""
    return tf.stack(list(arrays), axis)


def zeros_like(x: Any) -> Any:
    """Return zeros of the shape and dtype of an array, as in NumPy."""
    if not tf.executing_eagerly():
        return tf.zeros_like(x)
    with tf.device(x.device):
        return tf.raw_ops.ZerosLike(x=x)  # a single operation, unlike tf.zeros_like


def zeros(shape: Sequence[int]) -> Any:
    """Return float32 zeros, as in NumPy."""
    return tf.zeros(shape)


def full_like(x: Any, value: float) -> Any:
    """Return a constant array of the shape and dtype of an array, as in NumPy."""
    return zeros_like(x) + tf.cast(value, x.dtype)


def maximum(a: Any, b: Any) -> Any:
    """Return the larger elements of two arrays, as in NumPy."""
    return tf.maximum(*_same_dtype(a, b))


def minimum(a: Any, b: Any) -> Any:
    """Return the smaller elements of two arrays, as in NumPy."""
    return tf.minimum(*_same_dtype(a, b))


def where(condition: Any, a: Any, b: Any) -> Any:
    """Choose elements from two arrays by a condition, as in NumPy."""
    return tf.where(condition, *_same_dtype(a, b))


def _same_dtype(a: Any, b: Any) -> tuple[Any, Any]:
    dtype = next(x.dtype for x in (a, b) if isinstance(x, tf.Tensor))
    return tf.convert_to_tensor(a, dtype), tf.convert_to_tensor(b, dtype)
