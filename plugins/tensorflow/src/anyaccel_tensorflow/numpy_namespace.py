"""TensorFlow's functions by NumPy's names: what `ArrayOps.xp` asks for.

`tnp.experimental_enable_numpy_behavior` would do the same, for the whole process. Numbers of Python take the dtype of
the tensor beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any

import tensorflow as tf

from anyaccel_tensorflow.tf_functions import by_itself

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
    return wraps(function)(partial(by_itself, function))


@_alone
def any(x: Any, axis: int | None = None, keepdims: bool = False) -> Any:
    """As NumPy's."""
    return tf.reduce_any(x, axis, keepdims)


@_alone
def all(x: Any, axis: int | None = None, keepdims: bool = False) -> Any:
    """As NumPy's."""
    return tf.reduce_all(x, axis, keepdims)


@_alone
def max(x: Any, axis: int | None = None, keepdims: bool = False) -> Any:
    """As NumPy's."""
    return tf.reduce_max(x, axis, keepdims)


@_alone
def sum(x: Any, axis: int | None = None, keepdims: bool = False) -> Any:
    """As NumPy's."""
    return tf.reduce_sum(x, axis, keepdims)


@_alone
def concatenate(arrays: Sequence[Any], axis: int = 0) -> Any:
    """As NumPy's."""
    return tf.concat(list(arrays), axis)


@_alone
def stack(arrays: Sequence[Any], axis: int = 0) -> Any:
    """As NumPy's."""
    return tf.stack(list(arrays), axis)


def zeros_like(x: Any) -> Any:
    """As NumPy's."""
    if not tf.executing_eagerly():
        return tf.zeros_like(x)
    with tf.device(x.device):
        return tf.raw_ops.ZerosLike(x=x)  # which, unlike tf.zeros_like, is nothing but this operation


def zeros(shape: Sequence[int]) -> Any:
    """As NumPy's, in float32."""
    return tf.zeros(shape)


def full_like(x: Any, value: float) -> Any:
    """As NumPy's."""
    return zeros_like(x) + tf.cast(value, x.dtype)


def maximum(a: Any, b: Any) -> Any:
    """As NumPy's."""
    return tf.maximum(*_alike(a, b))


def minimum(a: Any, b: Any) -> Any:
    """As NumPy's."""
    return tf.minimum(*_alike(a, b))


def where(condition: Any, a: Any, b: Any) -> Any:
    """As NumPy's."""
    return tf.where(condition, *_alike(a, b))


def _alike(a: Any, b: Any) -> tuple[Any, Any]:
    """Both as tensors, numbers in the dtype of the other."""
    dtype = next(one.dtype for one in (a, b) if isinstance(one, tf.Tensor))
    return tf.convert_to_tensor(a, dtype), tf.convert_to_tensor(b, dtype)
