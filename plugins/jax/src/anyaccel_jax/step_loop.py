"""Many steps in one call: a loop on the device, and the numbers that it is told by."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anyaccel.adapter import StepCursor, StepFunction, StepLoop
from anyaccel_jax.single_steps import Calling, further, row_of, single
from anyaccel_jax.transfers import only_device

CHUNK = 1024  # steps that one call of a compiled loop can do

# Rows are gathered for up to so many steps at once, in up to so many bytes: XLA has several threads gather from a large
# column, which costs more than the gathering of a small batch.
AHEAD = 32
AHEAD_BYTES = 2**20


def repeated(
    body: StepFunction, compiled: Callable[[Callable[..., Any], tuple[int, ...]], Callable[..., Any]], *, donates: bool
) -> StepLoop:
    """As `TracedOps.compile_steps`: a loop of up to `CHUNK` steps, compiled once for any number of them.

    What it is told in numbers is on the device, where the call before left it. On a CPU, steps with convolutions are
    called one by one where that is faster.

    Results have rows for whole calls of the loop: cut to the steps that were done, they would be compiled anew for
    every number of steps.

    Args:
        body: one step.
        compiled: compiles a function that may destroy some of its arguments, given by their numbers.
        donates: whether the state is destroyed.
    """
    seen: list[bool] = []

    def training_steps(state: Any, rest: Any, table: Any, numbers: Any, count: Any) -> Any:
        return _looped(body, seen, state, rest, table, numbers, count)

    def training_step(state: Any, rest: Any, table: Any, numbers: Any, first: Any, results: Any) -> Any:
        return single(body, state, rest, table, numbers, first, results)

    loop, step = compiled(training_steps, (0,) if donates else ()), compiled(training_step, (0, 5) if donates else (5,))
    calls = Calling(loop, step, lambda: any(seen), keeps=not donates)

    def run(state: Any, rest: Any, cursor: StepCursor, count: int) -> tuple[Any, Any]:
        put, results = partial(_put, only_device(rest["orders"][0])), []
        rest = {**rest, "key": cursor.device_scalars.key(rest["key"], put)}
        for size in _sizes(count):
            numbers, table, number = cursor.device_scalars.prepare(cursor, size, put)
            state, found, numbers = calls(state, rest, table, numbers, number, size)
            cursor.device_scalars.advance(cursor, size, numbers)
            results.append(found)
        return state, results[0] if len(results) == 1 else jnp.concatenate(results)

    return run


def _sizes(count: int) -> Iterator[int]:
    """Steps of each call; one call of none where there are none."""
    yield min(CHUNK, count)
    for begin in range(CHUNK, count, CHUNK):
        yield min(CHUNK, count - begin)


def _put(device: Any, array: np.ndarray) -> Any:
    """On a device of JAX's; whole numbers as int32, which JAX always has, random keys as they are."""
    held = np.dtype(np.int32) if array.dtype.kind == "i" else jax.dtypes.canonicalize_dtype(array.dtype)
    return jax.device_put(array.astype(held), device)


def _looped(body: StepFunction, seen: list[bool], state: Any, rest: Any, table: Any, numbers: Any, count: Any) -> Any:
    """`body` over the next `count` rows of the table; results beyond them are zeros.

    `seen` is told whether there are convolutions.
    """
    batch, many = numbers[3], _ahead(body.batch_size, rest["columns"])
    state, step, unpacked = body.flatten(state)
    jaxpr, (_, result) = jax.make_jaxpr(partial(step, state, rest), return_shape=True)(row_of(table, numbers, 0))
    seen.append("conv_general_dilated" in str(jaxpr))

    def block(carried: Any) -> Any:
        done, state, results = carried
        begin = numbers[0] + done * batch
        inside, place = (rest, begin) if many == 1 else _gathered(rest, begin, many * body.batch_size)

        def once(i: Any, carried: Any) -> Any:
            state, results = carried
            state, found = step(state, inside, {**row_of(table, numbers, done + i), "start": place + i * batch})
            return state, results.at[done + i].set(found)

        size = jnp.minimum(many, count - done)
        return (done + size, *jax.lax.fori_loop(0, size, once, (state, results)))

    first = (0 * count, state, jnp.zeros((CHUNK, *result.shape), result.dtype))
    _, state, results = jax.lax.while_loop(lambda carried: carried[0] < count, block, first)
    return unpacked(state), results, further(numbers, count)


def _gathered(rest: Any, begin: Any, size: int) -> tuple[Any, Any]:
    """With the next rows of each column instead of the column and its order; and where the first of them stands.

    That is not at the start where fewer are left than are gathered at once.
    """
    shortest = min(order.shape[0] for order in rest["orders"])
    size = min(size, shortest)
    first = jnp.minimum(begin, shortest - size)
    columns = tuple(
        jnp.take(column, jax.lax.dynamic_slice_in_dim(order, first, size), axis=0, mode="clip")
        for column, order in zip(rest["columns"], rest["orders"], strict=True)
    )
    return {**rest, "columns": columns, "orders": (None,) * len(columns)}, begin - first


def _ahead(batch: int, columns: Any) -> int:
    """For how many steps rows are gathered at once."""
    each: int = batch * sum(math.prod(column.shape[1:]) * column.dtype.itemsize for column in columns)
    return max(1, min(AHEAD, AHEAD_BYTES // max(each, 1)))
