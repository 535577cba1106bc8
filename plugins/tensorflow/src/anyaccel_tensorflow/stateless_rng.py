"""Random numbers from keys: a key is a tensor of two 64-bit integers that determines everything random."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from anyaccel.adapter.layer_introspection import seeded_host_generators

_HALF = 2**32
_LIMIT = 2**31 - 1
_ALGORITHM = "philox"  # XLA would choose another by default


def key_of(seed: int) -> tf.Tensor:
    """Return a key from 64 bits."""
    return tf.constant([seed // _HALF % _HALF, seed % _HALF], tf.int64)


def fold_in(key: Any, number: Any) -> Any:
    """Return another key, from a key and an int or a scalar tensor of one."""
    return tf.random.experimental.stateless_fold_in(key, tf.cast(number, tf.int64), _ALGORITHM)


def dropout(x: Any, rate: float, key: Any, number: int) -> Any:
    """Return `x` with a fraction `rate` of its elements set to zero, and the others scaled so that the mean stays."""
    kept = _random_integers(tf.shape(x), key, number) >= round(rate * _LIMIT)  # XLA rounds random floats differently
    return tf.where(kept, x / (1.0 - rate), tf.zeros_like(x))


def random_state(key: Any, number: int, like: Any) -> Any:
    """Return the state of a random generator, from a key; of the shape and dtype of `like`.

    Non-negative numbers below 2**31, which every dtype of such a state can hold.
    """
    integers = _random_integers([like.shape.num_elements()], key, number)
    return tf.reshape(tf.cast(integers, like.dtype), like.shape)


def _random_integers(shape: Any, key: Any, number: int) -> Any:
    return tf.random.stateless_uniform(shape, fold_in(key, number), 0, _LIMIT, dtype=tf.int32, alg=_ALGORITHM)


@contextmanager
def seeded(seed: int, *, include_stream: bool) -> Iterator[None]:
    """Seed the generators of Python and NumPy from 64 bits inside this context, and restore them afterwards.

    Args:
        seed: The seed.
        include_stream: Whether to seed the stream of `tf.random.normal` and similar functions, too. It does not change
            if the user has set its seed: TensorFlow does not report its position.
    """
    include_stream = include_stream and tf.compat.v1.random.get_seed(None) == (None, None)
    if include_stream:
        tf.random.set_seed(seed % 2**31)
    try:
        with seeded_host_generators(seed):
            yield
    finally:
        if include_stream:
            tf.random.set_seed(None)
