"""Tests of what a program computes: outputs, losses, gradients and cotangents."""

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
from anyaccel.testing.harness import LOSS, Array, Batch, Harness, assert_close, assert_equal
from anyaccel.testing.subject import Subject

Make = Callable[[], Any]
BATCH = Batch.of(6)


class ForwardTests(Subject):
    """Evaluation and losses."""

    def test_forward_is_deterministic(self, harness: Harness, model: Make) -> None:
        """Two evaluations give the same outputs and losses, bit for bit."""
        program = harness.build(harness.prepare_model(model))
        (first_output,), first = program.forward(harness.inputs(BATCH))
        (second_output,), second = program.forward(harness.inputs(BATCH))
        np.testing.assert_array_equal(harness.to_numpy(first_output), harness.to_numpy(second_output))
        assert harness.mean_loss(first[LOSS]) == harness.mean_loss(second[LOSS])

    def test_forward_is_per_sample(self, harness: Harness, model: Make) -> None:
        """The outputs of a batch are those of its parts, also of a single row."""
        program = harness.build(harness.prepare_model(model))
        whole, head, tail = (
            harness.to_numpy(program.forward(harness.inputs(BATCH.rows(rows)))[0][0])
            for rows in (slice(None), slice(0, 5), slice(5, 6))
        )
        assert_close(whole, np.concatenate([head, tail]))

    def test_outputs_and_losses_stay_on_the_device(self, harness: Harness, model: Make) -> None:
        """Nothing is copied to the host."""
        outputs, losses = harness.build(harness.prepare_model(model)).forward(harness.inputs(BATCH))
        devices = [harness.backend.device_of(value) for value in (*outputs, *losses[LOSS])]
        assert devices == [harness.device] * 3

    @pytest.mark.parametrize("name", ["model", "buffered_model", "random_model"])
    def test_evaluation_changes_nothing(self, harness: Harness, request: pytest.FixtureRequest, name: str) -> None:
        """`forward` changes neither parameters nor buffers."""
        prepared = harness.prepare_model(request.getfixturevalue(name))
        before = harness.compute.state(prepared)
        program = harness.build(prepared)
        program.forward(harness.inputs(BATCH))
        program.close()
        assert_equal(harness.compute.state(prepared), before)

    def test_evaluation_is_not_random(self, harness: Harness, random_model: Make) -> None:
        """Dropout is inactive in evaluation."""
        program = harness.build(harness.prepare_model(random_model))
        (first,), _ = program.forward(harness.inputs(BATCH))
        (second,), _ = program.forward(harness.inputs(BATCH))
        np.testing.assert_array_equal(harness.to_numpy(first), harness.to_numpy(second))

    def test_equal_rows_have_equal_outputs(self, harness: Harness, random_model: Make) -> None:
        """A dropout that stays active in evaluation is seen even if it draws the same numbers every time."""
        program = harness.build(harness.prepare_model(random_model))
        rows = BATCH.rows(np.zeros(6, int))
        outputs = harness.to_numpy(program.forward(harness.inputs(rows))[0][0])
        assert_close(outputs, np.repeat(outputs[:1], 6, axis=0))

    def test_evaluation_equals_that_without_dropout(
        self, harness: Harness, random_model: Make, dropout_free_model: Make
    ) -> None:
        """With the same parameters, a model at a dropout rate of 0 gives the same outputs."""
        prepared, twin = harness.prepare_model(random_model), harness.prepare_model(dropout_free_model)
        state = harness.compute.state(prepared)  # dropout may have a buffer of its own: the state of its generator
        assert list(harness.compute.parameters(twin)) == list(harness.compute.parameters(prepared))
        harness.compute.load_state(twin, {name: state[name] for name in harness.compute.state(twin)})
        (actual,), _ = harness.build(prepared).forward(harness.inputs(BATCH))
        (expected,), _ = harness.build(twin, compile="off").forward(harness.inputs(BATCH))
        assert_close(harness.to_numpy(actual), harness.to_numpy(expected))

    @pytest.mark.parametrize("name", ["random_model", "buffered_model"])
    def test_evaluation_does_not_depend_on_the_users_mode(
        self, harness: Harness, request: pytest.FixtureRequest, name: str
    ) -> None:
        """A model on which the user has called `train()` is evaluated like any other, by old and new programs."""
        prepared = harness.prepare_model(request.getfixturevalue(name))
        set_mode = getattr(prepared, "train", None)
        if not callable(set_mode):
            pytest.skip("models have no mode that users set by train()")
        old = harness.build(prepared)
        expected = harness.to_numpy(old.forward(harness.inputs(BATCH))[0][0])
        set_mode()
        for program in (old, harness.build(prepared, optimizer=None, compile="off")):
            assert_close(harness.to_numpy(program.forward(harness.inputs(BATCH))[0][0]), expected)

    def test_the_users_random_state_is_kept(
        self, harness: Harness, random_model: Make, random_state: Callable[[], Any]
    ) -> None:
        """Neither training nor evaluation draws from, or seeds, the generator that users draw from."""
        prepared = harness.prepare_model(random_model)
        before = random_state()
        program = harness.build(prepared)
        program.seed(5)
        harness.train(program, BATCH, 1)
        program.forward(harness.inputs(BATCH))
        program.close()
        np.testing.assert_equal(random_state(), before)

    @pytest.mark.parametrize("name", ["random_model", "buffered_model"])
    def test_a_trained_program_evaluates_like_a_new_one(
        self, harness: Harness, request: pytest.FixtureRequest, name: str
    ) -> None:
        """Evaluation after training uses no dropout and no batch statistics."""
        prepared = harness.prepare_model(request.getfixturevalue(name))
        program = harness.build(prepared)
        harness.train(program, BATCH, 2)
        (trained,), _ = program.forward(harness.inputs(BATCH))
        program.close()
        (rebuilt,), _ = harness.build(prepared, optimizer=None, compile="off").forward(harness.inputs(BATCH))
        assert_close(harness.to_numpy(trained), harness.to_numpy(rebuilt))

    def test_training_randomness_follows_the_seed(self, harness: Harness, random_model: Make) -> None:
        """A seed determines the outputs of all steps, every step draws new numbers, and evaluation draws none."""
        program = harness.build(harness.prepare_model(random_model))

        def outputs(seed: int, *, evaluate: bool = False) -> Array:
            program.seed(seed)
            steps = []
            for _ in range(2):
                steps.append(harness.to_numpy(program.forward_pullback(harness.inputs(BATCH))[0][0]))
                if evaluate:
                    program.forward(harness.inputs(BATCH))
            return np.stack(steps)

        first = outputs(2**63 + 1)
        np.testing.assert_array_equal(first, outputs(2**63 + 1, evaluate=True))
        assert (first != outputs(2)).any()
        assert (first[0] != first[1]).any()

    def test_random_streams_go_on_within_an_epoch(self, harness: Harness, random_model: Make) -> None:
        """After `seed` with the same key and `load_random_state`, a step draws what it would have drawn anyway."""
        program = harness.build(harness.prepare_model(random_model))

        def outputs() -> Array:
            return harness.to_numpy(program.forward_pullback(harness.inputs(BATCH))[0][0])

        program.seed(3)
        outputs()
        state = program.random_state()
        if state is None:
            pytest.skip("epochs cannot be continued midway")
        assert all(isinstance(array, np.ndarray) for array in state.values())
        expected = outputs()
        program.seed(3)
        assert (outputs() != expected).any()
        program.seed(3)
        program.load_random_state(state)
        np.testing.assert_array_equal(outputs(), expected)

    @pytest.mark.parametrize("train", [False, True])
    def test_named_losses_follow_their_formulas(self, harness: Harness, model: Make, train: bool) -> None:
        """A loss is (sum, weight) as in docs/reference/formulas.md, in evaluation and training."""
        program = harness.compute.build(all_losses(harness, harness.prepare_model(model)))
        inputs = all_inputs(harness, BATCH)
        (y,), losses = program.forward_pullback(inputs)[:2] if train else program.forward(inputs)
        actual = {name: [float(harness.to_numpy(part)) for part in loss] for name, loss in losses.items()}
        outputs = harness.to_numpy(y)
        assert_close(actual, {name: reference_formulas.loss(name, outputs, BATCH.targets[name]) for name in LOSSES})

    def test_cross_entropy_takes_probabilities_too(self, harness: Harness, model: Make) -> None:
        """Floating-point targets of the logits' shape are probabilities."""
        probabilities = BATCH.targets["binary_cross_entropy"]
        probabilities = probabilities / probabilities.sum(-1, keepdims=True)
        segment = harness.segment(harness.prepare_model(model))
        segment = replace(segment, losses=(harness.loss_term(("y", "t"), "cross_entropy"),))
        (y,), losses = harness.compute.build(segment).forward((harness.put(BATCH.x), harness.put(probabilities)))
        assert_close(
            [float(harness.to_numpy(v)) for v in losses[LOSS]],
            reference_formulas.loss("cross_entropy", harness.to_numpy(y), probabilities),
        )

    @pytest.mark.parametrize("name", LOSSES)
    def test_losses_never_broadcast(self, harness: Harness, model: Make, name: str) -> None:
        """Targets [n, 1] for outputs [n, 3] raise ShapeError at `build` or at the first `forward`."""
        whole = harness.target(BATCH, name)
        narrow = whole[:, None] if whole.ndim == 1 else whole[:, :1]
        with pytest.raises(ShapeError):
            harness.compute.build(narrow_target_segment(harness, harness.prepare_model(model), name)).forward(
                (harness.put(BATCH.x), harness.put(narrow.copy()))
            )

    def test_a_weight_is_not_in_the_loss(self, harness: Harness, model: Make) -> None:
        """The weight of a term scales its gradients, not the loss that is returned."""
        prepared = harness.prepare_model(model)
        plain, weighted = (harness.eval_loss(harness.build(prepared, weight=weight), BATCH) for weight in (1.0, 5.0))
        assert plain == weighted

    def test_several_losses_are_returned_by_label(self, harness: Harness, model: Make) -> None:
        """Losses are keyed by the label of their term."""
        segment = harness.segment(harness.prepare_model(model))
        terms = (harness.loss_term(("y", "t"), "mse", "square"), harness.loss_term(("y", "t"), "mae", "absolute"))
        (y,), losses = harness.compute.build(replace(segment, losses=terms)).forward(harness.inputs(BATCH))
        assert set(losses) == {"square", "absolute"}
        for label, name in (("square", "mse"), ("absolute", "mae")):
            total, weight = reference_formulas.loss(name, harness.to_numpy(y), BATCH.targets["mse"])
            assert_close(harness.mean_loss(losses[label]), total / weight)


class BackwardTests(Subject):
    """Gradients and cotangents, compared with finite differences."""

    def test_gradients_are_those_of_the_losses(self, harness: Harness, model: Make, float64_model: Make) -> None:
        """The mean of each loss changes along a random direction as its gradients predict."""
        prepared = harness.prepare_most_precise(float64_model, model)
        batch, step, tolerance = difference_settings(harness, prepared)
        start = harness.compute.state(prepared)
        gradients = gradients_of_losses(harness, prepared, batch)
        random = np.random.default_rng(3)
        direction = {key: random.normal(size=value.shape) for key, value in gradients["mse"].items()}
        means = []
        for sign in (1, -1):
            shifted = {f"parameters/{key}": sign * step * value for key, value in direction.items()}
            moved = {key: (value + shifted.get(key, 0)).astype(value.dtype) for key, value in start.items()}
            harness.compute.load_state(prepared, moved)
            losses = harness.build_reference(all_losses(harness, prepared)).forward(all_inputs(harness, batch))[1]
            means.append({name: harness.mean_loss(loss) for name, loss in losses.items()})
        actual = {name: (means[0][name] - means[1][name]) / (2 * step) for name in LOSSES}
        expected = {
            name: sum(float((gradient[key] * direction[key]).sum()) for key in gradient)
            for name, gradient in gradients.items()
        }
        assert_close(actual, expected, tolerance, tolerance)

    def test_backward_uses_the_random_numbers_of_forward(self, harness: Harness, random_model: Make) -> None:
        """For a seed, the training loss changes along a direction as the gradients of that seed predict."""
        prepared = harness.prepare_model(random_model)
        batch, step, tolerance = difference_settings(harness, prepared)
        start = harness.compute.state(prepared)

        def trained(shift: Mapping[str, Array]) -> tuple[float, list[Array]]:
            moved = {key: (value + shift.get(key, 0)).astype(value.dtype) for key, value in start.items()}
            harness.compute.load_state(prepared, moved)
            program = harness.build(prepared)
            program.seed(11)
            loss = harness.mean_loss(harness.forward_backward(program, harness.inputs(batch))[LOSS])
            actual = harness.gradients(program)
            program.zero_grad()
            program.close()
            return loss, actual

        gradient = dict(zip(harness.compute.parameters(prepared), trained({})[1], strict=True))
        random = np.random.default_rng(3)
        direction = {key: np.asarray(random.normal(size=value.shape)) for key, value in gradient.items()}
        upper, lower = (
            trained({f"parameters/{key}": np.asarray(sign * step * value) for key, value in direction.items()})[0]
            for sign in (1, -1)
        )
        expected = sum(float((gradient[key] * direction[key]).sum()) for key in gradient)
        assert_close((upper - lower) / (2 * step), expected, tolerance, tolerance)

    def test_cotangents_are_pulled_back_to_the_inputs(self, harness: Harness, model: Make, float64_model: Make) -> None:
        """The pullback turns the cotangent of an output into that of an input listed in `needs_pullback`."""
        prepared = harness.prepare_most_precise(float64_model, model)
        batch, step, tolerance = difference_settings(harness, prepared)
        segment = replace(harness.segment(prepared, needs_pullback=("x",)), losses=())
        program = harness.compute.build(segment)
        t = harness.put(batch.targets["mse"])
        cotangent = np.random.default_rng(4).normal(size=(len(batch.x), 3)).astype(batch.x.dtype)
        (actual,) = program.forward_pullback((harness.put(batch.x), t))[2]([harness.put(cotangent)])
        direction = np.random.default_rng(5).normal(size=batch.x.shape)
        upper, lower = (
            harness.to_numpy(
                program.forward((harness.put((batch.x + s * step * direction).astype(batch.x.dtype)), t))[0][0]
            )
            for s in (1, -1)
        )
        expected = float(((upper - lower) / (2 * step) * cotangent).sum())
        assert_close(float((harness.to_numpy(actual) * direction).sum()), expected, tolerance, tolerance)
        assert harness.backend.device_of(actual) == harness.device

    def test_losses_and_cotangents_add_up(self, harness: Harness, model: Make) -> None:
        """A pullback adds the contributions of losses and of output cotangents."""
        prepared = harness.prepare_model(model)
        segment = harness.segment(prepared, needs_pullback=("x",))
        c = np.ones((6, 3), "float32")
        actual = {}
        for losses, cotangent in ((True, None), (False, c), (True, c)):
            chosen = segment if losses else replace(segment, losses=())
            is_both = losses and cotangent is not None
            program = harness.compute.build(chosen) if is_both else harness.build_reference(chosen)
            pullback = program.forward_pullback(harness.inputs(BATCH))[2]
            (back,) = pullback([None if cotangent is None else harness.put(cotangent)])
            actual[losses, cotangent is not None] = harness.to_numpy(back), harness.gradients(program)
        for of_loss, of_cotangent, both in zip(
            actual[True, False][1], actual[False, True][1], actual[True, True][1], strict=True
        ):
            assert_close(both, of_loss + of_cotangent)
        assert_close(actual[True, True][0], actual[True, False][0] + actual[False, True][0])

    def test_a_weight_scales_the_gradients(self, harness: Harness, model: Make) -> None:
        """A loss of weight 5 has five times the gradient."""
        prepared = harness.prepare_model(model)
        plain = harness.gradient_of(prepared, BATCH)
        weighted = harness.gradient_of(prepared, BATCH, weight=5.0, compile="auto")
        assert_close(weighted, {name: 5 * value for name, value in plain.items()})

    def test_two_half_batches_are_one_batch(self, harness: Harness, model: Make) -> None:
        """With `scale` set for the whole batch, the gradients of its parts add up to those of the batch."""
        prepared = harness.prepare_model(model)
        whole = harness.gradient_of(prepared, BATCH)
        program = harness.build(prepared)
        for rows in (slice(0, 4), slice(4, 6)):
            harness.forward_backward(program, harness.inputs(BATCH.rows(rows)), {LOSS: 1 / BATCH.targets["mse"].size})
        assert_close(dict(zip(whole, harness.gradients(program), strict=True)), whole)

    def test_operations_on_two_devices_of_one_segment(
        self, harness: Harness, model: Make, second_device: Device
    ) -> None:
        """Values and cotangents cross devices inside a segment; outputs stay where they are computed."""
        prepared = harness.prepare_model(model)
        expected = harness.gradient_of(prepared, BATCH)
        segment = harness.segment(prepared)
        (term,) = segment.losses
        split = replace(
            segment,
            operations=(replace(segment.operations[0], device=second_device),),
            losses=(replace(term, device=second_device),),
        )
        clone = harness.on_device(second_device).clone_model(model, prepared)
        split = replace(split, operations=(replace(split.operations[0], model=clone),))
        program = harness.compute.build(split)
        outputs, _, pullback = program.forward_pullback(harness.inputs(BATCH))
        pullback([None])
        assert harness.backend.device_of(outputs[0]) == second_device
        assert_close(dict(zip(expected, harness.gradients(program), strict=True)), expected)


class InputProtectionTests(Subject):
    """Programs do not own their inputs."""

    @pytest.mark.parametrize("name", ["model", "buffered_model", "random_model", "mutating_model"])
    def test_inputs_are_never_written_to(self, harness: Harness, request: pytest.FixtureRequest, name: str) -> None:
        """Inputs and cotangents may be memory of another framework: no call changes them."""
        prepared = harness.prepare_model(request.getfixturevalue(name))
        program = harness.compute.build(harness.segment(prepared, needs_pullback=("x",)))
        originals = [BATCH.x, BATCH.targets["mse"], np.ones((6, 3), "float32")]
        arrays = [array.copy() for array in originals]
        x, t, c = tensors = [harness.put_aliased(array) for array in arrays]

        def check(call: str) -> None:
            for array, tensor, before in zip(arrays, tensors, originals, strict=True):
                np.testing.assert_array_equal(array, before, err_msg=call)
                np.testing.assert_array_equal(harness.to_numpy(tensor), before, err_msg=call)

        for _ in range(2):
            program.forward((x, t))
            check("forward")
            pullback = program.forward_pullback((x, t))[2]
            check("forward_pullback")
            pullback([c])
            check("pullback")
            program.optimizer_step()
            check("optimizer_step")


class ProgramTests(ForwardTests, BackwardTests, InputProtectionTests):
    """Everything that `Program.forward` and `Program.forward_pullback` promise."""


def all_losses(harness: Harness, model: Any) -> Segment:
    """A segment of one model with every named loss, labelled by its name, each with targets of its own."""
    segment, targets = harness.segment(model), {}
    for name, target in Batch.of(1, harness.input_dtype(model)).targets.items():
        dtype = harness.target(Batch(target, {name: target}), name).dtype.name
        targets[name] = (TensorSpec(target.shape[1:], dtype), harness.device)
    terms = tuple(harness.loss_term(("y", name), name, name) for name in LOSSES)
    return replace(segment, inputs={"x": segment.inputs["x"], **{name: targets[name] for name in LOSSES}}, losses=terms)


def all_inputs(harness: Harness, batch: Batch) -> list[Any]:
    """The inputs of a program of `all_losses`."""
    return [harness.put(batch.x), *(harness.put(harness.target(batch, name)) for name in LOSSES)]


def gradients_of_losses(harness: Harness, model: Any, batch: Batch) -> dict[str, dict[str, Array]]:
    """The gradient of the mean of each loss, by loss and parameter, from one program whose `scale` selects the loss."""
    program, gradients = harness.compute.build(all_losses(harness, model)), {}
    for name in LOSSES:
        weight = reference_formulas.loss(name, np.zeros((len(batch.x), 3)), batch.targets[name])[1]
        scale = {other: 1 / weight if other == name else 0.0 for other in LOSSES}
        harness.forward_backward(program, all_inputs(harness, batch), scale)
        gradients[name] = dict(zip(harness.compute.parameters(model), harness.gradients(program), strict=True))
        program.zero_grad()
    program.close()
    return gradients


def narrow_target_segment(harness: Harness, model: Any, name: str) -> Segment:
    """A segment whose targets have a single column."""
    segment = harness.segment(model, loss=name)
    spec, device = segment.inputs["t"]
    return replace(segment, inputs={**segment.inputs, "t": (TensorSpec((1,), spec.dtype), device)})


def difference_settings(harness: Harness, model: Any) -> tuple[Batch, float, float]:
    """A batch of the model's dtype, and step and tolerance of finite differences in it."""
    dtype = harness.input_dtype(model)
    return (Batch.of(6, dtype), 1e-5, 1e-6) if dtype == "float64" else (Batch.of(6, dtype), 1e-2, 2e-2)
