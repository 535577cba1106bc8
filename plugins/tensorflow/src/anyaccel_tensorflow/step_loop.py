"""Many steps in one call: a loop inside one tf.function, compiled by XLA where that is faster."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from anyaccel.adapter import StepFunction, StepLoop
from anyaccel.adapter.loss_scaling import steps_behind
from anyaccel.adapter.traced_program import MAX_STEPS_PER_CALL, is_faster, multi_step_runner, steps_gathered_at_once
from anyaccel_tensorflow.object_location import parse_device_name
from anyaccel_tensorflow.tf_functions import compiled
from anyaccel_tensorflow.xla_random import equal_draws, has_unequal_draws

_TRIALS = (1, 8, 64, 512)  # steps


def compile_loop(body: StepFunction, home: str, *, quick: bool) -> StepLoop:
    """As `TracedOps.compile_steps`; results have rows for whole calls of the function.

    Args:
        body: one step.
        home: the device of the scalars of steps.
        quick: without XLA, which takes long to compile; else the faster of both.
    """
    plain = compiled(partial(_run_steps, body))
    by_xla = compiled(partial(_run_steps_by_xla, body), jit_compile=True)
    function = plain if quick else _FasterLoop(by_xla, plain, home)

    def call(state: Any, rest: Any, table: Any, numbers: Any, count: Any, size: int) -> Any:
        return function(state, rest, table, numbers, count)

    put = partial(_put, home)
    return multi_step_runner(call, partial(tf.concat, axis=0), lambda rest: put, lambda key: key)


def _put(home: str, array: np.ndarray) -> Any:
    with tf.device(home):
        return tf.constant(array)


class _FasterLoop:
    """The loop by XLA or the plain one, chosen at the first call.

    What XLA cannot compile shows in a call of no steps, and so does a model whose random numbers it would draw
    otherwise: the plain loop runs it, whatever the timing, so that two runs from one seed draw the same. On a CPU,
    where XLA's convolutions take many times as long as TensorFlow's own, both run some steps over the first rows, whose
    results are dropped.
    """

    def __init__(self, by_xla: Callable[..., Any], plain: Callable[..., Any], home: str) -> None:
        self._by_xla, self._plain, self._home = by_xla, plain, home
        self._chosen: Callable[..., Any] | None = None

    def __call__(self, state: Any, rest: Any, table: Any, numbers: Any, count: Any) -> Any:
        if self._chosen is None:
            self._chosen = self._choose(state, rest, table, numbers)
        return self._chosen(state, rest, table, numbers, count)

    def _choose(self, state: Any, rest: Any, table: Any, numbers: Any) -> Callable[..., Any]:
        try:
            self._by_xla(state, rest, table, numbers, _put(self._home, np.array(0)))
        except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError):
            return self._plain
        if parse_device_name(self._home)[0] != "CPU":
            return self._by_xla
        same_rows = numbers * _put(self._home, np.array([1, 1, 1, 0, 1]))  # in each step, so that any count has rows

        def run(function: Callable[..., Any], count: int) -> None:
            function(state, rest, table, same_rows, _put(self._home, np.array(count)))

        run(self._plain, 0)  # compile it
        by_xla_is_faster = is_faster(partial(run, self._by_xla), partial(run, self._plain), _TRIALS)
        return self._by_xla if by_xla_is_faster else self._plain


def _run_steps_by_xla(body: StepFunction, *arguments: Any) -> Any:
    """As `_run_steps`, with the random numbers of TensorFlow's own kernels.

    Raises:
        UnimplementedError: XLA would draw others.
    """
    with equal_draws():
        results = _run_steps(body, *arguments)
    if has_unequal_draws(tf.compat.v1.get_default_graph()):
        raise tf.errors.UnimplementedError(None, None, "XLA would draw other random numbers")
    return results


def _run_steps(body: StepFunction, state: Any, rest: Any, table: Any, numbers: Any, count: Any) -> Any:
    """`body` over the next `count` rows of the table, in blocks of steps; results beyond them are zeros."""
    start, draw, begin, batch_size, draws_per_step = tf.unstack(numbers)
    state, flat_body, unflatten = body.flatten(state)
    block_size, dtypes = _steps_per_block(body.batch_size, rest["columns"]), [tf.float32]

    def step(block: Any, first: Any, i: Any, arrays: Any, results: Any) -> tuple[Any, Any, Any]:
        # A slice would be compiled for each row.
        held = tf.nest.pack_sequence_as(state, arrays)
        place = begin + i - steps_behind(held, partial(tf.cast, dtype=tf.int64))
        coefficients = tf.nest.map_structure(lambda column: tf.gather(column, place), table)
        row = {"start": start + i * batch_size, "draw": draw + i * draws_per_step, "coefficients": coefficients}
        data = rest
        if block_size > 1:
            data, row["start"] = _rows_of_step(block, i - first), tf.zeros_like(start)
        after, result = flat_body(held, data, row)
        dtypes[0] = result.dtype
        return i + 1, tf.nest.flatten(after), results.write(tf.cast(i, tf.int32), tf.cast(result, tf.float64))

    def run_block(first: Any, arrays: Any, results: Any) -> Any:
        block = _gather_block(rest, start + first * batch_size, block_size, body.batch_size)
        last = tf.minimum(first + block_size, count)
        step_of_block = partial(step, block, first)
        return tf.while_loop(lambda i, *_: i < last, step_of_block, (first, arrays, results), parallel_iterations=1)

    iteration = run_block if block_size > 1 else partial(step, rest, tf.zeros_like(count))
    begun = (tf.zeros_like(count), tf.nest.flatten(state), tf.TensorArray(tf.float64, MAX_STEPS_PER_CALL))
    _, arrays, results = tf.while_loop(lambda i, *_: i < count, iteration, begun, parallel_iterations=1)
    advance = tf.stack([count * batch_size, count * draws_per_step, count, 0 * count, 0 * count])
    return unflatten(tf.nest.pack_sequence_as(state, arrays)), tf.cast(results.stack(), dtypes[0]), numbers + advance


def _gather_block(rest: Any, begin: Any, n_steps: int, batch_size: int) -> Any:
    """`rest` with the rows of the next steps, [steps, batch, ...] of each column, instead of columns and orders."""

    def rows(column: Any, order: Any) -> Any:
        places = tf.minimum(begin + tf.range(n_steps * batch_size, dtype=tf.int64), tf.shape(order, tf.int64)[0] - 1)
        return tf.reshape(tf.gather(column, tf.gather(order, places)), (n_steps, batch_size, *column.shape[1:]))

    columns = tuple(rows(*pair) for pair in zip(rest["columns"], rest["orders"], strict=True))
    return {**rest, "columns": columns, "orders": (None,) * len(columns)}


def _rows_of_step(block: Any, i: Any) -> Any:
    return {**block, "columns": tuple(tf.gather(column, i) for column in block["columns"])}


def _steps_per_block(batch_size: int, columns: Any) -> int:
    row_bytes: int = sum(math.prod(column.shape[1:]) * column.dtype.size for column in columns)
    return steps_gathered_at_once(batch_size * row_bytes)
