"""How many steps a call takes, and how long calls take where a framework returns before its results are computed."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyaccel import AppliedLoss
from anyaccel.adapter import ArrayProgram
from anyaccel.data import FeatureSet, SimpleSampler
from anyaccel.experiment import Experiment
from anyaccel.graph import ModelGraph, ModelNode
from anyaccel.numpy_backend import Dense, NumpyBackend
from anyaccel.phases import Callback, TrainPhase, train_loop
from anyaccel.phases.train_loop import PendingCalls, StepPacing


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that stands still but for the naps that are taken, and what a test adds."""
    found = SimpleNamespace(now=100.0)
    passed = SimpleNamespace(
        perf_counter=lambda: found.now, sleep=lambda seconds: setattr(found, "now", found.now + seconds)
    )
    monkeypatch.setattr(train_loop, "time", passed)
    return found


def call(clock: SimpleNamespace, until: float) -> Any:
    return [SimpleNamespace(is_ready=lambda: clock.now >= until)]


def test_a_call_is_waited_for_once_the_next_lies_ready(clock: SimpleNamespace) -> None:
    pending = PendingCalls()
    pending.add(call(clock, 101.0), 8, 100.0)
    assert list(pending.done()) == []
    pending.add(call(clock, 103.0), 16, 100.1)
    ((steps, seconds),) = pending.done()
    assert steps == 8
    assert seconds == pytest.approx(1.0, abs=1e-3)
    clock.now = 103.0
    ((steps, seconds),) = pending.done(are_read=True)
    assert steps == 16
    assert seconds == pytest.approx(2.0, abs=1e-3), "from when the one before was done"
    assert list(pending.done(are_read=True)) == []


def test_what_is_between_epochs_is_no_calls_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A callback that takes long there made the calls of the next epoch small."""
    shift, taken = [0.0], []
    shifted = SimpleNamespace(perf_counter=lambda: time.perf_counter() + shift[0], sleep=time.sleep)
    monkeypatch.setattr(train_loop, "time", shifted)

    class Slow(Callback):
        def epoch_start(self, run: Any) -> None:
            shift[0] += 1000.0

    class Noting(StepPacing):
        def record(self, n_steps: int, seconds: float) -> None:
            taken.append(seconds)
            super().record(n_steps, seconds)

    monkeypatch.setattr(train_loop, "StepPacing", Noting)
    monkeypatch.setattr(NumpyBackend, "is_ready", lambda self, value: shift[0] > 1000.0, raising=False)
    x = np.ones((64, 3), "float32")
    data = FeatureSet.from_dict("d", {"x": x, "y": x[:, :1]}, ["x"], ["y"])
    data.split_random({"train": 1.0})
    graph = ModelGraph([ModelNode("net", Dense(1), data.reference())], "sgd")
    losses = [AppliedLoss("mse", "net")]
    phase = TrainPhase("t", data="train", sampler=SimpleSampler(64), losses=losses, epochs=3, callbacks=[Slow()])
    Experiment("e", graph, progress="none").run_phase(phase)
    assert len(taken) == 3
    assert max(taken) < 500.0


# -- how many steps a call takes ---------------------------------------------------------------------------------------


def test_calls_grow_by_doubling():
    pace, counts = StepPacing(), []
    for _ in range(8):
        counts.append(pace.n_steps)
        pace.record(counts[-1], 1e-6 * counts[-1])
    assert counts == [1, 2, 4, 8, 16, 32, 64, 128]


@given(st.floats(1e-7, 2.0), st.integers(1, 60))
def test_calls_never_take_longer_than_aimed_at_unless_one_step_does(seconds_a_step, calls):
    pace = StepPacing()
    for _ in range(calls):
        count = pace.n_steps
        assert count == 1 or count * seconds_a_step <= 0.2 * (1 + 1e-9)
        pace.record(count, count * seconds_a_step)


@given(st.lists(st.floats(0, 5.0), min_size=1, max_size=40))
def test_a_pace_is_at_least_one_step_and_at_most_doubles(times):
    pace = StepPacing()
    for seconds in times:
        before = pace.n_steps
        pace.record(before, seconds)
        assert 1 <= pace.n_steps <= 2 * before


def test_steps_that_become_slow_are_taken_fewer_at_a_time():
    pace = StepPacing()
    for _ in range(10):
        pace.record(pace.n_steps, pace.n_steps * 1e-5)
    assert pace.n_steps == 1024
    pace.record(1024, 1024 * 1e-2)
    assert pace.n_steps == 16


def test_a_short_last_call_says_what_a_step_takes():
    """The calls of the next epoch are not cut to the length of the last one of this."""
    pace = StepPacing()
    for _ in range(10):
        pace.record(pace.n_steps, pace.n_steps * 1e-5)
    pace.record(3, 3e-5)
    assert pace.n_steps == 1024


@pytest.mark.parametrize(("seconds", "most"), [(1e-5, 2048), (1e-3, 128), (0.5, 1)])
def test_calls_of_a_run_take_less_than_half_a_second_unless_one_step_does(
    table, line, experiment, train, monkeypatch, seconds, most
):
    """By a clock that only steps move."""
    many, counts, now = table(6000), [], [0.0]
    steps = ArrayProgram.train_steps

    def timed(self, *args):
        counts.append(args[3])
        now[0] += args[3] * seconds
        return steps(self, *args)

    monkeypatch.setattr(train_loop, "time", SimpleNamespace(perf_counter=lambda: now[0], sleep=None))
    monkeypatch.setattr(ArrayProgram, "train_steps", timed)
    experiment(line(source=many)).run_phase(train(data=many, batch_size=1 if most > 1 else 100))
    assert sum(counts) == (6000 if most > 1 else 60)
    doubling = [1 << i for i in range(most.bit_length())]
    assert counts[: len(doubling)] == doubling
    assert max(counts) == most and most * seconds <= 0.5
