"""Many steps in one call: a loop inside one tf.function, by XLA where that is faster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import tensorflow as tf

from anyaccel.adapter import Course, Function, Repeated
from anyaccel_tensorflow.alone import compiled
from anyaccel_tensorflow.trees import parsed

MOST = 1024  # steps in one call of the function, which is traced once for any number of them up to this

_TRIALS = (1, 8, 64, 512)  # steps, of which as many are tried as it takes to tell
_SURE = 0.03  # seconds, beside which what a call itself takes does not count


def looped(body: Function, home: str, *, quick: bool) -> Repeated:
    """As `TracedOps.repeated`.

    Args:
        body: one step.
        home: where the numbers of steps are.
        quick: without XLA, which takes long to compile; else the better of both.
    """
    plain = compiled(partial(_steps, body))
    whole = plain if quick else _better(compiled(partial(_steps, body), jit_compile=True), plain, home)

    def run(state: Any, rest: Any, course: Course, count: int) -> tuple[Any, Any]:
        put, results = partial(_put, home), []
        rest = {**rest, "key": course.shelf.key(rest["key"], lambda key: key)}
        for size in _sizes(count):
            numbers, table, number = course.shelf.ready(course, size, put)
            state, found, numbers = whole(state, rest, table, numbers, number)
            course.shelf.went(course, size, numbers)
            results.append(found if size == MOST else _cut()(found, number))
        return state, results[0] if len(results) == 1 else tf.concat(results, 0)

    return run


def _better(fast: Callable[..., Any], plain: Callable[..., Any], home: str) -> Callable[..., Any]:
    """The one by XLA or the other one: what XLA cannot compile shows in the first call, what it makes slow in a trial.

    On a CPU, XLA's convolutions take many times as long as TensorFlow's own.
    """
    chosen: list[Callable[..., Any]] = []

    def run(*given: Any) -> Any:
        if not chosen:
            try:
                fast(*given[:-1], _put(home, np.array(0)))
            except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError):
                chosen.append(plain)
            else:
                chosen.append(fast if parsed(home)[0] != "CPU" or _tried(fast, plain, given, home) else plain)
        return chosen[0](*given)

    return run


def _tried(fast: Callable[..., Any], plain: Callable[..., Any], given: Sequence[Any], home: str) -> bool:
    """Whether steps by XLA are the faster ones, over the first rows; what they give is forgotten."""
    state, rest, table, numbers, _ = given
    again = numbers * _put(home, np.array([1, 1, 1, 0, 1]))  # the same rows in each step

    def seconds(function: Callable[..., Any], count: int) -> float:
        began = time.perf_counter()
        function(state, rest, table, again, _put(home, np.array(count)))
        return time.perf_counter() - began

    seconds(plain, 0)
    for count in _TRIALS:
        taken = [seconds(function, count) for function in (fast, plain)]
        if max(taken) > _SURE:
            break
    return taken[0] <= taken[1]


def _sizes(count: int) -> Iterator[int]:
    """Steps of each call; one call of none where there are none."""
    yield min(MOST, count)
    for begin in range(MOST, count, MOST):
        yield min(MOST, count - begin)


def _put(home: str, array: np.ndarray) -> Any:
    with tf.device(home):
        return tf.constant(array)


@cache
def _cut() -> Any:
    """Gives the first results; how many is a number that the device has."""
    return compiled(lambda results, count: results[:count], reduce_retracing=True)


def _steps(body: Function, state: Any, rest: Any, table: Any, numbers: Any, count: Any) -> Any:
    """`body` over the next `count` rows; results beyond them are zeros."""
    start, draw, begin, batch, parts = tf.unstack(numbers)
    dtypes: list[Any] = []

    def step(i: Any, now: Any, found: Any) -> tuple[Any, Any, Any]:
        scalars = tf.nest.map_structure(
            lambda column: tf.gather(column, begin + i), table
        )  # a slice would be compiled for each row
        row = {"start": start + i * batch, "draw": draw + i * parts, "coefficients": scalars}
        after, result = body(tf.nest.pack_sequence_as(state, now), rest, row)
        dtypes.append(result.dtype)
        return i + 1, tf.nest.flatten(after), found.write(tf.cast(i, tf.int32), tf.cast(result, tf.float64))

    first = (tf.zeros_like(count), tf.nest.flatten(state), tf.TensorArray(tf.float64, MOST))
    _, last, found = tf.while_loop(lambda i, *_: i < count, step, first, parallel_iterations=1)
    ahead = tf.stack([count * batch, count * parts, count, 0 * count, 0 * count])
    return tf.nest.pack_sequence_as(state, last), tf.cast(found.stack(), dtypes[0]), numbers + ahead
