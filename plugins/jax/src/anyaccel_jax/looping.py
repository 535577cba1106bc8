"""Many steps in one call: a loop on the device, and the numbers that it is told by."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anyaccel.adapter import Course, Repeated
from anyaccel_jax.moving import only_device

CHUNK = 1024  # steps that one call of a compiled loop can do

Compiled = Callable[..., Any]


def repeated(body: Callable[..., Any], compiled: Callable[[Callable[..., Any]], Compiled]) -> Repeated:
    """As `TracedOps.repeated`: a loop of up to `CHUNK` steps, compiled once for any number of them.

    What it is told in numbers is on the device, where the call before left it.

    Args:
        body: one step.
        compiled: compiles a function whose first argument is the state.
    """

    def training_steps(state: Any, rest: Any, table: Any, numbers: Any, count: Any) -> Any:
        return _looped(body, state, rest, table, numbers, count)

    loop = compiled(training_steps)

    def run(state: Any, rest: Any, course: Course, count: int) -> tuple[Any, Any]:
        put, results = partial(_put, only_device(rest["orders"][0])), []
        rest = {**rest, "key": course.shelf.key(rest["key"], put)}
        for size in _sizes(count):
            numbers, table, number = course.shelf.ready(course, size, put)
            state, found, numbers = loop(state, rest, table, numbers, number)
            course.shelf.went(course, size, numbers)
            results.append(found if size == CHUNK else _first(found, size))
        return state, results[0] if len(results) == 1 else jnp.concatenate(results)

    return run


@partial(jax.jit, static_argnums=1)
def _first(results: Any, size: int) -> Any:
    """So many results; a slice by itself would send its bounds."""
    return results[:size]


def _sizes(count: int) -> Iterator[int]:
    """Steps of each call; one call of none where there are none."""
    yield min(CHUNK, count)
    for begin in range(CHUNK, count, CHUNK):
        yield min(CHUNK, count - begin)


def _put(device: Any, array: np.ndarray) -> Any:
    """On a device of JAX's; whole numbers as int32, which JAX always has, random keys as they are."""
    held = np.dtype(np.int32) if array.dtype.kind == "i" else jax.dtypes.canonicalize_dtype(array.dtype)
    return jax.device_put(array.astype(held), device)


def _looped(body: Callable[..., Any], state: Any, rest: Any, table: Any, numbers: Any, count: Any) -> Any:
    """`body` over the next `count` rows; results beyond them are zeros."""
    start, draw, begin, batch, parts = numbers

    def row(i: Any) -> dict[str, Any]:
        scalars = jax.tree.map(lambda column: column[begin + i], table)
        return {"start": start + i * batch, "draw": draw + i * parts, "coefficients": scalars}

    def step(i: Any, carried: Any) -> Any:
        state, results = carried
        state, found = body(state, rest, row(i))
        return state, results.at[i].set(found)

    _, result = jax.eval_shape(lambda: body(state, rest, row(jnp.int32(0))))
    empty = jnp.zeros((CHUNK, *result.shape), result.dtype)
    state, results = jax.lax.fori_loop(0, count, step, (state, empty))
    ahead = jnp.stack([count * batch, count * parts, count, 0 * count, 0 * count])
    return state, results, numbers + ahead
