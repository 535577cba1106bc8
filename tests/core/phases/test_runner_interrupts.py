"""Ctrl-C at any point of a phase: the graph is complete afterwards, and can be trained further."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import anyaccel
from anyaccel import AppliedLoss
from anyaccel.graph import ConcatNode, ModelGraph, ModelNode
from anyaccel.numpy_backend import Dense, NumpyBackend
from anyaccel.phases import EarlyStopping, EvalPhase, TrainPhase
from anyaccel.phases import runner as running
from anyaccel.phases.executor.pipeline import Pipeline
from anyaccel.specs import Optimizer

MSE = AppliedLoss("mse", on="net")
POINTS = 150
SWALLOWED = ("_free", "<genexpr>")  # what Python calls when it frees an object: nothing that is raised there comes out
CALLING = {"hooks.py:call", "hooks.py:_call_with_named", "hooks.py:phase_end"}  # with all that these call
ENDED = {"train_phase.py:results_of", "base.py:end"}  # the phase is over, and everybody knows
DEFERRING = "interrupts.py"  # where a real signal waits; one raised at its `__exit__` would be deferred for ever
START = "runner.py:start"
FIRST = {
    "prepare.py:leave_contexts",
    "outer_contexts.py:left_contexts",
    "train_phase.py:check_monitors",
}  # before anybody is told of anything
OURS = str(Path(anyaccel.__file__).parent)


class Interrupt:
    """Raises KeyboardInterrupt when a function of anyaccel is entered for the `after`th time."""

    def __init__(self, after):
        self.after, self.count, self.where, self.within = after, 0, "", set()

    def __enter__(self):
        sys.setprofile(self._see)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)

    def _see(self, frame, event, _):
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(OURS) and not path.endswith(DEFERRING):
            self.count += 1
            if self.count >= self.after > 0 and frame.f_code.co_name not in SWALLOWED:
                sys.setprofile(None)
                self.where = _place(frame)
                self.within = {_place(outer) for outer in _stack(frame)}
                raise KeyboardInterrupt


def _place(frame):
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_name}"


def _stack(frame):
    while frame is not None:
        yield frame
        frame = frame.f_back


@pytest.fixture
def house(sims, data, experiment, at):
    """Two branches on two devices, trained once; and a phase over them with validation, callbacks and clipping."""
    nodes = [
        ModelNode("left", Dense(2), data.reference(["x"], ["y"]), "sim:0"),
        ModelNode("right", Dense(2), data.reference(["x"], ["y"]), "sim:1"),
        ConcatNode("both", ["left", "right"]),
        ModelNode("net", Dense(1), "both", "sim:0"),
    ]
    graph = ModelGraph(nodes, Optimizer("adam", lr=0.05, clip_norm=1.0))
    ours = experiment(graph)
    ours.run_phase(TrainPhase("t", data="train", losses=[MSE], batch_size=8))
    moments = []
    listen = [
        at("phase_start", lambda phase: moments.append("start")),
        at("phase_end", lambda **told: moments.append(told["error"])),
        EarlyStopping("val_mse", restore_best=True, patience=9),
    ]
    validation = EvalPhase("check", data="val", metrics=["mse"])

    def phase(**settings):
        return TrainPhase(
            "t", data="train", losses=[MSE], batch_size=8, validation=validation, callbacks=listen, **settings
        )

    return ours, graph, phase, moments


def test_a_phase_can_be_interrupted_anywhere(house):
    ours, graph, phase, moments = house
    ours.run_phase(phase())
    with Interrupt(-1) as counter:
        ours.run_phase(phase())
    calls, seen, late, arrays = counter.count, set(), [], 3 * 2
    assert calls > 1000, calls
    backend = NumpyBackend()
    for after in range(3, calls, calls // POINTS):
        moments.clear()
        steps = {label: state.step for label, state in graph.optimizer_states.items()}
        with Interrupt(after) as interrupt:
            try:
                ours.run_phase(phase())
            except KeyboardInterrupt as error:
                if moments not in (["start", error], []):
                    late.append((interrupt.where, interrupt.within))
                del error
        seen.add(interrupt.where)
        assert ours.last_run.error is None or isinstance(ours.last_run.error, KeyboardInterrupt)
        for label, device in (("left", "sim:0"), ("right", "sim:1"), ("net", "sim:0")):
            assert str(backend.device_of(graph[label].model)) == device
            assert graph.optimizer_states[label].step >= steps[label]
        state = graph.state()
        assert all(np.isfinite(array).all() for array in state.values())
        assert len([name for name in state if "/parameters/" in name]) == arrays
    assert len(seen) > 30, seen
    late = [(where, within) for where, within in late if where != START and not within & FIRST]
    untold = [where for where, within in late if not within & (CALLING | ENDED)]
    assert not untold, "hooks get phase_start and phase_end unless the interrupt comes in their calls"
    result = ours.run_phase(phase())
    assert len(result.epochs) == 1 and moments[-1] is None


def test_an_interrupted_release_is_completed(line, experiment, train, same):
    """What was written halfway is written again: all parameters of a model are of one step."""
    left = [1]

    class Halfway(dict):
        def update(self, given, **more):
            for name, array in given.items():
                self[name] = array
                if left[0] and array is not before.get(name):
                    left[0] -= 1
                    raise KeyboardInterrupt

    graph, plain = line().build(), line().build()
    model = graph["net"].model
    model.parameters = Halfway(model.parameters)
    before = dict(model.parameters)
    with pytest.raises(KeyboardInterrupt):
        experiment(graph).run_phase(train())
    experiment(plain).run_phase(train())
    same(plain.state(), graph.state())


@pytest.mark.skipif(sys.platform == "win32", reason="a process cannot send itself signals there")
def test_a_signal_that_waits_for_phase_end_keeps_no_callback_from_it(line, experiment, train, at, monkeypatch):
    """It is raised when all have been called."""
    told, release = [], running.release

    def release_and_interrupt(run):
        release(run)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(running, "release", release_and_interrupt)
    callbacks = [at("phase_end", lambda error, name=name: told.append(name)) for name in ("first", "second")]
    try:
        with pytest.raises(KeyboardInterrupt):
            experiment(line()).run_phase(train(callbacks=callbacks))
    finally:
        signal.signal(signal.SIGINT, before)
    assert told == ["first", "second"]


@pytest.fixture
def told(at):
    """A callback that notes, at the end, the steps of the epoch that was not completed."""
    steps = []
    return at("phase_end", lambda run: steps.append(run.step)), steps


def test_a_step_counts_whatever_its_callback_raises(line, experiment, train, at, told):
    graph, (listen, steps) = line(), told

    def fail(run):
        if run.step == 2:
            raise ValueError("enough")

    with pytest.raises(ValueError, match="enough"):
        experiment(graph).run_phase(train(callbacks=[at("step_end", fail), listen]))
    assert steps == [3] and graph.optimizer_states["net"].step == 3


def fail_in_the_third_step(monkeypatch):
    """Training of models that are built already ends by an error in the third step."""
    calls, real = [], Dense.apply

    def apply(self, *values, train, **settings):
        calls.append(train)
        if calls.count(True) == 4:  # the first is that of shape inference
            raise ValueError("the third batch")
        return real(self, *values, train=train, **settings)

    monkeypatch.setattr(Dense, "apply", apply)


@pytest.mark.parametrize("steps_at_once", [1, 4])
def test_steps_before_an_error_within_a_call_are_counted(line, experiment, train, told, monkeypatch, steps_at_once):
    graph, (listen, steps) = line().build(), told
    fail_in_the_third_step(monkeypatch)
    pacing = SimpleNamespace(n_steps=steps_at_once, record=lambda n_steps, seconds: None)
    monkeypatch.setattr("anyaccel.phases.train_loop.StepPacing", lambda: pacing)
    with pytest.raises(ValueError, match="the third batch"):
        experiment(graph).run_phase(train(callbacks=[listen]))
    assert steps == [2] and graph.optimizer_states["net"].step == 2


def test_an_error_between_two_updates_of_a_step_goes_back_to_the_snapshot(line, experiment, train, told, monkeypatch):
    graph, plain, (listen, steps) = line().build(), line().build(), told
    fail_in_the_third_step(monkeypatch)
    monkeypatch.setattr(Pipeline, "is_updating", True)
    monkeypatch.setattr("anyaccel.phases.oom_recovery.EpochRecovery.after_call", lambda *_: None)
    with pytest.raises(ValueError, match="the third batch") as raised:
        experiment(graph).run_phase(train(callbacks=[listen]))
    assert "a step was broken off: values are those after 0 steps of this epoch" in raised.value.__notes__
    assert steps == [0] and graph.optimizer_states["net"].step == 0
    for name, array in plain.state().items():
        np.testing.assert_array_equal(graph.state()[name], array)
