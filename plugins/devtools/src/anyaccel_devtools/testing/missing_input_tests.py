"""Tests of steps with missing inputs (None), as when samplers alternate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from anyaccel.segment import LossTerm, ParameterGroup, Segment, TensorSpec
from anyaccel.specs import Optimizer, Schedule
from anyaccel_devtools.testing.harness import GROUP, Array, Batch, Harness, assert_close, assert_equal
from anyaccel_devtools.testing.subject import Subject

Make = Callable[[], Any]
LEFT, RIGHT = Batch.of(6), Batch.of(4, seed=9)
ADAMW = Optimizer("adamw", lr=0.05, weight_decay=0.1, schedule=Schedule("step", rate=0.5, every=1))
BOTH = "both"


def two_models(harness: Harness, left: Any, right: Any) -> Segment:
    """Return `left` from x to p with a loss against t, `right` from z to q with a loss against u; one parameter
    group.
    """
    f32 = {name: TensorSpec((n,), "float32") for name, n in (("x", 4), ("t", 3), ("z", 4), ("u", 3))}
    term = harness.loss_term(("p", "t"), label="left")
    return Segment(
        label="two models",
        operations=(harness.operation("left", left, ("x",), ("p",)), harness.operation("right", right, ("z",), ("q",))),
        inputs={name: (spec, harness.device) for name, spec in f32.items()},
        outputs=("p", "q"),
        losses=(replace(term, on="left"), replace(term, label="right", on="right", inputs=("q", "u"))),
        groups=(ParameterGroup(GROUP, ADAMW, ("left", "right")),),
        needs_pullback=("x", "z"),
    )


def compared_models(harness: Harness, left: Any, right: Any) -> Segment:
    """Return `two_models` with p and q concatenated twice and a loss that compares them."""
    segment = two_models(harness, left, right)
    join = harness.operation("join", None, ("p", "q"), ("j",), trainable=False, axis=0)
    wide = harness.operation("again", None, ("j", "p"), ("w",), trainable=False, axis=0)
    both = LossTerm(BOTH, "left", segment.losses[0].loss, ("p", "q"), harness.device)
    return replace(
        segment, operations=(*segment.operations, join, wide), outputs=("p", "q", "w"), losses=(*segment.losses, both)
    )


def inputs_of(harness: Harness, left: Batch | None, right: Batch | None) -> list[Any]:
    """Return the inputs x, t, z and u of a program of `two_models`."""
    return [value for batch in (left, right) for value in ((None, None) if batch is None else harness.inputs(batch))]


def train_steps(harness: Harness, program: Any, *steps: Sequence[Any]) -> None:
    """Run one training step for each list of inputs."""
    for inputs in steps:
        harness.forward_backward(program, inputs)
        program.optimizer_step()


def trained_alone(harness: Harness, model: Any, batch: Batch, steps: int) -> dict[str, Array]:
    """Return the parameters of a model after steps in its own program."""
    program = harness.build(model, optimizer=ADAMW, compile="off")
    train_steps(harness, program, *[harness.inputs(batch)] * steps)
    program.close()
    return harness.parameter_values(model)


class MissingInputTests(Subject):
    """Everything that `Program` promises about inputs that are None."""

    @pytest.mark.parametrize("train", [False, True])
    def test_operations_that_need_a_missing_input_are_skipped(self, harness: Harness, model: Make, train: bool) -> None:
        """Their outputs are None and their losses absent; the rest is as in a complete step."""
        program = harness.compute.build(
            two_models(harness, harness.prepare_model(model), harness.prepare_model(model, seed=8))
        )
        run = program.forward_pullback if train else program.forward
        (p, q), losses = run(inputs_of(harness, LEFT, RIGHT))[:2]
        (computed, skipped), partial = run(inputs_of(harness, LEFT, None))[:2]
        assert skipped is None and list(partial) == ["left"] and list(losses) == ["left", "right"]
        assert_close(harness.to_numpy(computed), harness.to_numpy(p))
        assert_close(harness.mean_loss(partial["left"]), harness.mean_loss(losses["left"]))
        (skipped, computed), partial = run(inputs_of(harness, None, RIGHT))[:2]
        assert skipped is None and list(partial) == ["right"]
        assert_close(harness.to_numpy(computed), harness.to_numpy(q))

    @pytest.mark.parametrize("train", [False, True])
    def test_a_missing_target_skips_only_its_loss(self, harness: Harness, model: Make, train: bool) -> None:
        """The node is computed, without its loss."""
        program = harness.compute.build(
            two_models(harness, harness.prepare_model(model), harness.prepare_model(model, seed=8))
        )
        run = program.forward_pullback if train else program.forward
        x, _, z, u = inputs_of(harness, LEFT, RIGHT)
        outputs, losses = run([x, None, z, u])[:2]
        assert all(value is not None for value in outputs) and list(losses) == ["right"]

    @pytest.mark.parametrize("train", [False, True])
    def test_operations_behind_a_skipped_one_are_skipped(self, harness: Harness, model: Make, train: bool) -> None:
        """A concatenation, its consumers and losses need all of their inputs."""
        program = harness.compute.build(
            compared_models(harness, harness.prepare_model(model), harness.prepare_model(model, seed=8))
        )
        run = program.forward_pullback if train else program.forward
        (p, q, w), losses = run(inputs_of(harness, LEFT, None))[:2]
        assert p is not None and q is None and w is None and list(losses) == ["left"]
        (p, q, w), losses = run(inputs_of(harness, LEFT, LEFT))[:2]
        assert harness.to_numpy(w).shape == (6, 9) and list(losses) == ["left", "right", BOTH]

    def test_nodes_without_a_gradient_are_not_updated(self, harness: Harness, model: Make) -> None:
        """Parameters, optimizer state and step count stay, without weight decay."""
        left, right = harness.prepare_model(model), harness.prepare_model(model, seed=8)
        expected = trained_alone(harness, harness.clone_model(model, right), RIGHT, 1)
        program = harness.compute.build(two_models(harness, left, right))
        train_steps(harness, program, inputs_of(harness, LEFT, RIGHT), inputs_of(harness, LEFT, None))
        states = program.optimizer_states()
        assert (states["left"].step, states["right"].step) == (2, 1)
        program.close()
        assert_close(harness.parameter_values(right), expected, rtol=1e-5, atol=2e-6)

    def test_alternating_inputs_train_each_model_as_if_alone(self, harness: Harness, model: Make) -> None:
        """Alternating steps train each model like its own program, with its own step count."""
        left, right = harness.prepare_model(model), harness.prepare_model(model, seed=8)
        expected = [
            trained_alone(harness, harness.clone_model(model, prepared), b, n)
            for prepared, b, n in ((left, LEFT, 2), (right, RIGHT, 1))
        ]
        program = harness.compute.build(two_models(harness, left, right))
        alternating = [inputs_of(harness, LEFT, None), inputs_of(harness, None, RIGHT)]
        train_steps(harness, program, *alternating, alternating[0])
        program.close()
        for prepared, values in zip((left, right), expected, strict=True):
            assert_close(harness.parameter_values(prepared), values, rtol=1e-5, atol=2e-6)

    def test_cotangents_of_missing_inputs_are_none(self, harness: Harness, model: Make) -> None:
        """Cotangents of missing inputs and outputs are None; the others are as in a complete step."""
        program = harness.compute.build(
            two_models(harness, harness.prepare_model(model), harness.prepare_model(model, seed=8))
        )
        c = harness.put(np.ones((6, 3), "float32"))
        whole = program.forward_pullback(inputs_of(harness, LEFT, RIGHT))[2]([c, None])
        program.zero_grad()
        actual = program.forward_pullback(inputs_of(harness, LEFT, None))[2]([c, None])
        assert actual[1] is None
        assert_close(harness.to_numpy(actual[0]), harness.to_numpy(whole[0]))
        assert len(harness.gradients(program)) == len(harness.compute.parameters(harness.prepare_model(model)))

    def test_buffers_of_skipped_operations_do_not_change(
        self, harness: Harness, model: Make, buffered_model: Make
    ) -> None:
        """A skipped operation does not run in training mode."""
        left, right = harness.prepare_model(model), harness.prepare_model(buffered_model)
        before = harness.compute.state(right)
        program = harness.compute.build(two_models(harness, left, right))
        train_steps(harness, program, inputs_of(harness, LEFT, None))
        program.close()
        assert_equal(harness.compute.state(right), before)

    def test_a_shared_model_learns_from_the_inputs_that_are_given(self, harness: Harness, model: Make) -> None:
        """If two operations share a model, the one that runs trains it."""
        prepared = harness.prepare_model(model)
        expected = trained_alone(harness, harness.clone_model(model, prepared), RIGHT, 2)
        program = harness.compute.build(two_models(harness, prepared, prepared))
        train_steps(harness, program, *[inputs_of(harness, None, RIGHT)] * 2)
        program.close()
        assert_close(harness.parameter_values(prepared), expected, rtol=1e-5, atol=2e-6)

    def test_a_shared_models_optimizer_state_continues_in_the_next_phase(self, harness: Harness, model: Make) -> None:
        """Its nodes share one state, which may be passed under any of their names."""
        prepared = harness.prepare_model(model)
        other, inputs = harness.clone_model(model, prepared), inputs_of(harness, LEFT, RIGHT)
        whole = harness.build_reference(two_models(harness, other, other))
        train_steps(harness, whole, *[inputs] * 2)
        whole.close()
        first = harness.compute.build(two_models(harness, prepared, prepared))
        train_steps(harness, first, inputs)
        *_, state = first.close().values()
        again = harness.compute.build(
            replace(two_models(harness, prepared, prepared), states={"left": state, "right": state})
        )
        train_steps(harness, again, inputs)
        again.close()
        assert_close(harness.parameter_values(prepared), harness.parameter_values(other), rtol=1e-5, atol=2e-6)

    def test_grad_stats_cover_only_existing_gradients(self, harness: Harness, model: Make) -> None:
        """Missing gradients do not count; without any, the squared norm is 0, on the device."""
        left = harness.prepare_model(model)
        program = harness.compute.build(two_models(harness, left, harness.prepare_model(model, seed=8)))
        harness.forward_backward(program, inputs_of(harness, LEFT, None))
        squared, finite = program.grad_stats()[GROUP]
        gradient = harness.gradient_of(harness.clone_model(model, left), LEFT)
        assert_close(
            float(harness.to_numpy(squared)),
            sum(float((array.astype("float64") ** 2).sum()) for array in gradient.values()),
        )
        assert bool(harness.to_numpy(finite))
        program.zero_grad()
        squared, finite = program.grad_stats()[GROUP]
        assert float(harness.to_numpy(squared)) == 0 and bool(harness.to_numpy(finite))
        assert harness.backend.device_of(squared) == harness.device
