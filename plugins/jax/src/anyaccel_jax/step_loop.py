"""Many steps in one call: a loop on the device, or single compiled steps where XLA makes loops slow."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anyaccel.adapter import StepFunction, StepLoop
from anyaccel.adapter.loss_scaling import steps_behind
from anyaccel.adapter.step_cursor import StepCursor
from anyaccel.adapter.traced_program import MAX_STEPS_PER_CALL, is_faster, multi_step_runner, steps_gathered_at_once
from anyaccel.errors import CapabilityError
from anyaccel_jax.error_translation import lowered

Compile = Callable[[Callable[..., Any], tuple[int, ...]], Callable[..., Any]]
"""Compiles a function that may destroy some of its arguments, given by their numbers."""

RunSteps = Callable[..., tuple[Any, Any, Any]]
"""From state, rest, table, numbers, the count on the device, and the count: to the state afterwards, the results (one
row each, and zeros beyond them) and the numbers of the next step."""

Put = Callable[[Any, Any], Any]
"""Puts an array on a device, or over a sharding."""

_TRIALS = (1, 4, 16)  # steps
_wait: Any = jax.block_until_ready
_device_put: Any = jax.device_put


def compile_loop(
    body: StepFunction, compile_: Compile, *, donates: bool, put: Put = _device_put, times_ways: bool = True
) -> StepLoop:
    """Return a loop of up to `MAX_STEPS_PER_CALL` steps, compiled once for any number of them; see
    `TracedOps.compile_steps`.

    The scalars of steps stay on the device, where the previous call left them. On a CPU, steps with convolutions are
    called one by one if that is faster. Results have rows for whole calls of the loop: cutting them to the completed
    steps would compile again for every number of steps.

    Args:
        body: One step.
        compile_: Function that compiles a function.
        donates: Whether the state is destroyed.
        put: Function that puts host arrays on the devices of the row orders.
        times_ways: Whether steps with convolutions are timed in both ways; otherwise they are called one by one.
    """
    has_convolutions: list[bool] = []

    def training_steps(state: Any, rest: Any, table: Any, numbers: Any, count: Any) -> Any:
        return _run_loop(body, has_convolutions, state, rest, table, numbers, count)

    def training_step(state: Any, rest: Any, table: Any, numbers: Any, first: Any, results: Any) -> Any:
        behind = steps_behind(state, _as_integer)
        state, result = body(state, rest, _row(table, numbers, 0, behind))
        return state, results.at[numbers[2] - first[2]].set(result), _advance(numbers, jnp.int32(1))

    named_after(body, training_steps, "loop")
    named_after(body, training_step, "single")
    loop = compile_(training_steps, (0,) if donates else ())
    step = compile_(training_step, (0, 5) if donates else (5,))
    run_steps = _LoopOrSteps(loop, step, lambda: any(has_convolutions), put, times_ways=times_ways and not donates)
    run = multi_step_runner(run_steps, jnp.concatenate, lambda rest: partial(_put, put, rest["orders"][0].sharding))
    return CompiledSteps(run, run_steps)


class CompiledSteps:
    """A step loop, and the memory that its compiled functions take.

    Args:
        run: The loop.
        run_steps: Its compiled functions.
    """

    def __init__(self, run: StepLoop, run_steps: _LoopOrSteps) -> None:
        self._run, self._run_steps = run, run_steps

    def __call__(self, state: Any, rest: Any, cursor: StepCursor, count: int) -> tuple[Any, Any]:
        return self._run(state, rest, cursor, count)

    def memory(self, state: Any, rest: Any, cursor: StepCursor) -> int:
        """Return the bytes that a call takes besides `state`, columns and orders, by the compiler's analysis.

        Nothing is computed. Later calls with arrays of these shapes on these devices use what is compiled here.

        Args:
            state: The state as `jax.ShapeDtypeStruct`s with shardings.
            rest: The same of the rest.
            cursor: Position of the steps.
        """
        put = partial(_put, abstract, rest["orders"][0].sharding)
        rest = {**rest, "key": abstract(rest["key"], rest["orders"][0].sharding)}
        numbers, table, count = cursor.device_scalars.prepare(cursor, 1, put)
        small: int = sum(math.prod(array.shape) * array.dtype.itemsize for array in jax.tree.leaves((table, numbers)))
        return small + self._run_steps.memory(state, rest, table, numbers, count)


def abstract(array: Any, sharding: Any) -> Any:
    """Return an array's shape and dtype, over a sharding, for functions to be compiled for."""
    make: Any = jax.ShapeDtypeStruct
    return make(array.shape, array.dtype, sharding=sharding, weak_type=getattr(array, "weak_type", False))


def compiled_memory(lowered: Any) -> int:
    """Return the bytes that the outputs and temporary arrays of a lowered function take, by the compiler's analysis.

    Raises:
        CapabilityError: the compiler has no analysis.
    """
    analysis = lowered.compile().memory_analysis()
    if analysis is None:
        raise CapabilityError("the compiler of XLA for this device does not report the memory of a program")
    outputs = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    return int(analysis.temp_size_in_bytes + max(outputs, 0))


def named_after(computation: Callable[..., Any], function: Callable[..., Any], what: str) -> None:
    """Name a function that will be compiled after its computation, including the nodes.

    JAX's cache on disk distinguishes programs by function names, and not by the scopes in them.
    """
    name = getattr(computation, "__name__", "")
    if name.isidentifier():
        function.__name__ = f"{name}_{what}"


def _put(put: Put, where: Any, array: np.ndarray) -> Any:
    """Put an array on a JAX device or sharding; integers as int32, which JAX always has, random keys unchanged."""
    dtype = np.dtype(np.int32) if array.dtype.kind == "i" else jax.dtypes.canonicalize_dtype(array.dtype)
    return put(array.astype(dtype), where)


class _LoopOrSteps:
    """Run steps as a loop or one by one; chosen at the first call.

    On a CPU, XLA's convolutions take several times as long inside a loop as outside. Where a step has any, both ways
    run some steps over the first rows, whose results are dropped; where the state does not survive that, steps are run
    one by one.

    Args:
        loop: A compiled loop of (state, rest, table, numbers, count); with a count of 0 it returns the state.
        step: A compiled step; see `_run_single`.
        has_convolutions: Whether a step has any; known once the loop has been called.
        put: Function that puts numbers where the loop has its own.
        times_ways: Whether both ways may be tried, as the loop leaves the state it is given intact.
    """

    def __init__(
        self,
        loop: Callable[..., Any],
        step: Callable[..., Any],
        has_convolutions: Callable[[], bool],
        put: Put,
        *,
        times_ways: bool,
    ) -> None:
        self._loop, self._step, self._put = loop, step, put
        self._has_convolutions, self._times_ways = has_convolutions, times_ways
        self._chosen: RunSteps | None = None

    def __call__(self, state: Any, rest: Any, table: Any, numbers: Any, count: Any, size: int) -> tuple[Any, Any, Any]:
        if self._chosen is None:
            chosen: RunSteps = self._run_loop
            if _is_cpu(numbers.devices()):
                state, results, _ = self._loop(state, rest, table, numbers, self._put(np.int32(0), numbers.sharding))
                one_by_one = partial(self._run_one_by_one, (results.shape, results.dtype))
                arguments = (state, rest, table, numbers)
                if self._has_convolutions() and not (self._times_ways and self._loop_is_faster(one_by_one, arguments)):
                    chosen = one_by_one
            self._chosen = chosen
        assert self._chosen is not None
        return self._chosen(state, rest, table, numbers, count, size)

    def memory(self, state: Any, rest: Any, table: Any, numbers: Any, count: Any) -> int:
        """Return the bytes that either way takes, whichever is more, as the first call runs both."""
        loop = lowered(self._loop, state, rest, table, numbers, count)
        nbytes = compiled_memory(loop)
        if _is_cpu(numbers.sharding.device_set) and self._has_convolutions():
            results = abstract(loop.out_info[1], numbers.sharding)
            step = lowered(self._step, state, rest, table, numbers, numbers, results)
            nbytes = max(nbytes, compiled_memory(step) + math.prod(results.shape) * results.dtype.itemsize)
        return nbytes

    def _loop_is_faster(self, one_by_one: RunSteps, arguments: tuple[Any, ...]) -> bool:
        sharding = arguments[-1].sharding

        def run(way: RunSteps, count: int) -> None:
            _wait(way(*arguments, self._put(np.int32(count), sharding), count))

        run(one_by_one, 1)  # compile it
        return is_faster(partial(run, self._run_loop), partial(run, one_by_one), _TRIALS)

    def _run_loop(self, state: Any, rest: Any, table: Any, numbers: Any, count: Any, size: int) -> tuple[Any, Any, Any]:
        result: tuple[Any, Any, Any] = self._loop(state, rest, table, numbers, count)
        return result

    def _run_one_by_one(
        self, like: tuple[Any, Any], state: Any, rest: Any, table: Any, numbers: Any, count: Any, size: int
    ) -> tuple[Any, Any, Any]:
        first, results = numbers, self._put(_zeros(*like), numbers.sharding)
        for _ in range(size):
            state, results, numbers = self._step(state, rest, table, numbers, first, results)
        return state, results, numbers


def _is_cpu(devices: Iterable[Any]) -> bool:
    return bool(next(iter(devices)).platform == "cpu")


@partial(jax.jit, static_argnums=(0, 1))
def _zeros(shape: tuple[int, ...], dtype: Any) -> Any:
    return jnp.zeros(shape, dtype)


# -- in traced functions ---------------------------------------------------------------------------------------------


def _run_loop(
    body: StepFunction, has_convolutions: list[bool], state: Any, rest: Any, table: Any, numbers: Any, count: Any
) -> Any:
    """Run `body` over the next `count` rows of the table; results beyond them are zeros."""
    batch_size, n_gathered = numbers[3], _steps_per_gather(body.batch_size, rest["columns"])
    state, step, unflatten = body.flatten(state)
    jaxpr, (_, result) = jax.make_jaxpr(partial(step, state, rest), return_shape=True)(_row(table, numbers, 0))
    has_convolutions.append("conv_general_dilated" in str(jaxpr))

    def run_block(carried: Any) -> Any:
        done, state, results = carried
        begin = numbers[0] + done * batch_size
        block, start = (rest, begin) if n_gathered == 1 else _gather_block(rest, begin, n_gathered * body.batch_size)

        def run_step(i: Any, carried: Any) -> Any:
            state, results = carried
            row = _row(table, numbers, done + i, steps_behind(state, _as_integer))
            state, result = step(state, block, {**row, "start": start + i * batch_size})
            return state, results.at[done + i].set(result)

        size = jnp.minimum(n_gathered, count - done)
        return (done + size, *jax.lax.fori_loop(0, size, run_step, (state, results)))

    begun = (0 * count, state, jnp.zeros((MAX_STEPS_PER_CALL, *result.shape), result.dtype))
    _, state, results = jax.lax.while_loop(lambda carried: carried[0] < count, run_block, begun)
    return unflatten(state), results, _advance(numbers, count)


def _as_integer(number: Any) -> Any:
    return number.astype(jnp.int32)


def _row(table: Any, numbers: Any, i: Any, behind: Any = 0) -> dict[str, Any]:
    """Return the scalars of the i-th step of a call, like `StepCursor.scalars`; optimizers are `behind` steps
    behind.
    """
    start, draw, begin, batch_size, draws_per_step = numbers
    coefficients = jax.tree.map(lambda column: column[begin + i - behind], table)
    return {"start": start + i * batch_size, "draw": draw + i * draws_per_step, "coefficients": coefficients}


def _advance(numbers: Any, count: Any) -> Any:
    """Return the numbers after that many steps."""
    _, _, _, batch_size, draws_per_step = numbers
    return numbers + jnp.stack([count * batch_size, count * draws_per_step, count, 0 * count, 0 * count])


def _steps_per_gather(batch_size: int, columns: Any) -> int:
    row_bytes: int = sum(math.prod(column.shape[1:]) * column.dtype.itemsize for column in columns)
    return steps_gathered_at_once(batch_size * row_bytes)


def _gather_block(rest: Any, begin: Any, size: int) -> tuple[Any, Any]:
    """Return `rest` with the next rows of each column instead of columns and orders, and the position of the first.

    It is not at the start if fewer rows are left than are gathered together.
    """
    shortest = min(order.shape[0] for order in rest["orders"])
    size = min(size, shortest)
    first = jnp.minimum(begin, shortest - size)
    columns = tuple(
        jnp.take(column, jax.lax.dynamic_slice_in_dim(order, first, size), axis=0, mode="clip")
        for column, order in zip(rest["columns"], rest["orders"], strict=True)
    )
    return {**rest, "columns": columns, "orders": (None,) * len(columns)}, begin - first
