"""Tests of custom training steps, under a program's state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from anyaccel.backend import Program
from anyaccel.specs import Optimizer, Schedule
from anyaccel_devtools.testing import reference_formulas
from anyaccel_devtools.testing.harness import GROUP, NODE, Batch, Harness, assert_close, assert_equal
from anyaccel_devtools.testing.subject import Subject

Make = Callable[[], Any]
Step = Callable[..., Any]
BATCH = Batch.of(6)
OPTIMIZERS = {
    "sgd with a schedule": Optimizer("sgd", lr=0.1, schedule=Schedule("exponential", rate=0.7)),
    "adam": Optimizer("adam", lr=0.05, weight_decay=0.1),
    "clipped": Optimizer("sgd", lr=0.1, clip_norm=0.05),
}
ADAM = OPTIMIZERS["adam"]


class CustomStepTests(Subject):
    """A step that trains `node` on the columns `x` and `t` by the mean squared error, in the framework's own code."""

    @pytest.mark.parametrize("name", OPTIMIZERS)
    def test_a_step_of_the_users_own_trains_as_steps_of_the_program(
        self, harness: Harness, model: Make, custom_step: Step, name: str
    ) -> None:
        """The step receives the optimizer of the spec, with its schedule and clipping."""
        prepared = harness.prepare_model(model)
        clone, optimizer = harness.clone_model(model, prepared), OPTIMIZERS[name]
        program = built(harness, prepared, optimizer)
        for _ in range(3):
            run_own(harness, program, custom_step)
        states = program.close()
        train(harness, harness.build(clone, optimizer=optimizer, compile="off"), optimizer, 3)
        assert states[NODE].step == 3
        assert_close(harness.parameter_values(prepared), harness.parameter_values(clone), rtol=2e-5, atol=2e-6)

    def test_the_figures_of_a_step_stay_on_the_device(self, harness: Harness, model: Make, custom_step: Step) -> None:
        """The result of the step is returned: here the loss before the update."""
        prepared = harness.prepare_model(model)
        program = built(harness, prepared, ADAM)
        (y,), _ = program.forward(harness.inputs(BATCH))
        total, weight = reference_formulas.loss("mse", harness.to_numpy(y), BATCH.targets["mse"])
        figures = run_own(harness, program, custom_step)
        assert set(figures) == {"loss"}
        assert harness.backend.device_of(figures["loss"]) == harness.device
        assert_close(float(harness.to_numpy(figures["loss"])), total / weight)

    def test_evaluation_and_the_next_program_go_on_from_them(
        self, harness: Harness, model: Make, custom_step: Step
    ) -> None:
        """Evaluation sees their results, also between steps, and another program has their optimizer state."""
        prepared = harness.prepare_model(model)
        clone = harness.clone_model(model, prepared)
        program, losses = built(harness, prepared, ADAM), []
        for _ in range(2):
            run_own(harness, program, custom_step)
            losses.append(harness.eval_loss(program, BATCH))
        train(harness, harness.build(prepared, optimizer=ADAM, states=program.close()), ADAM, 1)
        other, expected = harness.build(clone, optimizer=ADAM, compile="off"), []
        for _ in range(2):
            train(harness, other, ADAM, 1, close=False)
            expected.append(harness.eval_loss(other, BATCH))
        train(harness, other, ADAM, 1)
        assert_close(losses, expected)
        assert_close(harness.parameter_values(prepared), harness.parameter_values(clone), rtol=2e-5, atol=2e-6)

    def test_buffers_change_in_steps_of_the_users_own(
        self, harness: Harness, buffered_model: Make, custom_step: Step
    ) -> None:
        """Models are in training mode in them, and `close` writes their buffers."""
        prepared = harness.prepare_model(buffered_model)
        clone, sgd = harness.clone_model(buffered_model, prepared), Optimizer("sgd", lr=0.1)
        program = built(harness, prepared, sgd)
        for _ in range(2):
            run_own(harness, program, custom_step)
        program.close()
        train(harness, harness.build(clone, optimizer=sgd, compile="off"), sgd, 2)
        assert_close(harness.compute.state(prepared), harness.compute.state(clone), rtol=2e-5, atol=2e-6)

    @pytest.mark.parametrize("name", ["model", "buffered_model"])
    def test_restore_undoes_steps_of_the_users_own(
        self, harness: Harness, request: pytest.FixtureRequest, custom_step: Step, name: str
    ) -> None:
        """A snapshot between two steps holds everything that they change; later steps can be run again."""
        prepared = harness.prepare_model(request.getfixturevalue(name))
        program = built(harness, prepared, Optimizer("momentum", lr=0.05))
        run_own(harness, program, custom_step)
        snapshot, states = program.snapshot(), []
        for _ in range(2):
            program.restore(snapshot)
            run_own(harness, program, custom_step)
            program.sync_models()
            assert program.optimizer_states()[NODE].step == 2
            states.append(harness.compute.state(prepared))
        assert_equal(states[1], states[0])


def built(harness: Harness, model: Any, optimizer: Optimizer) -> Program:
    """Return a program of the model; a skip without the capability."""
    if not harness.compute.custom_steps:
        pytest.skip("custom_steps is not declared")
    return harness.build(model, optimizer=optimizer)


def run_own(harness: Harness, program: Program, custom_step: Step) -> Any:
    """Run one custom step on BATCH."""
    x, t = harness.inputs(BATCH)
    return program.custom_step(custom_step, {"x": x, "t": t})


def train(harness: Harness, program: Program, optimizer: Optimizer, steps: int, *, close: bool = True) -> None:
    """Run steps of the program itself on BATCH, clipped if the optimizer defines it."""
    for _ in range(steps):
        harness.forward_backward(program, harness.inputs(BATCH))
        scale = {}
        if optimizer.clip_norm is not None:
            scale = {GROUP: reference_formulas.clip_scale(harness.gradients(program), optimizer.clip_norm)}
        program.optimizer_step(scale)
    if close:
        program.close()
