"""Many steps in one call: a loop inside one tf.function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from anyaccel.adapter import Function
from anyaccel_tensorflow.alone import compiled

MOST = 512  # steps in one call of the function: the rows of numbers that it takes always have this length


def looped(body: Function) -> Callable[[Any, Any, Any, int], tuple[Any, Any]]:
    """As `TracedOps.repeated`; the function takes `MOST` rows and how many of them count, so that it is traced once."""

    def go(state: Any, rest: Any, rows: Any, count: Any) -> tuple[Any, Any]:
        dtypes: list[Any] = []

        def step(i: Any, now: Any, found: Any) -> tuple[Any, Any, Any]:
            row = tf.nest.map_structure(lambda part: part[i], rows)
            after, result = body(tf.nest.pack_sequence_as(state, now), rest, row)
            dtypes.append(result.dtype)
            return i + 1, tf.nest.flatten(after), found.write(i, tf.cast(result, tf.float64))

        start = (0, tf.nest.flatten(state), tf.TensorArray(tf.float64, MOST))
        _, last, found = tf.while_loop(lambda i, *_: i < count, step, start, parallel_iterations=1)
        return tf.nest.pack_sequence_as(state, last), tf.cast(found.stack()[:count], dtypes[0])

    whole = compiled(go)

    def run(state: Any, rest: Any, rows: Any, count: int) -> tuple[Any, Any]:
        results = []
        for part, size in _parts(rows, count):
            state, result = whole(state, rest, part, tf.constant(size))
            results.append(result)
        return state, results[0] if len(results) == 1 else tf.concat(results, 0)

    return run


def _parts(rows: Any, count: int) -> Iterator[tuple[Any, int]]:
    """The rows as tensors of length `MOST`, the last of which is filled with zeros, and how many are real."""
    for start in range(0, count, MOST):
        size = min(MOST, count - start)

        def filled(part: np.ndarray, start: int = start, size: int = size) -> Any:
            whole = np.zeros(MOST, part.dtype)
            whole[:size] = part[start : start + size]
            return tf.constant(whole)

        yield tf.nest.map_structure(filled, rows), size
