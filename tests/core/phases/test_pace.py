"""How long calls are said to take where a framework gives back what it still computes."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from anyaccel.data import FeatureSet, SimpleSampler
from anyaccel.experiment import Experiment
from anyaccel.graph import ModelGraph, ModelNode
from anyaccel.numpy_backend import Dense, NumpyBackend
from anyaccel.phases import Callback, TrainPhase, step_pacing, train_loop
from anyaccel.phases.step_pacing import PendingCalls, StepPacing
from anyaccel.specs import AppliedLoss


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that stands still but for the naps that are taken, and what a test adds."""
    found = SimpleNamespace(now=100.0)
    passed = SimpleNamespace(
        perf_counter=lambda: found.now, sleep=lambda seconds: setattr(found, "now", found.now + seconds)
    )
    monkeypatch.setattr(step_pacing, "time", passed)
    return found


def call(clock: SimpleNamespace, until: float) -> Any:
    return [SimpleNamespace(is_ready=lambda: clock.now >= until)]


def test_a_call_is_waited_for_once_the_next_lies_ready(clock: SimpleNamespace) -> None:
    pending = PendingCalls()
    assert list(pending.launched(call(clock, 101.0), 8, 100.0)) == []
    ((steps, seconds),) = pending.launched(call(clock, 103.0), 16, 100.1)
    assert steps == 8
    assert seconds == pytest.approx(1.0, abs=1e-3)
    clock.now = 103.0
    ((steps, seconds),) = pending.finish()
    assert steps == 16
    assert seconds == pytest.approx(2.0, abs=1e-3), "from when the one before was done"
    assert list(pending.finish()) == []


def test_what_is_between_epochs_is_no_calls_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A callback that takes long there made the calls of the next epoch small."""
    shift, taken = [0.0], []
    shifted = SimpleNamespace(perf_counter=lambda: time.perf_counter() + shift[0], sleep=time.sleep)
    for module in (step_pacing, train_loop):
        monkeypatch.setattr(module, "time", shifted)

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
    phase = TrainPhase("t", data="train", sampler=SimpleSampler(64), losses=losses, n_epochs=3, callbacks=[Slow()])
    Experiment("e", graph, progress="none").run_phase(phase)
    assert len(taken) == 3
    assert max(taken) < 500.0
