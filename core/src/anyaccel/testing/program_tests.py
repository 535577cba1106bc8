"""ProgramTests: what a program computes, forward and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from anyaccel.device import Device
from anyaccel.errors import ShapeError
from anyaccel.segment import Segment, TensorSpec
from anyaccel.specs import LOSSES
from anyaccel.testing import reference_formulas
from anyaccel.testing.harness import LOSS, Array, Batch, Bench, Wiring, close, same
from anyaccel.testing.subject import Subject

Make = Callable[[], Any]
BATCH = Batch.of(6)


class ForwardTests(Subject):
    """Evaluation, and losses."""

    def test_forward_gives_the_same_again(self, bench: Bench, model: Make) -> None:
        """Evaluation has no randomness and no memory: outputs and losses are equal to the bit."""
        program = bench.build(bench.ready(model))
        (one,), first = program.forward(bench.inputs(BATCH))
        (two,), second = program.forward(bench.inputs(BATCH))
        np.testing.assert_array_equal(bench.read(one), bench.read(two))
        assert bench.loss(first[LOSS]) == bench.loss(second[LOSS])

    def test_forward_is_per_sample(self, bench: Bench, model: Make) -> None:
        """A batch gives what its halves give."""
        program = bench.build(bench.ready(model))
        whole, head, tail = (
            bench.read(program.forward(bench.inputs(BATCH.rows(which)))[0][0])
            for which in (slice(None), slice(0, 4), slice(4, 6))
        )
        close(whole, np.concatenate([head, tail]))

    def test_outputs_and_losses_stay_on_the_device(self, bench: Bench, model: Make) -> None:
        """Nothing is brought to the host unasked."""
        outputs, losses = bench.build(bench.ready(model)).forward(bench.inputs(BATCH))
        where = [bench.backend.device_of(value) for value in (*outputs, *losses[LOSS])]
        assert where == [bench.device] * 3

    @pytest.mark.parametrize("name", ["model", "buffered_model", "random_model"])
    def test_evaluation_changes_nothing(self, bench: Bench, request: pytest.FixtureRequest, name: str) -> None:
        """After `forward`, the model has the parameters and buffers it had."""
        ready = bench.ready(request.getfixturevalue(name))
        before = bench.compute.state(ready)
        program = bench.build(ready)
        program.forward(bench.inputs(BATCH))
        program.close()
        same(bench.compute.state(ready), before)

    def test_evaluation_is_not_random(self, bench: Bench, random_model: Make) -> None:
        """Dropout is for training."""
        program = bench.build(bench.ready(random_model))
        (one,), _ = program.forward(bench.inputs(BATCH))
        (two,), _ = program.forward(bench.inputs(BATCH))
        np.testing.assert_array_equal(bench.read(one), bench.read(two))

    @pytest.mark.parametrize("name", ["random_model", "buffered_model"])
    def test_a_program_that_trained_evaluates_as_a_new_one(
        self, bench: Bench, request: pytest.FixtureRequest, name: str
    ) -> None:
        """Nothing of training is left in evaluation: no dropout, no statistics of the batch."""
        ready = bench.ready(request.getfixturevalue(name))
        program = bench.build(ready)
        bench.train(program, BATCH, 2)
        (one,), _ = program.forward(bench.inputs(BATCH))
        program.close()
        (two,), _ = bench.build(ready, optimizer=None).forward(bench.inputs(BATCH))
        close(bench.read(one), bench.read(two))

    def test_training_is_random_and_follows_the_seed(self, bench: Bench, random_model: Make) -> None:
        """One key gives one sequence of outputs, another key another, and each step draws anew."""
        program = bench.build(bench.ready(random_model))

        def outputs(key: int) -> Array:
            program.seed(key)
            steps = [program.forward_pullback(bench.inputs(BATCH))[0][0] for _ in range(2)]
            return np.stack([bench.read(step) for step in steps])

        one = outputs(2**63 + 1)
        np.testing.assert_array_equal(one, outputs(2**63 + 1))
        assert (one != outputs(2)).any()
        assert (one[0] != one[1]).any()

    @pytest.mark.parametrize("train", [False, True])
    @pytest.mark.parametrize("name", LOSSES)
    def test_a_named_loss_is_its_formula(self, bench: Bench, model: Make, name: str, train: bool) -> None:
        """A loss comes as the sum and the weight of docs/reference/formulas.md, in both modes."""
        ready = bench.ready(model)
        program = bench.build(ready, loss=name)
        inputs = bench.inputs(BATCH, name)
        outputs, losses = program.forward_pullback(inputs)[:2] if train else program.forward(inputs)
        expected = reference_formulas.loss(name, bench.read(outputs[0]), BATCH.targets[name])
        close([float(bench.read(part)) for part in losses[LOSS]], expected)

    def test_cross_entropy_takes_probabilities_too(self, bench: Bench, model: Make) -> None:
        """Floating targets of the logits' shape are probabilities."""
        chances = BATCH.targets["binary_cross_entropy"]
        chances = chances / chances.sum(-1, keepdims=True)
        wired = bench.segment(Wiring(bench.ready(model)))
        wired = replace(wired, losses=(bench.term(("y", "t"), "cross_entropy"),))
        (y,), losses = bench.compute.build(wired).forward((bench.put(BATCH.x), bench.put(chances)))
        close(
            [float(bench.read(v)) for v in losses[LOSS]],
            reference_formulas.loss("cross_entropy", bench.read(y), chances),
        )

    @pytest.mark.parametrize("name", LOSSES)
    def test_losses_never_broadcast(self, bench: Bench, model: Make, name: str) -> None:
        """Targets [n, 1] for outputs [n, 3] raise ShapeError, when the program is built or when it first runs."""
        whole = bench.target(BATCH, name)
        narrow = whole[:, None] if whole.ndim == 1 else whole[:, :1]
        with pytest.raises(ShapeError):
            bench.compute.build(narrowed(bench, bench.ready(model), name)).forward(
                (bench.put(BATCH.x), bench.put(narrow.copy()))
            )

    def test_a_weight_is_not_in_the_loss(self, bench: Bench, model: Make) -> None:
        """The weight of a term is for the total; the loss is told without it."""
        ready = bench.ready(model)
        found = [bench.evaluated(bench.build(ready, weight=weight), BATCH) for weight in (1.0, 5.0)]
        assert found[0] == found[1]

    def test_several_losses_are_told_by_label(self, bench: Bench, model: Make) -> None:
        """Each loss of a segment comes under its own label."""
        wired = bench.segment(Wiring(bench.ready(model)))
        terms = (bench.term(("y", "t"), "mse", "square"), bench.term(("y", "t"), "mae", "absolute"))
        (y,), losses = bench.compute.build(replace(wired, losses=terms)).forward(bench.inputs(BATCH))
        assert set(losses) == {"square", "absolute"}
        for label, name in (("square", "mse"), ("absolute", "mae")):
            total, weight = reference_formulas.loss(name, bench.read(y), BATCH.targets["mse"])
            close(bench.loss(losses[label]), total / weight)


class BackTests(Subject):
    """Gradients and cotangents, against differences of what goes forward."""

    @pytest.mark.parametrize("name", LOSSES)
    def test_gradients_are_those_of_the_loss(self, bench: Bench, model: Make, exact_model: Make, name: str) -> None:
        """Along a direction in the space of parameters, the mean loss changes as the gradients say."""
        ready = bench.finest(exact_model, model)
        batch, step, tolerance = fine(bench, ready)
        start = bench.compute.state(ready)
        gradient = bench.gradient_of(ready, batch, loss=name)
        drawn = np.random.default_rng(3)
        direction = {key: drawn.normal(size=value.shape) for key, value in gradient.items()}
        losses = []
        for sign in (1, -1):
            shifted = {f"parameters/{key}": sign * step * value for key, value in direction.items()}
            moved = {key: (value + shifted.get(key, 0)).astype(value.dtype) for key, value in start.items()}
            bench.compute.load_state(ready, moved)
            losses.append(bench.evaluated(bench.build(ready, loss=name), batch, name))
        expected = sum(float((gradient[key] * direction[key]).sum()) for key in gradient)
        close((losses[0] - losses[1]) / (2 * step), expected, tolerance, tolerance)

    def test_the_way_back_draws_what_the_way_there_drew(self, bench: Bench, random_model: Make) -> None:
        """With one key, the loss of training changes along a direction as the gradients of that key say."""
        ready = bench.ready(random_model)
        batch, step, tolerance = fine(bench, ready)
        start = bench.compute.state(ready)

        def trained(shift: Mapping[str, Array]) -> tuple[float, list[Array]]:
            moved = {key: (value + shift.get(key, 0)).astype(value.dtype) for key, value in start.items()}
            bench.compute.load_state(ready, moved)
            program = bench.build(ready)
            program.seed(11)
            loss = bench.loss(bench.pull(program, bench.inputs(batch))[LOSS])
            found = bench.gradients(program)
            program.zero_grad()
            program.close()
            return loss, found

        gradient = dict(zip(bench.compute.parameters(ready), trained({})[1], strict=True))
        drawn = np.random.default_rng(3)
        direction = {key: np.asarray(drawn.normal(size=value.shape)) for key, value in gradient.items()}
        ahead, behind = (
            trained({f"parameters/{key}": np.asarray(sign * step * value) for key, value in direction.items()})[0]
            for sign in (1, -1)
        )
        expected = sum(float((gradient[key] * direction[key]).sum()) for key in gradient)
        close((ahead - behind) / (2 * step), expected, tolerance, tolerance)

    def test_cotangents_are_pulled_back_to_the_inputs(self, bench: Bench, model: Make, exact_model: Make) -> None:
        """Given a cotangent of an output, the pullback gives that of an input that another segment trains."""
        ready = bench.finest(exact_model, model)
        batch, step, tolerance = fine(bench, ready)
        wired = replace(bench.segment(Wiring(ready, needs_pullback=("x",))), losses=())
        program = bench.compute.build(wired)
        t = bench.put(batch.targets["mse"])
        cotangent = np.random.default_rng(4).normal(size=(len(batch.x), 3)).astype(batch.x.dtype)
        (found,) = program.forward_pullback((bench.put(batch.x), t))[2]([bench.put(cotangent)])
        direction = np.random.default_rng(5).normal(size=batch.x.shape)
        ahead, behind = (
            bench.read(program.forward((bench.put((batch.x + s * step * direction).astype(batch.x.dtype)), t))[0][0])
            for s in (1, -1)
        )
        expected = float(((ahead - behind) / (2 * step) * cotangent).sum())
        close(float((bench.read(found) * direction).sum()), expected, tolerance, tolerance)
        assert bench.backend.device_of(found) == bench.device

    def test_losses_and_cotangents_add_up(self, bench: Bench, model: Make) -> None:
        """A pullback gives the sum of what the losses and the cotangents of outputs cause."""
        ready = bench.ready(model)
        wired = bench.segment(Wiring(ready, needs_pullback=("x",)))
        c = np.ones((6, 3), "float32")
        found = {}
        for losses, given in ((True, None), (False, c), (True, c)):
            program = bench.compute.build(wired if losses else replace(wired, losses=()))
            pullback = program.forward_pullback(bench.inputs(BATCH))[2]
            (back,) = pullback([None if given is None else bench.put(given)])
            found[losses, given is not None] = bench.read(back), bench.gradients(program)
        for one, two, both in zip(found[True, False][1], found[False, True][1], found[True, True][1], strict=True):
            close(both, one + two)
        close(found[True, True][0], found[True, False][0] + found[False, True][0])

    def test_a_weight_scales_the_gradients(self, bench: Bench, model: Make) -> None:
        """A term of weight 5 counts five times in the total."""
        ready = bench.ready(model)
        one, five = (bench.gradient_of(ready, BATCH, weight=weight) for weight in (1.0, 5.0))
        close(five, {name: 5 * value for name, value in one.items()})

    def test_two_half_batches_are_one_batch(self, bench: Bench, model: Make) -> None:
        """With `scale` for the sum of the whole batch, gradients of its parts add up to its own."""
        ready = bench.ready(model)
        whole = bench.gradient_of(ready, BATCH)
        program = bench.build(ready)
        for which in (slice(0, 4), slice(4, 6)):
            bench.pull(program, bench.inputs(BATCH.rows(which)), {LOSS: 1 / BATCH.targets["mse"].size})
        close(dict(zip(whole, bench.gradients(program), strict=True)), whole)

    def test_operations_on_two_devices_of_one_segment(self, bench: Bench, model: Make, second: Device) -> None:
        """Values and cotangents cross between devices inside a segment; outputs come where they are made."""
        ready = bench.ready(model)
        expected = bench.gradient_of(ready, BATCH)
        wired = bench.segment(Wiring(ready))
        (term,) = wired.losses
        split = replace(
            wired,
            operations=(replace(wired.operations[0], device=second),),
            losses=(replace(term, device=second),),
        )
        twin = bench.on(second).twin(model, ready)
        split = replace(split, operations=(replace(split.operations[0], model=twin),))
        program = bench.compute.build(split)
        outputs, _, pullback = program.forward_pullback(bench.inputs(BATCH))
        pullback([None])
        assert bench.backend.device_of(outputs[0]) == second
        close(dict(zip(expected, bench.gradients(program), strict=True)), expected)


class CustodyTests(Subject):
    """What a program is given belongs to others."""

    @pytest.mark.parametrize("name", ["model", "buffered_model", "random_model", "writing_model"])
    def test_what_is_given_is_never_written_to(self, bench: Bench, request: pytest.FixtureRequest, name: str) -> None:
        """Inputs and cotangents may be memory of another framework: after each act they are as before."""
        ready = bench.ready(request.getfixturevalue(name))
        program = bench.compute.build(bench.segment(Wiring(ready, needs_pullback=("x",))))
        kept = [BATCH.x, BATCH.targets["mse"], np.ones((6, 3), "float32")]
        arrays = [array.copy() for array in kept]
        x, t, c = given = [bench.lent(array) for array in arrays]

        def check(act: str) -> None:
            for array, tensor, before in zip(arrays, given, kept, strict=True):
                np.testing.assert_array_equal(array, before, err_msg=act)
                np.testing.assert_array_equal(bench.read(tensor), before, err_msg=act)

        for _ in range(2):
            program.forward((x, t))
            check("forward")
            pullback = program.forward_pullback((x, t))[2]
            check("forward_pullback")
            pullback([c])
            check("pullback")
            program.optimizer_step()
            check("apply")


class ProgramTests(ForwardTests, BackTests, CustodyTests):
    """Every promise of `Program.forward` and `Program.forward_pullback`."""


def narrowed(bench: Bench, model: Any, name: str) -> Segment:
    """A segment whose targets have one column."""
    wired = bench.segment(Wiring(model, loss=name))
    spec, device = wired.inputs["t"]
    return replace(wired, inputs={**wired.inputs, "t": (TensorSpec((1,), spec.dtype), device)})


def fine(bench: Bench, model: Any) -> tuple[Batch, float, float]:
    """A batch of the model's dtype, and the step and tolerance with which differences are taken in it."""
    dtype = bench.dtype(model)
    return (Batch.of(6, dtype), 1e-5, 1e-6) if dtype == "float64" else (Batch.of(6, dtype), 1e-2, 2e-2)
