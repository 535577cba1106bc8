"""The driver of many steps in few calls, with a cursor that only counts."""

from __future__ import annotations

import time
from types import SimpleNamespace

import numpy as np
import pytest

from anyaccel.adapter import traced_program as step_loop
from anyaccel.adapter.traced_program import MAX_STEPS_PER_CALL, is_faster, multi_step_runner, steps_gathered_at_once


def sizes(count):
    """How many steps each call runs, and what comes out in all."""
    calls, advanced = [], []
    scalars = SimpleNamespace(
        key=lambda key, put: put(key),
        prepare=lambda cursor, size, put: ("numbers", "table", put(size)),
        advance=lambda cursor, size, numbers: advanced.append((size, numbers)),
    )

    def call(state, rest, table, numbers, device_count, size):
        assert (rest["key"], rest["columns"], device_count) == (("key",), 1, [size])
        calls.append(size)
        return state + size, np.arange(size), "next"

    run = multi_step_runner(call, np.concatenate, lambda rest: lambda value: [value], lambda key: (key,))
    state, results = run(10, {"key": "key", "columns": 1}, SimpleNamespace(device_scalars=scalars), count)
    assert state == 10 + count == 10 + len(results) and advanced == [(size, "next") for size in calls]
    return calls


@pytest.mark.parametrize(
    ("count", "expected"), [(0, [0]), (1, [1]), (MAX_STEPS_PER_CALL, [1024]), (2050, [1024, 1024, 2])]
)
def test_calls_run_at_most_so_many_steps_and_one_call_is_made_for_none(count, expected):
    assert sizes(count) == expected


def test_rows_are_gathered_for_several_small_steps_but_for_one_large_step():
    assert [steps_gathered_at_once(size) for size in (0, 100, 2**18, 2**20, 2**30)] == [32, 32, 4, 1, 1]


def test_the_faster_way_is_found_with_the_first_count_that_takes_long_enough(monkeypatch):
    tried = []

    def way(seconds):
        def run(count):
            tried.append(count)
            time.sleep(seconds * count)

        return run

    monkeypatch.setattr(step_loop, "_CONCLUSIVE_SECONDS", 0.004)
    assert is_faster(way(0.0), way(0.005), (1, 1000)) and 1000 not in tried
    assert not is_faster(way(0.005), way(0.0), (1, 1000))
    assert is_faster(way(0.0), way(0.0015), (1, 4, 1000)) and set(tried) == {1, 4}


@pytest.mark.parametrize(
    ("ticks", "is_first_faster"),
    [((0.0, 0.25, 1.0, 1.125, 0.0, 0.2, 0.0, 0.13), True), ((0.0, 4.0, 0.0, 0.1, 0.0, 0.1), False)],
    ids=["the shorter of two short calls counts", "a long call is measured once"],
)
def test_short_calls_are_measured_twice(monkeypatch, ticks, is_first_faster):
    clock = iter(ticks)
    monkeypatch.setattr(step_loop, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    assert is_faster(lambda count: None, lambda count: None, (1,)) is is_first_faster
    assert not list(clock)
