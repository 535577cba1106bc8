"""Random numbers from keys: tensors of two 64-bit integers, from which everything random follows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

_HALF = 2**32
_TOP = 2**31 - 1
_ALGORITHM = "philox"  # XLA would choose another one by itself


def key_of(seed: int) -> tf.Tensor:
    """A key from 64 bits."""
    return tf.constant([seed // _HALF % _HALF, seed % _HALF], tf.int64)


def folded(key: Any, number: Any) -> Any:
    """Another key, from a key and an int or a scalar tensor of one."""
    return tf.random.experimental.stateless_fold_in(key, tf.cast(number, tf.int64), _ALGORITHM)


def dropped(x: Any, rate: float, key: Any, number: int) -> Any:
    """Zeros in a share `rate` of places, and the others larger, so that the mean stays."""
    drawn = tf.random.stateless_uniform(tf.shape(x), folded(key, number), 0, _TOP, dtype=tf.int32, alg=_ALGORITHM)
    kept = drawn >= round(rate * _TOP)  # of whole numbers, as XLA makes others of them by a rounding of its own
    return tf.where(kept, x / (1.0 - rate), tf.zeros_like(x))


def state_from(key: Any, number: int, like: Any) -> Any:
    """The state of a random generator of the frameworks', from a key; of the shape and dtype of `like`.

    Non-negative numbers below 2**31, which every dtype of such a state can hold.
    """
    size = like.shape.num_elements()
    drawn = tf.random.stateless_uniform([size], folded(key, number), 0, _TOP, dtype=tf.int32, alg=_ALGORITHM)
    return tf.reshape(tf.cast(drawn, like.dtype), like.shape)


@contextmanager
def seeded(seed: int, *, stream: bool) -> Iterator[None]:
    """Inside, the generators of Python and NumPy start from a 64-bit seed; they go on as before afterwards.

    Args:
        seed: where they start.
        stream: whether the stream of `tf.random.normal` and the like starts from it too. It stays the user's own if
            the user has set its seed: TensorFlow does not tell how far it has come.
    """
    kept = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % _HALF)
    stream = stream and tf.compat.v1.random.get_seed(None) == (None, None)
    if stream:
        tf.random.set_seed(seed % 2**31)
    try:
        yield
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])
        if stream:
            tf.random.set_seed(None)
