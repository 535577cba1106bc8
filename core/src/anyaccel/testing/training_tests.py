"""TrainingTests: what a program does with gradients, and how it begins and ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from anyaccel.device import Device
from anyaccel.segment import NodeState
from anyaccel.specs import Optimizer, Schedule
from anyaccel.testing import reference_formulas
from anyaccel.testing.harness import GROUP, LOSS, NODE, Batch, Bench, close, same
from anyaccel.testing.subject import Subject

Make = Callable[[], Any]
BATCH = Batch.of(6)
RECIPES = {
    "sgd": Optimizer("sgd", lr=0.1),
    "sgd with decay": Optimizer("sgd", lr=0.1, weight_decay=0.3),
    "sgd with momentum": Optimizer("sgd", lr=0.1, momentum=0.5, weight_decay=0.1),
    "momentum": Optimizer("momentum", lr=0.05),
    "nesterov": Optimizer("momentum", lr=0.05, nesterov=True, weight_decay=0.1),
    "adam": Optimizer("adam", lr=0.05),
    "adam with betas": Optimizer("adam", lr=0.05, betas=(0.5, 0.7), eps=1e-2),
    "adam with decay": Optimizer("adam", lr=0.05, weight_decay=0.3),
    "adamw": Optimizer("adamw", lr=0.05, weight_decay=0.3),
    "a schedule": Optimizer("sgd", lr=0.2, schedule=Schedule("linear", steps=3, final=0.25, warmup=2)),
    "adamw with a schedule": Optimizer("adamw", lr=0.1, weight_decay=0.5, schedule=Schedule("step", rate=0.5, every=2)),
}
ADAM = Optimizer("adam", lr=0.05, schedule=Schedule("exponential", rate=0.7))
SLOTS = {"sgd": set(), "momentum": {"velocity"}, "adam": {"m", "v"}, "adamw": {"m", "v"}}


class UpdateTests(Subject):
    """One step, and what gradients are before it."""

    @pytest.mark.parametrize("name", RECIPES)
    def test_an_optimizer_is_its_formula(self, bench: Bench, model: Make, name: str) -> None:
        """Five steps with the program's own gradients end where docs/reference/formulas.md says."""
        ready = bench.ready(model)
        start = bench.values(ready)
        program = bench.build(ready, optimizer=RECIPES[name])
        gradients = bench.train(program, BATCH, 5)
        program.close()
        close(bench.values(ready), reference_formulas.trained(RECIPES[name], start, gradients), rtol=2e-5, atol=2e-6)

    @pytest.mark.parametrize("name", ["sgd with decay", "adam with decay"])
    def test_apply_scales_the_gradients_before_all_else(self, bench: Bench, model: Make, name: str) -> None:
        """`scale`, which clips over segments, multiplies gradients and not what decay adds to them."""
        ready = bench.ready(model)
        start = bench.values(ready)
        program = bench.build(ready, optimizer=RECIPES[name])
        gradients = bench.train(program, BATCH, 3, scale={GROUP: 0.125})
        program.close()
        close(
            bench.values(ready),
            reference_formulas.trained(RECIPES[name], start, gradients, 0.125),
            rtol=2e-5,
            atol=2e-6,
        )

    def test_apply_does_not_clip_by_itself(self, bench: Bench, model: Make) -> None:
        """The norm may be over several segments, so whoever calls clips; a `clip_norm` alone changes no step."""
        ready = bench.ready(model)
        other = bench.twin(model, ready)
        for each, clip in ((ready, None), (other, 1e-3)):
            program = bench.build(each, optimizer=Optimizer("sgd", lr=0.1, clip_norm=clip))
            bench.train(program, BATCH, 2)
            program.close()
        close(bench.values(other), bench.values(ready))

    def test_apply_forgets_the_gradients(self, bench: Bench, model: Make) -> None:
        """The next step starts from nothing."""
        program = bench.build(bench.ready(model), optimizer=Optimizer("sgd", lr=1e-12))
        first, second = bench.train(program, BATCH, 2)
        for one, two in zip(first, second, strict=True):
            close(two, one)

    def test_discard_forgets_the_gradients_without_a_step(self, bench: Bench, model: Make) -> None:
        """After it, gradients are those of what follows, and no parameter has changed."""
        ready = bench.ready(model)
        start = bench.values(ready)
        expected = bench.gradient_of(ready, BATCH)
        program = bench.build(ready)
        bench.pull(program, bench.inputs(Batch.of(6, seed=9)))
        program.zero_grad()
        bench.pull(program, bench.inputs(BATCH))
        close(dict(zip(expected, bench.gradients(program), strict=True)), expected)
        program.zero_grad()
        program.close()
        same(bench.values(ready), start)

    def test_reduce_replaces_every_gradient(self, bench: Bench, model: Make) -> None:
        """What the function gives is used, by the next look and by the step."""
        ready = bench.ready(model)
        start, gradient = bench.values(ready), bench.gradient_of(ready, BATCH)
        program = bench.build(ready, optimizer=RECIPES["sgd"])
        bench.pull(program, bench.inputs(BATCH))
        program.map_gradients(lambda g: g * 3)
        for found, g in zip(bench.gradients(program), gradient.values(), strict=True):
            close(found, 3 * g)
        program.optimizer_step()
        program.close()
        close(bench.values(ready), {name: w - 0.3 * gradient[name] for name, w in start.items()})

    def test_reduce_goes_in_the_order_of_the_parameters(self, bench: Bench, model: Make) -> None:
        """Gradients have the shapes of the parameters, in their order: replicas must agree on it."""
        ready = bench.ready(model)
        program = bench.build(ready)
        bench.pull(program, bench.inputs(BATCH))
        shapes = [g.shape for g in bench.gradients(program)]
        assert shapes == [spec.shape for spec in bench.compute.parameters(ready).values()]

    def test_grad_stats_are_the_squared_norm_and_finiteness(self, bench: Bench, model: Make) -> None:
        """By group, left on the device."""
        program = bench.build(bench.ready(model))
        bench.pull(program, bench.inputs(BATCH))
        expected = sum(float(np.square(g.astype("float64")).sum()) for g in bench.gradients(program))
        stats = program.grad_stats()
        assert set(stats) == {GROUP}
        close(float(bench.read(stats[GROUP][0])), expected)
        assert bool(bench.read(stats[GROUP][1]))
        assert [bench.backend.device_of(part) for part in stats[GROUP]] == [bench.device] * 2

    @pytest.mark.parametrize("factor", [float("inf"), float("nan")])
    def test_grad_stats_see_what_is_not_finite(self, bench: Bench, model: Make, factor: float) -> None:
        """One gradient that is infinite or not a number is enough."""
        program = bench.build(bench.ready(model))
        bench.pull(program, bench.inputs(BATCH))
        spoilt = iter([factor])
        program.map_gradients(lambda g: g * next(spoilt, 1.0))
        assert not bool(bench.read(program.grad_stats()[GROUP][1]))


class LifeTests(Subject):
    """Snapshots, states and the end."""

    @pytest.mark.parametrize("name", ["model", "buffered_model", "random_model"])
    def test_a_snapshot_brings_back_all_a_step_changes(
        self, bench: Bench, request: pytest.FixtureRequest, name: str
    ) -> None:
        """Steps taken again after `restore` give the same losses to the bit, as often as one likes."""
        program = bench.build(bench.ready(request.getfixturevalue(name)), optimizer=ADAM)
        program.seed(5)
        bench.train(program, BATCH, 2)
        snapshot = program.snapshot()

        def losses() -> list[float]:
            found = []
            for _ in range(3):
                found.append(bench.loss(bench.pull(program, bench.inputs(BATCH))[LOSS]))
                program.optimizer_step()
            return [*found, bench.evaluated(program, BATCH)]

        first = losses()
        for _ in range(2):
            program.restore(snapshot)
            assert losses() == first

    def test_restore_forgets_gradients(self, bench: Bench, model: Make) -> None:
        """A step that failed half-way leaves nothing behind."""
        ready = bench.ready(model)
        expected = bench.gradient_of(ready, BATCH)
        program = bench.build(ready)
        snapshot = program.snapshot()
        bench.pull(program, bench.inputs(BATCH))
        program.restore(snapshot)
        bench.pull(program, bench.inputs(BATCH))
        close(dict(zip(expected, bench.gradients(program), strict=True)), expected)

    @pytest.mark.parametrize("name", SLOTS)
    def test_states_are_by_node_with_the_slots_of_the_formulas(self, bench: Bench, model: Make, name: str) -> None:
        """Steps done, and for each parameter the named slots, on the node's device."""
        ready = bench.ready(model)
        program = bench.build(ready, optimizer=Optimizer(name, lr=0.01))
        bench.train(program, BATCH, 3)
        states = program.optimizer_states()
        assert set(states) == {NODE}
        assert states[NODE].step == 3
        for parameter, spec in bench.compute.parameters(ready).items():
            slots = states[NODE].slots.get(parameter, {})
            assert set(slots) == SLOTS[name]
            assert all(bench.backend.device_of(slot) == bench.device for slot in slots.values())
            assert all(bench.read(slot).shape == spec.shape for slot in slots.values())

    def test_release_gives_the_result_to_the_users_model(self, bench: Bench, model: Make) -> None:
        """The very object that was given has the trained values, where it was."""
        ready = bench.ready(model)
        before = bench.values(ready)
        program = bench.build(ready)
        bench.train(program, BATCH, 2)
        after = bench.evaluated(program, BATCH)
        program.close()
        assert any((before[name] != value).any() for name, value in bench.values(ready).items())
        assert bench.backend.device_of(ready) == bench.device
        close(bench.evaluated(bench.build(ready), BATCH), after)

    def test_publish_gives_the_values_of_now_and_the_program_goes_on(self, bench: Bench, model: Make) -> None:
        """Whoever writes a checkpoint in the middle of a phase reads what the last step left."""
        ready = bench.ready(model)
        once = bench.twin(model, ready)
        program, other = bench.build(ready), bench.build(once)
        for each in (program, other):
            bench.train(each, BATCH, 1)
        program.sync_models()
        other.close()
        same(bench.compute.state(ready), bench.compute.state(once))
        bench.train(program, BATCH, 1)
        program.close()
        after = bench.compute.state(ready)
        assert any((after[name] != value).any() for name, value in bench.compute.state(once).items())

    def test_release_gives_buffers_too(self, bench: Bench, buffered_model: Make) -> None:
        """Training changes buffers, and the user's model has them in the end."""
        ready = bench.ready(buffered_model)
        before = bench.compute.state(ready)
        program = bench.build(ready)
        bench.train(program, BATCH, 2)
        program.close()
        after = bench.compute.state(ready)
        assert any((after[name] != value).any() for name, value in before.items() if name.startswith("buffers/"))

    def test_release_may_be_called_twice(self, bench: Bench, model: Make) -> None:
        """The second call changes nothing and gives the same state."""
        ready = bench.ready(model)
        program = bench.build(ready, optimizer=ADAM)
        bench.train(program, BATCH, 2)
        first, values = program.close(), bench.values(ready)
        second = program.close()
        assert {node: state.step for node, state in first.items()} == {node: s.step for node, s in second.items()}
        same(bench.values(ready), values)

    @pytest.mark.parametrize("recipe", [ADAM, RECIPES["nesterov"]], ids=["adam", "nesterov"])
    def test_training_goes_on_where_it_ended(self, bench: Bench, model: Make, recipe: Optimizer) -> None:
        """Three steps, an end, and three more from the states handed out are six steps."""
        ready = bench.ready(model)
        other = bench.twin(model, ready)
        straight = bench.build(ready, optimizer=recipe)
        bench.train(straight, BATCH, 6)
        straight.close()
        states: dict[str, NodeState] = {}
        for _ in range(2):
            program = bench.build(other, optimizer=recipe, states=states)
            bench.train(program, BATCH, 3)
            states = program.close()
        close(bench.values(other), bench.values(ready), rtol=1e-6, atol=1e-7)

    def test_training_goes_on_on_another_device(self, bench: Bench, model: Make, second: Device) -> None:
        """The states follow the model to where it was placed meanwhile."""
        ready = bench.ready(model)
        other, there = bench.twin(model, ready), bench.on(second)
        straight = bench.build(ready, optimizer=ADAM)
        bench.train(straight, BATCH, 6)
        straight.close()
        program = bench.build(other, optimizer=ADAM)
        bench.train(program, BATCH, 3)
        states = program.close()
        moved = bench.backend.place(other, second)
        program = there.build(moved, optimizer=ADAM, states=states)
        there.train(program, BATCH, 3)
        program.close()
        close(bench.values(moved), bench.values(ready))


class TrainingTests(UpdateTests, LifeTests):
    """Every promise of `Program` but what it computes."""
