"""PartialTests: steps in which some inputs are missing, as when samplers take turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from anyaccel.segment import LossTerm, ParameterGroup, Segment, TensorSpec
from anyaccel.specs import Optimizer, Schedule
from anyaccel.testing.harness import GROUP, Array, Batch, Bench, Wiring, close, same
from anyaccel.testing.subject import Subject

Make = Callable[[], Any]
LEFT, RIGHT = Batch.of(6), Batch.of(4, seed=9)
ADAMW = Optimizer("adamw", lr=0.05, weight_decay=0.1, schedule=Schedule("step", rate=0.5, every=1))
BOTH = "both"


def two(bench: Bench, left: Any, right: Any, optimizer: Optimizer = ADAMW) -> Segment:
    """`left` from x to p, judged against t; `right` from z to q, judged against u; one group, and both pull back."""
    f32 = {name: TensorSpec((n,), "float32") for name, n in (("x", 4), ("t", 3), ("z", 4), ("u", 3))}
    term = bench.term(("p", "t"), label="left")
    return Segment(
        label="two",
        operations=(bench.operation("left", left, ("x",), ("p",)), bench.operation("right", right, ("z",), ("q",))),
        inputs={name: (spec, bench.device) for name, spec in f32.items()},
        outputs=("p", "q"),
        losses=(replace(term, on="left"), replace(term, label="right", on="right", inputs=("q", "u"))),
        groups=(ParameterGroup(GROUP, optimizer, ("left", "right")),),
        needs_pullback=("x", "z"),
    )


def comparing(bench: Bench, left: Any, right: Any) -> Segment:
    """As `two`, and a loss compares p and q, which are joined, too, and go through `left` once more."""
    made = two(bench, left, right)
    join = bench.operation("join", None, ("p", "q"), ("j",), trainable=False, axis=0)
    wide = bench.operation("again", None, ("j", "p"), ("w",), trainable=False, axis=0)
    both = LossTerm(BOTH, "left", made.losses[0].loss, ("p", "q"), bench.device)
    return replace(
        made, operations=(*made.operations, join, wide), outputs=("p", "q", "w"), losses=(*made.losses, both)
    )


def given(bench: Bench, left: Batch | None, right: Batch | None) -> list[Any]:
    """What a program of `two` takes."""
    return [one for batch in (left, right) for one in ((None, None) if batch is None else bench.inputs(batch))]


def stepped(bench: Bench, program: Any, *steps: Sequence[Any]) -> None:
    """A training step with each of some inputs."""
    for inputs in steps:
        bench.pull(program, inputs)
        program.optimizer_step()


def alone(bench: Bench, model: Any, batch: Batch, steps: int) -> dict[str, Array]:
    """A model's parameters after some steps by itself."""
    program = bench.compute.build(bench.segment(Wiring(model, optimizer=ADAMW)))
    stepped(bench, program, *[bench.inputs(batch)] * steps)
    program.close()
    return bench.values(model)


class PartialTests(Subject):
    """Every promise of `Program` about inputs that are None."""

    @pytest.mark.parametrize("train", [False, True])
    def test_what_needs_a_missing_input_is_left_out(self, bench: Bench, model: Make, train: bool) -> None:
        """Its outputs are None and its losses not there; the rest is as in a whole step."""
        program = bench.compute.build(two(bench, bench.ready(model), bench.ready(model, seed=8)))
        run = program.forward_pullback if train else program.forward
        (p, q), losses = run(given(bench, LEFT, RIGHT))[:2]
        (only, none), found = run(given(bench, LEFT, None))[:2]
        assert none is None and list(found) == ["left"] and list(losses) == ["left", "right"]
        close(bench.read(only), bench.read(p))
        close(bench.loss(found["left"]), bench.loss(losses["left"]))
        (none, only), found = run(given(bench, None, RIGHT))[:2]
        assert none is None and list(found) == ["right"]
        close(bench.read(only), bench.read(q))

    @pytest.mark.parametrize("train", [False, True])
    def test_a_missing_target_leaves_out_its_loss_alone(self, bench: Bench, model: Make, train: bool) -> None:
        """The node is computed, and nothing judges it."""
        program = bench.compute.build(two(bench, bench.ready(model), bench.ready(model, seed=8)))
        run = program.forward_pullback if train else program.forward
        x, _, z, u = given(bench, LEFT, RIGHT)
        outputs, losses = run([x, None, z, u])[:2]
        assert all(value is not None for value in outputs) and list(losses) == ["right"]

    @pytest.mark.parametrize("train", [False, True])
    def test_what_depends_on_what_is_left_out_is_left_out(self, bench: Bench, model: Make, train: bool) -> None:
        """A join lacks all if it lacks a part, and so does what takes the join, or compares with it."""
        program = bench.compute.build(comparing(bench, bench.ready(model), bench.ready(model, seed=8)))
        run = program.forward_pullback if train else program.forward
        (p, q, w), losses = run(given(bench, LEFT, None))[:2]
        assert p is not None and q is None and w is None and list(losses) == ["left"]
        (p, q, w), losses = run(given(bench, LEFT, LEFT))[:2]
        assert bench.read(w).shape == (6, 9) and list(losses) == ["left", "right", BOTH]

    def test_nodes_that_no_gradient_reached_are_not_touched(self, bench: Bench, model: Make) -> None:
        """Neither their parameters, nor their optimizer's state and count of steps; weight decay included."""
        left, right = bench.ready(model), bench.ready(model, seed=8)
        expected = alone(bench, bench.twin(model, right), RIGHT, 1)
        program = bench.compute.build(two(bench, left, right))
        stepped(bench, program, given(bench, LEFT, RIGHT), *[given(bench, LEFT, None)] * 2)
        states = program.optimizer_states()
        assert (states["left"].step, states["right"].step) == (3, 1)
        program.close()
        close(bench.values(right), expected, rtol=1e-5, atol=2e-6)

    def test_turns_are_as_each_alone(self, bench: Bench, model: Make) -> None:
        """Steps that lack the one or the other train each as a program of its own does, by its own count of steps."""
        left, right = bench.ready(model), bench.ready(model, seed=8)
        expected = [alone(bench, bench.twin(model, one), b, n) for one, b, n in ((left, LEFT, 3), (right, RIGHT, 2))]
        program = bench.compute.build(two(bench, left, right))
        turns = [given(bench, LEFT, None), given(bench, None, RIGHT)]
        stepped(bench, program, *turns, *turns, turns[0])
        program.close()
        for one, wanted in zip((left, right), expected, strict=True):
            close(bench.values(one), wanted, rtol=1e-5, atol=2e-6)

    def test_cotangents_of_what_is_missing_are_none(self, bench: Bench, model: Make) -> None:
        """Those that come back to inputs, and those that come in for outputs; the others are as in a whole step."""
        program = bench.compute.build(two(bench, bench.ready(model), bench.ready(model, seed=8)))
        c = bench.put(np.ones((6, 3), "float32"))
        whole = program.forward_pullback(given(bench, LEFT, RIGHT))[2]([c, None])
        program.zero_grad()
        found = program.forward_pullback(given(bench, LEFT, None))[2]([c, None])
        assert found[1] is None
        close(bench.read(found[0]), bench.read(whole[0]))
        assert len(bench.gradients(program)) == len(bench.compute.parameters(bench.ready(model)))

    def test_buffers_of_what_is_left_out_stay(self, bench: Bench, buffered_model: Make) -> None:
        """An operation without its inputs does not run in training, either."""
        left, right = bench.ready(buffered_model), bench.ready(buffered_model)
        before = bench.compute.state(right)
        program = bench.compute.build(two(bench, left, right))
        stepped(bench, program, given(bench, LEFT, None))
        program.close()
        same(bench.compute.state(right), before)

    def test_a_shared_model_learns_from_what_there_is(self, bench: Bench, model: Make) -> None:
        """Of two operations with one model, the one that runs trains it."""
        ready = bench.ready(model)
        expected = alone(bench, bench.twin(model, ready), RIGHT, 2)
        program = bench.compute.build(two(bench, ready, ready))
        stepped(bench, program, *[given(bench, None, RIGHT)] * 2)
        program.close()
        close(bench.values(ready), expected, rtol=1e-5, atol=2e-6)

    def test_a_shared_models_optimizer_goes_on_in_the_next_phase(self, bench: Bench, model: Make) -> None:
        """Its state is one, whichever of its nodes it is told for: core keeps the last that it hears of."""
        ready = bench.ready(model)
        other, inputs = bench.twin(model, ready), given(bench, LEFT, RIGHT)
        whole = bench.compute.build(two(bench, other, other))
        stepped(bench, whole, *[inputs] * 3)
        whole.close()
        first = bench.compute.build(two(bench, ready, ready))
        stepped(bench, first, *[inputs] * 2)
        *_, kept = first.close().values()
        again = bench.compute.build(replace(two(bench, ready, ready), states={"left": kept, "right": kept}))
        stepped(bench, again, inputs)
        again.close()
        close(bench.values(ready), bench.values(other), rtol=1e-5, atol=2e-6)

    def test_figures_of_gradients_are_of_those_there_are(self, bench: Bench, model: Make) -> None:
        """`grad_stats` of a step that lacks something is that of the rest; without any gradient, 0 on the device."""
        left = bench.ready(model)
        program = bench.compute.build(two(bench, left, bench.ready(model, seed=8)))
        bench.pull(program, given(bench, LEFT, None))
        squared, finite = program.grad_stats()[GROUP]
        gradient = bench.gradient_of(bench.twin(model, left), LEFT)
        close(float(bench.read(squared)), sum(float((each.astype("float64") ** 2).sum()) for each in gradient.values()))
        assert bool(bench.read(finite))
        program.zero_grad()
        squared, finite = program.grad_stats()[GROUP]
        assert float(bench.read(squared)) == 0 and bool(bench.read(finite))
        assert bench.backend.device_of(squared) == bench.device
