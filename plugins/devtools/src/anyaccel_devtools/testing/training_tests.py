"""Tests of optimizer steps, snapshots, optimizer states, and the end of a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from anyaccel.device import Device
from anyaccel.segment import NodeState
from anyaccel.specs import Optimizer, Schedule
from anyaccel_devtools.testing import reference_formulas
from anyaccel_devtools.testing.harness import GROUP, LOSS, NODE, Batch, Harness, assert_close, assert_equal
from anyaccel_devtools.testing.subject import Subject

Make = Callable[[], Any]
BATCH = Batch.of(6)
OPTIMIZERS = {
    "sgd with decay": Optimizer("sgd", lr=0.1, weight_decay=0.3),
    "sgd with momentum": Optimizer("sgd", lr=0.1, momentum=0.5, weight_decay=0.1),
    "nesterov": Optimizer("momentum", lr=0.05, nesterov=True, weight_decay=0.1),
    "adam with betas": Optimizer("adam", lr=0.05, betas=(0.5, 0.7), eps=1e-2),
    "adam with decay": Optimizer("adam", lr=0.05, weight_decay=0.3),
    "a schedule": Optimizer("sgd", lr=0.2, schedule=Schedule("linear", steps=1, final=0.25, warmup=1)),
    "clipped by value": Optimizer("sgd", lr=0.1, clip_value=1e-3, weight_decay=0.1),
    "adamw with a schedule": Optimizer("adamw", lr=0.1, weight_decay=0.5, schedule=Schedule("step", rate=0.5, every=2)),
}
SGD = Optimizer("sgd", lr=0.1)
ADAM = Optimizer("adam", lr=0.05, schedule=Schedule("exponential", rate=0.7))
# For models with batch normalization, whose biases before it have gradients of rounding errors, which Adam enlarges.
MOMENTUM = Optimizer("momentum", lr=0.05, schedule=Schedule("exponential", rate=0.7))
SLOTS = {"sgd": set(), "momentum": {"velocity"}, "adam": {"m", "v"}, "adamw": {"m", "v"}}


class OptimizerStepTests(Subject):
    """Optimizer steps and the gradients before them."""

    @pytest.mark.parametrize("name", OPTIMIZERS)
    def test_an_optimizer_follows_its_formula(self, harness: Harness, model: Make, name: str) -> None:
        """Three steps with the program's gradients follow docs/reference/formulas.md."""
        prepared = harness.prepare_model(model)
        start = harness.parameter_values(prepared)
        program = harness.build(prepared, optimizer=OPTIMIZERS[name])
        gradients = harness.train(program, BATCH, 3)
        program.close()
        assert_close(
            harness.parameter_values(prepared),
            reference_formulas.train(OPTIMIZERS[name], start, gradients),
            rtol=2e-5,
            atol=2e-6,
        )

    @pytest.mark.parametrize("name", ["sgd with decay", "adam with decay", "clipped by value"])
    def test_optimizer_step_scales_gradients_first(self, harness: Harness, model: Make, name: str) -> None:
        """`scale` multiplies the gradients before weight decay is added."""
        prepared = harness.prepare_model(model)
        start = harness.parameter_values(prepared)
        program = harness.build(prepared, optimizer=OPTIMIZERS[name])
        gradients = harness.train(program, BATCH, 2, scale={GROUP: 0.125})
        program.close()
        assert_close(
            harness.parameter_values(prepared),
            reference_formulas.train(OPTIMIZERS[name], start, gradients, 0.125),
            rtol=2e-5,
            atol=2e-6,
        )

    def test_optimizer_step_does_not_clip_by_itself(self, harness: Harness, model: Make) -> None:
        """The caller clips, because the norm may cover several segments; `clip_norm` alone changes no step."""
        prepared = harness.prepare_model(model)
        other = harness.clone_model(model, prepared)
        for prepared_model, clip in ((prepared, None), (other, 1e-3)):
            compile = "off" if clip is None else "auto"
            program = harness.build(prepared_model, optimizer=Optimizer("sgd", lr=0.1, clip_norm=clip), compile=compile)
            harness.train(program, BATCH, 2)
            program.close()
        assert_close(harness.parameter_values(other), harness.parameter_values(prepared))

    def test_optimizer_step_clears_the_gradients(self, harness: Harness, model: Make) -> None:
        """The next step starts from zero gradients."""
        program = harness.build(harness.prepare_model(model), optimizer=Optimizer("sgd", lr=1e-12))
        first, second = harness.train(program, BATCH, 2)
        for before, after in zip(first, second, strict=True):
            assert_close(after, before)

    def test_zero_grad_clears_the_gradients_without_a_step(self, harness: Harness, model: Make) -> None:
        """Later gradients start from zero, and no parameter changes."""
        prepared = harness.prepare_model(model)
        start = harness.parameter_values(prepared)
        expected = harness.gradient_of(prepared, BATCH)
        program = harness.build(prepared)
        harness.forward_backward(program, harness.inputs(Batch.of(6, seed=9)))
        program.zero_grad()
        harness.forward_backward(program, harness.inputs(BATCH))
        assert_close(dict(zip(expected, harness.gradients(program), strict=True)), expected)
        program.zero_grad()
        program.close()
        assert_equal(harness.parameter_values(prepared), start)

    def test_map_gradients_replaces_every_gradient(self, harness: Harness, model: Make) -> None:
        """Later reads and the step use what the function returns."""
        prepared = harness.prepare_model(model)
        start, gradient = harness.parameter_values(prepared), harness.gradient_of(prepared, BATCH)
        program = harness.build(prepared, optimizer=SGD)
        harness.forward_backward(program, harness.inputs(BATCH))
        program.map_gradients(lambda g: g * 3)
        for mapped, g in zip(harness.gradients(program), gradient.values(), strict=True):
            assert_close(mapped, 3 * g)
        program.optimizer_step()
        program.close()
        assert_close(harness.parameter_values(prepared), {name: w - 0.3 * gradient[name] for name, w in start.items()})

    def test_map_gradients_follows_the_order_of_the_parameters(self, harness: Harness, model: Make) -> None:
        """Gradients come in the order of `parameters`; replicas rely on it."""
        prepared = harness.prepare_model(model)
        program = harness.build(prepared)
        harness.forward_backward(program, harness.inputs(BATCH))
        shapes = [g.shape for g in harness.gradients(program)]
        assert shapes == [spec.shape for spec in harness.compute.parameters(prepared).values()]

    def test_grad_stats_are_the_squared_norm_and_finiteness(self, harness: Harness, model: Make) -> None:
        """It returns one pair for each group, on the device."""
        program = harness.build(harness.prepare_model(model))
        harness.forward_backward(program, harness.inputs(BATCH))
        expected = sum(float(np.square(g.astype("float64")).sum()) for g in harness.gradients(program))
        stats = program.grad_stats()
        assert set(stats) == {GROUP}
        assert_close(float(harness.to_numpy(stats[GROUP][0])), expected)
        assert bool(harness.to_numpy(stats[GROUP][1]))
        assert [harness.backend.device_of(part) for part in stats[GROUP]] == [harness.device] * 2

    @pytest.mark.parametrize("factor", [float("inf"), float("nan")])
    def test_grad_stats_detect_non_finite_gradients(self, harness: Harness, model: Make, factor: float) -> None:
        """One infinite or NaN gradient suffices."""
        program = harness.build(harness.prepare_model(model))
        harness.forward_backward(program, harness.inputs(BATCH))
        factors = iter([factor])
        program.map_gradients(lambda g: g * next(factors, 1.0))
        assert not bool(harness.to_numpy(program.grad_stats()[GROUP][1]))


class LifecycleTests(Subject):
    """Snapshots, optimizer states, and `close`."""

    @pytest.mark.parametrize("name", ["model", "buffered_model", "random_model"])
    def test_restore_undoes_everything_a_step_changes(
        self, harness: Harness, request: pytest.FixtureRequest, name: str
    ) -> None:
        """A step after `restore` and the evaluation give the same losses bit for bit, any number of times."""
        program = harness.build(harness.prepare_model(request.getfixturevalue(name)), optimizer=ADAM)
        program.seed(5)
        harness.train(program, BATCH, 1)
        snapshot = program.snapshot()

        def losses() -> list[float]:
            in_training = harness.mean_loss(harness.forward_backward(program, harness.inputs(BATCH))[LOSS])
            program.optimizer_step()
            return [in_training, harness.eval_loss(program, BATCH)]

        first = losses()
        program.restore(snapshot)
        assert losses() == first
        program.restore(snapshot)
        assert losses() == first

    def test_restore_clears_gradients(self, harness: Harness, model: Make) -> None:
        """A step that failed halfway leaves no gradients."""
        prepared = harness.prepare_model(model)
        expected = harness.gradient_of(prepared, BATCH)
        program = harness.build(prepared)
        snapshot = program.snapshot()
        harness.forward_backward(program, harness.inputs(BATCH))
        program.restore(snapshot)
        harness.forward_backward(program, harness.inputs(BATCH))
        assert_close(dict(zip(expected, harness.gradients(program), strict=True)), expected)

    @pytest.mark.parametrize("name", SLOTS)
    def test_optimizer_states_have_the_slots_of_the_formulas(self, harness: Harness, model: Make, name: str) -> None:
        """They have, by node, the step count and the slots of each parameter, on its device; later steps change
        none. The live states are equal until the next step.
        """
        prepared = harness.prepare_model(model)
        program = harness.build(prepared, optimizer=Optimizer(name, lr=0.01))
        harness.train(program, BATCH, 1)
        states = program.optimizer_states()
        assert set(states) == {NODE}
        assert states[NODE].step == 1
        for parameter, spec in harness.compute.parameters(prepared).items():
            slots = states[NODE].slots.get(parameter, {})
            assert set(slots) == SLOTS[name]
            assert all(harness.backend.device_of(slot) == harness.device for slot in slots.values())
            assert all(harness.to_numpy(slot).shape == spec.shape for slot in slots.values())
        kept = {parameter: _host_copies(harness, slots) for parameter, slots in states[NODE].slots.items()}
        live = program.live_optimizer_states()
        assert live[NODE].step == 1
        for parameter, slots in live[NODE].slots.items():
            assert_close(_host_copies(harness, slots), kept[parameter])
        del live
        harness.train(program, BATCH, 1)
        for parameter, slots in states[NODE].slots.items():
            assert_close(_host_copies(harness, slots), kept[parameter])

    def test_close_writes_the_result_to_the_users_model(self, harness: Harness, model: Make) -> None:
        """The user's model object has the trained values, on its device."""
        prepared = harness.prepare_model(model)
        before = harness.parameter_values(prepared)
        program = harness.build(prepared)
        harness.train(program, BATCH, 2)
        after = harness.eval_loss(program, BATCH)
        program.close()
        assert any((before[name] != value).any() for name, value in harness.parameter_values(prepared).items())
        assert harness.backend.device_of(prepared) == harness.device
        assert_close(harness.eval_loss(harness.build(prepared, compile="off"), BATCH), after)

    def test_sync_models_writes_current_values_and_training_continues(self, harness: Harness, model: Make) -> None:
        """A checkpoint in the middle of a phase reads the values of the last step."""
        prepared = harness.prepare_model(model)
        clone = harness.clone_model(model, prepared)
        program, other = harness.build(prepared), harness.build(clone)
        for running in (program, other):
            harness.train(running, BATCH, 1)
        program.sync_models()
        other.close()
        assert_equal(harness.compute.state(prepared), harness.compute.state(clone))
        harness.train(program, BATCH, 1)
        program.close()
        after = harness.compute.state(prepared)
        assert any((after[name] != value).any() for name, value in harness.compute.state(clone).items())

    def test_close_writes_buffers_too(self, harness: Harness, buffered_model: Make) -> None:
        """The user's model has the buffers that training changed."""
        prepared = harness.prepare_model(buffered_model)
        before = harness.compute.state(prepared)
        program = harness.build(prepared)
        harness.train(program, BATCH, 2)
        program.close()
        after = harness.compute.state(prepared)
        assert any((after[name] != value).any() for name, value in before.items() if name.startswith("buffers/"))

    def test_close_may_be_called_twice(self, harness: Harness, model: Make) -> None:
        """A second call changes nothing and returns the same states."""
        prepared = harness.prepare_model(model)
        program = harness.build(prepared, optimizer=ADAM)
        harness.train(program, BATCH, 2)
        first, values = program.close(), harness.parameter_values(prepared)
        second = program.close()
        assert {node: state.step for node, state in first.items()} == {node: s.step for node, s in second.items()}
        assert_equal(harness.parameter_values(prepared), values)

    def test_training_continues_from_returned_states(self, harness: Harness, model: Make) -> None:
        """Two steps, `close`, and one more from its states equal three steps."""
        prepared = harness.prepare_model(model)
        other = harness.clone_model(model, prepared)
        uninterrupted = harness.build(prepared, optimizer=ADAM, compile="off")
        harness.train(uninterrupted, BATCH, 3)
        uninterrupted.close()
        states: dict[str, NodeState] = {}
        for steps in (2, 1):
            program = harness.build(other, optimizer=ADAM, states=states)
            harness.train(program, BATCH, steps)
            states = program.close()
        assert_close(harness.parameter_values(other), harness.parameter_values(prepared), rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("name", ["model", "buffered_model"])
    def test_training_continues_on_another_device(
        self, harness: Harness, request: pytest.FixtureRequest, second_device: Device, name: str
    ) -> None:
        """All trained values are placed elsewhere (parameters, buffers, optimizer states) and training continues
        there.
        """
        make: Make = request.getfixturevalue(name)
        optimizer = ADAM if name == "model" else MOMENTUM
        prepared = harness.prepare_model(make)
        other, elsewhere = harness.clone_model(make, prepared), harness.on_device(second_device)
        uninterrupted = harness.build(prepared, optimizer=optimizer, compile="off")
        harness.train(uninterrupted, BATCH, 2)
        expected_loss = harness.eval_loss(uninterrupted, BATCH)
        harness.train(uninterrupted, BATCH, 1)
        uninterrupted.close()
        program = harness.build(other, optimizer=optimizer, compile="off")
        harness.train(program, BATCH, 2)
        states, before = program.close(), harness.compute.state(other)
        moved = harness.backend.place(other, second_device)
        assert_equal(harness.compute.state(moved), before)
        program = elsewhere.build(moved, optimizer=optimizer, states=states)
        assert_close(elsewhere.eval_loss(program, BATCH), expected_loss)
        elsewhere.train(program, BATCH, 1)
        program.close()
        back = harness.backend.place(moved, harness.device)
        assert_close(harness.compute.state(back), harness.compute.state(prepared))


class TrainingTests(OptimizerStepTests, LifecycleTests):
    """Everything that `Program` promises about training."""


def _host_copies(harness: Harness, slots: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.array(harness.to_numpy(value)) for name, value in slots.items()}
