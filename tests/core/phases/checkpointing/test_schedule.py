"""When checkpoints are due, by steps and by time, in one process and in several that agree."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from anyaccel.phases.checkpointing import checkpointer as schedule
from anyaccel.phases.checkpointing.checkpoint import Checkpoint
from anyaccel.phases.checkpointing.checkpointer import AgreedSchedule, CheckpointSchedule


class Clock:
    """Time that passes as it is told."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(schedule, "time", clock)
    return clock


def run_of() -> Any:
    return SimpleNamespace(epoch=1, step=0, history=[SimpleNamespace(steps=10)])


def test_by_steps_it_is_counted_over_the_run() -> None:
    run = run_of()
    due = CheckpointSchedule(Checkpoint("a", every=4), run)
    found = []
    for run.step in range(1, 8):
        if due.is_due_after_step(is_busy=True):
            found.append(run.step)
    assert found == [2, 6]
    assert [due.steps_until_due(step) for step in range(4)] == [2, 1, 4, 3]
    assert not due.is_due_after_epoch(is_busy=False)


def test_after_epochs_it_is_due_by_default_and_for_the_best() -> None:
    assert CheckpointSchedule(Checkpoint("a"), run_of()).is_due_after_epoch(is_busy=True)
    best = Checkpoint("a", every=4, keep_best="loss")
    assert CheckpointSchedule(best, run_of()).is_due_after_epoch(is_busy=True)
    assert CheckpointSchedule(Checkpoint("a"), run_of()).steps_until_due(0) is None


def test_by_time_it_waits_for_the_one_before(clock: Clock) -> None:
    due = CheckpointSchedule(Checkpoint("a", every="10s"), run_of())
    clock.now += 9
    assert not due.is_due_after_step(is_busy=False)
    clock.now += 1
    assert due.is_due_after_step(is_busy=False) and due.is_due_after_epoch(is_busy=False)
    assert not due.is_due_after_step(is_busy=True)
    due.written()
    assert not due.is_due_after_epoch(is_busy=False)


def test_replicas_whose_clocks_differ_write_after_the_same_steps(clock: Clock) -> None:
    """The second one is asked at steps that the first one tells, and takes its answer, whatever its own clock says."""
    said: list[Any] = []

    def tell(value: Any) -> Any:
        said.append(value)
        return value

    runs = run_of(), run_of()
    checkpoint = Checkpoint("a", every="10s")
    first = AgreedSchedule(checkpoint, runs[0], tell)
    second = AgreedSchedule(checkpoint, runs[1], lambda value: said[-1])
    written, asked = [], 0
    for step in range(1, 400):
        clock.now += 0.1
        for run in runs:
            run.step = step
        # a call of several steps never goes beyond where the next question is
        assert first.steps_until_due(step - 1) == second.steps_until_due(step - 1) != 0
        before = len(said)
        answers = first.is_due_after_step(is_busy=False), second.is_due_after_step(is_busy=False)
        asked += len(said) - before
        assert answers[0] == answers[1]
        if answers[0]:
            written.append(step)
            first.written()
    assert len(written) == 3
    assert all(100 <= gap <= 110 for gap in [written[0], *(b - a for a, b in pairwise(written))])
    assert asked < 100
