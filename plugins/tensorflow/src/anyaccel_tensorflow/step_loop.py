"""Many steps in one call: a loop inside one tf.function, by XLA where that is faster."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from anyaccel.adapter import StepCursor, StepFunction, StepLoop
from anyaccel_tensorflow.tf_functions import compiled
from anyaccel_tensorflow.tree_utils import parsed

MOST = 1024  # steps in one call of the function, which is traced once for any number of them up to this

# Rows are gathered for up to so many steps at once, in up to so many bytes: XLA has several threads gather from a large
# column, which costs more than the gathering of a small batch.
AHEAD = 32
AHEAD_BYTES = 2**20

_TRIALS = (1, 8, 64, 512)  # steps, of which as many are tried as it takes to tell
_SURE = 0.03  # seconds, beside which what a call itself takes does not count
_LONG = 0.5  # seconds, which tell enough without a second call


def looped(body: StepFunction, home: str, *, quick: bool) -> StepLoop:
    """As `TracedOps.compile_steps`; results have rows for whole calls of the function.

    Args:
        body: one step.
        home: where the numbers of steps are.
        quick: without XLA, which takes long to compile; else the better of both.
    """
    plain = compiled(partial(_steps, body))
    whole = plain if quick else _better(compiled(partial(_steps, body), jit_compile=True), plain, home)

    def run(state: Any, rest: Any, cursor: StepCursor, count: int) -> tuple[Any, Any]:
        put, results = partial(_put, home), []
        rest = {**rest, "key": cursor.device_scalars.key(rest["key"], lambda key: key)}
        for size in _sizes(count):
            numbers, table, number = cursor.device_scalars.prepare(cursor, size, put)
            state, found, numbers = whole(state, rest, table, numbers, number)
            cursor.device_scalars.advance(cursor, size, numbers)
            results.append(found)
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

    def called(function: Callable[..., Any], count: int) -> None:
        function(state, rest, table, again, _put(home, np.array(count)))

    called(plain, 0)
    for count in _TRIALS:
        taken = [_seconds(partial(called, function, count)) for function in (fast, plain)]
        if max(taken) > _SURE:
            break
    return taken[0] <= taken[1]


def _seconds(call: Callable[[], None]) -> float:
    """Of a call, or of a second one if that is short: others may have had the processor meanwhile."""
    least = math.inf
    for _ in range(2):
        began = time.perf_counter()
        call()
        least = min(least, time.perf_counter() - began)
        if least > _LONG:
            break
    return least


def _sizes(count: int) -> Iterator[int]:
    """Steps of each call; one call of none where there are none."""
    yield min(MOST, count)
    for begin in range(MOST, count, MOST):
        yield min(MOST, count - begin)


def _put(home: str, array: np.ndarray) -> Any:
    with tf.device(home):
        return tf.constant(array)


def _steps(body: StepFunction, state: Any, rest: Any, table: Any, numbers: Any, count: Any) -> Any:
    """`body` over the next `count` rows of the table, in blocks of steps; results beyond them are zeros."""
    start, draw, begin, batch, parts = tf.unstack(numbers)
    state, once, unpacked = body.flatten(state)
    many, dtypes = _ahead(body.batch_size, rest["columns"]), [tf.float32]

    def step(inside: Any, first: Any, i: Any, now: Any, found: Any) -> tuple[Any, Any, Any]:
        scalars = tf.nest.map_structure(
            lambda column: tf.gather(column, begin + i), table
        )  # a slice would be compiled for each row
        row = {"start": start + i * batch, "draw": draw + i * parts, "coefficients": scalars}
        here, own = (rest, row) if many == 1 else (_alone(inside, i - first), {**row, "start": tf.zeros_like(start)})
        after, result = once(tf.nest.pack_sequence_as(state, now), here, own)
        dtypes[0] = result.dtype
        return i + 1, tf.nest.flatten(after), found.write(tf.cast(i, tf.int32), tf.cast(result, tf.float64))

    def block(first: Any, now: Any, found: Any) -> Any:
        inside = _gathered(rest, start + first * batch, many, body.batch_size)
        last = tf.minimum(first + many, count)
        act = partial(step, inside, first)
        return tf.while_loop(lambda i, *_: i < last, act, (first, now, found), parallel_iterations=1)

    act = block if many > 1 else partial(step, rest, tf.zeros_like(count))
    first = (tf.zeros_like(count), tf.nest.flatten(state), tf.TensorArray(tf.float64, MOST))
    _, last, found = tf.while_loop(lambda i, *_: i < count, act, first, parallel_iterations=1)
    ahead = tf.stack([count * batch, count * parts, count, 0 * count, 0 * count])
    return unpacked(tf.nest.pack_sequence_as(state, last)), tf.cast(found.stack(), dtypes[0]), numbers + ahead


def _gathered(rest: Any, begin: Any, many: int, batch: int) -> Any:
    """The rows of the next steps, [steps, batch, ...] of each column, instead of the column and its order."""

    def taken(column: Any, order: Any) -> Any:
        places = tf.minimum(begin + tf.range(many * batch, dtype=tf.int64), tf.shape(order, tf.int64)[0] - 1)
        return tf.reshape(tf.gather(column, tf.gather(order, places)), (many, batch, *column.shape[1:]))

    pairs = zip(rest["columns"], rest["orders"], strict=True)
    return {**rest, "columns": tuple(taken(*pair) for pair in pairs), "orders": (None,) * len(rest["orders"])}


def _alone(inside: Any, i: Any) -> Any:
    """The rows of one of these steps."""
    return {**inside, "columns": tuple(tf.gather(column, i) for column in inside["columns"])}


def _ahead(batch: int, columns: Any) -> int:
    """For how many steps rows are gathered at once."""
    each: int = batch * sum(math.prod(column.shape[1:]) * column.dtype.size for column in columns)
    return max(1, min(AHEAD, AHEAD_BYTES // max(each, 1)))
