"""Many training steps in few compiled calls: the driver, its limits, and the comparison of two ways to run steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from anyaccel.adapter.step_cursor import StepCursor
from anyaccel.adapter.traced_ops import StepLoop

MAX_STEPS_PER_CALL = 1024

# Rows are gathered for several steps at once, up to these limits: compilers run a gather from a large column on several
# threads, which costs more than to gather a small batch.
_MAX_GATHERED_STEPS = 32
_MAX_GATHERED_BYTES = 2**20

_CONCLUSIVE_SECONDS = 0.03  # from here on, the overhead of a call does not matter
_LONG_SECONDS = 0.5  # long enough that a second measurement tells nothing more


def multi_step_runner(
    call: Callable[..., tuple[Any, Any, Any]],
    concatenate: Callable[[list[Any]], Any],
    put_on: Callable[[Mapping[str, Any]], Callable[[Any], Any]],
    put_key: Callable[[Any], Any] | None = None,
) -> StepLoop:
    """A function as of `TracedOps.compile_steps` that makes calls of up to `MAX_STEPS_PER_CALL` steps.

    Args:
        call: a function of (state, rest, table, numbers, count on the device, count) that gives the state afterwards,
            the results (one row each, possibly more rows than steps), and the numbers of the next step.
        concatenate: joins the results of several calls.
        put_on: from `rest`, the function that puts a NumPy array on the device that computes.
        put_key: puts the random key there; None where `put_on` does that too.
    """

    def run(state: Any, rest: Any, cursor: StepCursor, count: int) -> tuple[Any, Any]:
        put, results = put_on(rest), []
        rest = {**rest, "key": cursor.device_scalars.key(rest["key"], put_key or put)}
        for size in _call_sizes(count):
            numbers, table, device_count = cursor.device_scalars.prepare(cursor, size, put)
            state, result, numbers = call(state, rest, table, numbers, device_count, size)
            cursor.device_scalars.advance(cursor, size, numbers)
            results.append(result)
        return state, results[0] if len(results) == 1 else concatenate(results)

    return run


def _call_sizes(count: int) -> Iterator[int]:
    """Steps of each call; a single call of no steps where there are none."""
    yield min(MAX_STEPS_PER_CALL, count)
    for begin in range(MAX_STEPS_PER_CALL, count, MAX_STEPS_PER_CALL):
        yield min(MAX_STEPS_PER_CALL, count - begin)


def steps_gathered_at_once(step_bytes: int) -> int:
    """For how many steps rows are gathered at once, where the batch of one step takes so many bytes."""
    return max(1, min(_MAX_GATHERED_STEPS, _MAX_GATHERED_BYTES // max(step_bytes, 1)))


def is_faster(first: Callable[[int], Any], second: Callable[[int], Any], step_counts: Sequence[int]) -> bool:
    """Whether `first` takes no longer than `second`, for the first number of steps that takes long enough to tell.

    Args:
        first: runs so many steps, and waits for them.
        second: the same in another way.
        step_counts: the numbers of steps to try, rising.
    """
    for count in step_counts:
        seconds = [_shortest_seconds(partial(way, count)) for way in (first, second)]
        if max(seconds) > _CONCLUSIVE_SECONDS:
            break
    return seconds[0] <= seconds[1]


def _shortest_seconds(call: Callable[[], Any]) -> float:
    """Of a call, or of the shorter of two if the first is short: another process may have had the processor."""
    taken = _seconds(call)
    return taken if taken > _LONG_SECONDS else min(taken, _seconds(call))


def _seconds(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
