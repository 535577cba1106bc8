"""Random floats inside XLA, equal to those of TensorFlow's own kernels.

From one key both draw the same integers, but make other floats of them. Inside `equal_draws` the floats are made of the
integers as the kernels make them, so that eager steps, a plain tf.function and XLA drop the same elements.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import gen_stateless_random_ops_v2 as kernels

_HALF_DTYPES = {tf.float16: (10, 15), tf.bfloat16: (7, 127)}  # bits of the fraction, bias of the exponent
_SMALLEST_UNIFORM = 1e-7  # of the kernel's Box-Muller transform
_MARKS = ("Random", "Multinomial", "TruncatedNormal")
_INTEGER_DRAWS = ("UniformFullInt", "UniformInt", "GetKeyCounter", "GetAlg")

_lock = threading.Lock()
_tracing = threading.local()
_traces = 0


def has_unequal_draws(graph: Any) -> bool:
    """Whether a traced function draws numbers that XLA would draw otherwise, such as truncated normals."""
    definition = graph.as_graph_def()
    nodes = [*definition.node, *(node for function in definition.library.function for node in function.node_def)]
    return any(_is_draw(node.op) and not any(mark in node.op for mark in _INTEGER_DRAWS) for node in nodes)


def _is_draw(op: str) -> bool:
    return any(mark in op for mark in _MARKS)


@contextmanager
def equal_draws() -> Iterator[None]:
    """Inside, what this thread traces draws floats by `uniform` and `normal`; other threads draw as ever."""
    _replace_kernels(1)
    before, _tracing.active = getattr(_tracing, "active", False), True
    try:
        yield
    finally:
        _tracing.active = before
        _replace_kernels(-1)


def _replace_kernels(change: int) -> None:
    """Count one trace more or less; the kernels' functions are replaced while there is any."""
    global _traces
    with _lock:
        _traces += change
        for name, (kernel, replacement) in _DRAWS.items():
            setattr(kernels, name, replacement if _traces else kernel)


def _while_tracing(ours: Callable[..., Any], kernel: Callable[..., Any]) -> Callable[..., Any]:
    def draw(*arguments: Any, **settings: Any) -> Any:
        return (ours if getattr(_tracing, "active", False) else kernel)(*arguments, **settings)

    return draw


def uniform(shape: Any, key: Any, counter: Any, alg: Any, dtype: Any = tf.float32, name: Any = None) -> Any:
    """Floats in [0, 1): the fraction of a number in [1, 2) is made of random bits."""
    dtype = tf.as_dtype(dtype)
    if dtype == tf.float64:
        words = kernels.stateless_random_uniform_full_int_v2(shape, key, counter, alg, tf.uint64)
        high = tf.bitwise.left_shift(words & tf.constant(2**20 - 1, tf.uint64), tf.constant(32, tf.uint64))
        fraction = high | tf.bitwise.right_shift(words, tf.constant(32, tf.uint64))
        return tf.bitcast(fraction | tf.constant(1023 << 52, tf.uint64), tf.float64) - 1.0
    bits = kernels.stateless_random_uniform_full_int_v2(shape, key, counter, alg, tf.uint32)
    if dtype == tf.float32:
        return _unit_float(bits)
    width, bias = _HALF_DTYPES[dtype]
    pattern = (bits & tf.constant(2**width - 1, tf.uint32)) | tf.constant(bias << width, tf.uint32)
    return tf.bitcast(tf.cast(pattern, tf.uint16), dtype) - tf.constant(1, dtype)


def _unit_float(bits: Any) -> Any:
    pattern = (bits & tf.constant(2**23 - 1, tf.uint32)) | tf.constant(127 << 23, tf.uint32)
    return tf.bitcast(pattern, tf.float32) - 1.0


def normal(shape: Any, key: Any, counter: Any, alg: Any, dtype: Any = tf.float32, name: Any = None) -> Any:
    """Normal floats by the Box-Muller transform, equal to those of the kernels but for rounding."""
    dtype = tf.as_dtype(dtype)
    precise = dtype if dtype == tf.float64 else tf.float32
    size = tf.reduce_prod(tf.cast(shape, tf.int32))
    drawn = tf.reshape((size + 3) // 4 * 4, [1])  # the integers come in groups of four
    pairs = tf.reshape(uniform(drawn, key, counter, alg, precise), (-1, 2))
    radius = tf.sqrt(-2.0 * tf.math.log(tf.maximum(pairs[:, 0], tf.constant(_SMALLEST_UNIFORM, precise))))
    angle = 2.0 * math.pi * pairs[:, 1]
    numbers = tf.reshape(tf.stack([tf.sin(angle) * radius, tf.cos(angle) * radius], 1), [-1])
    return tf.cast(tf.reshape(numbers[:size], shape), dtype)


_OURS = {"stateless_random_uniform_v2": uniform, "stateless_random_normal_v2": normal}
_KERNELS = {name: getattr(kernels, name) for name in _OURS}
_DRAWS = {name: (kernel, _while_tracing(_OURS[name], kernel)) for name, kernel in _KERNELS.items()}
