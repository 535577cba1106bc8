"""Tests of the computations of a program: outputs and losses, gradients and cotangents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from anyaccel.device import Device
from anyaccel.formulas import LOSSES
from anyaccel_devtools.testing import reference_formulas
from anyaccel_devtools.testing.forward_tests import ForwardTests, all_inputs, all_losses
from anyaccel_devtools.testing.harness import LOSS, Array, Batch, Harness, assert_close
from anyaccel_devtools.testing.subject import Subject

Make = Callable[[], Any]
BATCH = Batch.of(6)


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


def difference_settings(harness: Harness, model: Any) -> tuple[Batch, float, float]:
    """Return a batch of the model's dtype, and step and tolerance of finite differences in it."""
    dtype = harness.input_dtype(model)
    return (Batch.of(6, dtype), 1e-5, 1e-6) if dtype == "float64" else (Batch.of(6, dtype), 1e-2, 2e-2)
