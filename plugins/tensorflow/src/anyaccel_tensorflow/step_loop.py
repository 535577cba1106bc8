"""Many steps in one call: a loop inside one tf.function, compiled by XLA where that is faster."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import gen_stateless_random_ops_v2 as kernels

from anyaccel.adapter import StepFunction, StepLoop
from anyaccel.adapter.loss_scaling import steps_behind
from anyaccel.adapter.traced_program import MAX_STEPS_PER_CALL, is_faster, multi_step_runner, steps_gathered_at_once
from anyaccel_tensorflow.object_location import parse_device_name
from anyaccel_tensorflow.tf_functions import compiled

_TRIALS = (1, 8, 64, 512)  # steps


def compile_loop(body: StepFunction, home: str, *, quick: bool) -> StepLoop:
    """Return a loop over steps; results have rows for whole calls of the function. See `TracedOps.compile_steps`.

    Args:
        body: One step.
        home: Device of the scalars of steps.
        quick: Without XLA, which takes long to compile; otherwise the faster of both.
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

    A call of no steps shows code that XLA cannot compile, and models with other random numbers under XLA: the plain
        loop runs them, regardless of the timing, so that two runs from one seed draw the same numbers. On a CPU,
    where XLA's convolutions take many times as long as TensorFlow's own, both run some steps over the first rows, and
    the results are dropped.
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
    """Run `_run_steps` with the random numbers of TensorFlow's own kernels.

    Raises:
        UnimplementedError: XLA would draw others.
    """
    with equal_draws():
        results = _run_steps(body, *arguments)
    if has_unequal_draws(tf.compat.v1.get_default_graph()):
        raise tf.errors.UnimplementedError(None, None, "XLA would draw other random numbers")
    return results


def _run_steps(body: StepFunction, state: Any, rest: Any, table: Any, numbers: Any, count: Any) -> Any:
    """Run `body` over the next `count` rows of the table, in blocks of steps; results beyond them are zeros."""
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
        begin = start + first * batch_size

        def rows(column: Any, order: Any) -> Any:
            places = tf.minimum(
                begin + tf.range(block_size * body.batch_size, dtype=tf.int64), tf.shape(order, tf.int64)[0] - 1
            )
            return tf.reshape(
                tf.gather(column, tf.gather(order, places)), (block_size, body.batch_size, *column.shape[1:])
            )

        columns = tuple(rows(*pair) for pair in zip(rest["columns"], rest["orders"], strict=True))
        block = {**rest, "columns": columns, "orders": (None,) * len(columns)}
        last = tf.minimum(first + block_size, count)
        step_of_block = partial(step, block, first)
        return tf.while_loop(lambda i, *_: i < last, step_of_block, (first, arrays, results), parallel_iterations=1)

    iteration = run_block if block_size > 1 else partial(step, rest, tf.zeros_like(count))
    begun = (tf.zeros_like(count), tf.nest.flatten(state), tf.TensorArray(tf.float64, MAX_STEPS_PER_CALL))
    _, arrays, results = tf.while_loop(lambda i, *_: i < count, iteration, begun, parallel_iterations=1)
    advance = tf.stack([count * batch_size, count * draws_per_step, count, 0 * count, 0 * count])
    return unflatten(tf.nest.pack_sequence_as(state, arrays)), tf.cast(results.stack(), dtypes[0]), numbers + advance


def _steps_per_block(batch_size: int, columns: Any) -> int:
    row_bytes: int = sum(math.prod(column.shape[1:]) * column.dtype.size for column in columns)
    return steps_gathered_at_once(batch_size * row_bytes)


def _rows_of_step(block: Any, i: Any) -> Any:
    return {**block, "columns": tuple(tf.gather(column, i) for column in block["columns"])}


# -- Random floats inside XLA, equal to those of TensorFlow's own kernels ----------------------------------------------
#
# From one key both draw the same integers, but make other floats of them. Inside `equal_draws` the floats are made of
# the integers as the kernels make them, so that eager steps, a plain tf.function and XLA drop the same elements.


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
    return any(
        any(mark in node.op for mark in _MARKS) and not any(mark in node.op for mark in _INTEGER_DRAWS)
        for node in nodes
    )


@contextmanager
def equal_draws() -> Iterator[None]:
    """Let code that this thread traces draw floats by `uniform` and `normal` inside; other threads draw as usual."""
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
    """Return floats in [0, 1): the fraction of a number in [1, 2) with random bits."""
    dtype = tf.as_dtype(dtype)
    if dtype == tf.float64:
        words = kernels.stateless_random_uniform_full_int_v2(shape, key, counter, alg, tf.uint64)
        high = tf.bitwise.left_shift(words & tf.constant(2**20 - 1, tf.uint64), tf.constant(32, tf.uint64))
        fraction = high | tf.bitwise.right_shift(words, tf.constant(32, tf.uint64))
        return tf.bitcast(fraction | tf.constant(1023 << 52, tf.uint64), tf.float64) - 1.0
    bits = kernels.stateless_random_uniform_full_int_v2(shape, key, counter, alg, tf.uint32)
    if dtype == tf.float32:
        pattern = (bits & tf.constant(2**23 - 1, tf.uint32)) | tf.constant(127 << 23, tf.uint32)
        return tf.bitcast(pattern, tf.float32) - 1.0
    width, bias = _HALF_DTYPES[dtype]
    pattern = (bits & tf.constant(2**width - 1, tf.uint32)) | tf.constant(bias << width, tf.uint32)
    return tf.bitcast(tf.cast(pattern, tf.uint16), dtype) - tf.constant(1, dtype)


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
