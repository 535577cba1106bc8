"""Calls of some steps: a loop on the device, or each step by itself where XLA makes loops slow."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anyaccel.adapter import StepFunction
from anyaccel_jax.transfers import only_device

Calls = Callable[..., tuple[Any, Any, Any]]
"""From state, rest, table, numbers, and the count on the device and as a plain number, to the state afterwards, the
results (one row each, and zeros beyond them) and the numbers of the steps to come."""

_done: Any = jax.block_until_ready

_TRIALS = (1, 4, 16)  # steps, of which as many are tried as it takes to tell
_SURE = 0.03  # seconds, beside which what a call itself takes does not count
_LONG = 0.5  # seconds, which tell enough without a second call


class Calling:
    """Chooses at the first call.

    On a CPU, XLA's convolutions take several times as long in a loop as out of one. Where a step has any, both ways are
    tried with the first rows, and what that gives is forgotten; where the state cannot be kept meanwhile, there is no
    trial, and steps are done one by one.

    Args:
        loop: a compiled loop of (state, rest, table, numbers, count); with a count of 0 it gives the state as it is.
        step: a compiled step of (state, rest, table, numbers, first, results); see `single`.
        convolves: whether a step has convolutions; asked when the loop has been called.
        keeps: whether the loop keeps the state that it is given.
    """

    def __init__(
        self, loop: Callable[..., Any], step: Callable[..., Any], convolves: Callable[[], bool], *, keeps: bool
    ) -> None:
        self._loop, self._step = loop, step
        self._convolves, self._keeps = convolves, keeps
        self._chosen: Calls | None = None

    def __call__(self, state: Any, rest: Any, table: Any, numbers: Any, count: Any, size: int) -> tuple[Any, Any, Any]:
        """As `Calls`."""
        if self._chosen is None:
            state = self._choose(state, rest, table, numbers)
        assert self._chosen is not None
        return self._chosen(state, rest, table, numbers, count, size)

    def _choose(self, state: Any, rest: Any, table: Any, numbers: Any) -> Any:
        """The state, in other memory where the loop does not keep it."""
        device = only_device(numbers)
        chosen: Calls = self._looped
        if device.platform == "cpu":
            state, results, _ = self._loop(state, rest, table, numbers, _number(device, 0))
            singly = partial(self._singly, (results.shape, results.dtype))
            if self._convolves() and not (self._keeps and self._is_faster(singly, (state, rest, table, numbers))):
                chosen = singly
        self._chosen = chosen
        return state

    def _is_faster(self, singly: Calls, given: tuple[Any, ...]) -> bool:
        """Whether the loop is."""
        ways: tuple[Calls, ...] = (self._looped, singly)
        _done(singly(*given, None, 1))  # compiled
        for count in _TRIALS:
            number = _number(only_device(given[-1]), count)
            taken = [_seconds(partial(way, *given, number, count)) for way in ways]
            if max(taken) > _SURE:
                break
        return taken[0] <= taken[1]

    def _looped(self, state: Any, rest: Any, table: Any, numbers: Any, count: Any, size: int) -> tuple[Any, Any, Any]:
        found: tuple[Any, Any, Any] = self._loop(state, rest, table, numbers, count)
        return found

    def _singly(
        self, like: tuple[Any, Any], state: Any, rest: Any, table: Any, numbers: Any, count: Any, size: int
    ) -> tuple[Any, Any, Any]:
        first, results = numbers, _zeros(*like)
        for _ in range(size):
            state, results, numbers = self._step(state, rest, table, numbers, first, results)
        return state, results, numbers


def single(
    body: StepFunction, state: Any, rest: Any, table: Any, numbers: Any, first: Any, results: Any
) -> tuple[Any, Any, Any]:
    """One step: the state after it, the results with its own, and the numbers of the next one.

    Args:
        body: the step.
        state: what changes.
        rest: what does not.
        table: scalars of steps.
        numbers: of this step.
        first: those of the first step of the call.
        results: of the steps before it.
    """
    state, found = body(state, rest, row_of(table, numbers, 0))
    return state, results.at[numbers[2] - first[2]].set(found), further(numbers, jnp.int32(1))


def row_of(table: Any, numbers: Any, i: Any) -> dict[str, Any]:
    """The numbers of the i-th step of a call, as of `StepCursor.scalars`."""
    start, draw, begin, batch, parts = numbers
    scalars = jax.tree.map(lambda column: column[begin + i], table)
    return {"start": start + i * batch, "draw": draw + i * parts, "coefficients": scalars}


def further(numbers: Any, count: Any) -> Any:
    """The numbers after so many steps."""
    _, _, _, batch, parts = numbers
    return numbers + jnp.stack([count * batch, count * parts, count, 0 * count, 0 * count])


@partial(jax.jit, static_argnums=(0, 1))
def _zeros(shape: tuple[int, ...], dtype: Any) -> Any:
    return jnp.zeros(shape, dtype)


def _number(device: Any, count: int) -> Any:
    return jax.device_put(np.int32(count), device)


def _seconds(call: Callable[[], Any]) -> float:
    """Of a call, or of a second one if that is short: others may have had the processor meanwhile."""
    least = math.inf
    for _ in range(2):
        began = time.perf_counter()
        _done(call())
        least = min(least, time.perf_counter() - began)
        if least > _LONG:
            break
    return least
