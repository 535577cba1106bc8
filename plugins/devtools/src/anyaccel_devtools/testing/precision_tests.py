"""Tests of the capability `ComputesPrecision`: precisions, loss scales, and values that are computed again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from anyaccel.backend import MultiStepProgram, Program
from anyaccel.errors import CompileError
from anyaccel.precision import (
    PRECISIONS,
    ComputesPrecision,
    LossScale,
    LossScaleState,
    NodePrecision,
    ScalesLosses,
    SegmentPrecision,
)
from anyaccel.specs import Optimizer
from anyaccel_devtools.testing.harness import NODE, Batch, Harness, assert_close
from anyaccel_devtools.testing.subject import Subject

Make = Callable[[], Any]
BATCH = Batch.of(6)
SCALE = LossScale(initial=1024.0, growth_interval=2)
SGD = Optimizer("sgd", lr=0.1)
_TOLERANCES = {"bfloat16": 0.1, "float16": 0.02}


class PrecisionTests(Subject):
    """Programs apply `Segment.precision`."""

    @pytest.mark.parametrize("name", PRECISIONS)
    def test_a_precision_shows_in_the_outputs(self, harness: Harness, model: Make, name: str) -> None:
        """They are near those in the model's own dtype, not equal where a precision has 16 bits, and of that dtype."""
        prepared = harness.prepare_model(model)
        precision = wanted(harness, prepared, name)
        plain, other = (
            outputs(harness, prepared, precision_of_run)
            for precision_of_run in (None, SegmentPrecision(precisions=((NODE, precision),)))
        )
        assert other.dtype == plain.dtype
        tolerance = _TOLERANCES.get(precision.dtype, 1e-4)
        assert_close(other, plain, tolerance, tolerance)
        if precision.dtype in _TOLERANCES:
            assert not np.array_equal(other, plain)

    def test_parameters_keep_their_dtype_in_a_precision(self, harness: Harness, model: Make) -> None:
        """After a step they follow the gradients, to more digits than 16 bits have."""
        prepared = harness.prepare_model(model)
        precision = wanted(harness, prepared, "bf16-mixed")
        before = harness.parameter_values(prepared)
        program = built(harness, prepared, SegmentPrecision(((NODE, precision),)), Optimizer("sgd", lr=1e-4))
        (gradients,) = harness.train(program, BATCH, 1)
        program.close()
        after = harness.parameter_values(prepared)
        assert {name: value.dtype for name, value in after.items()} == {n: v.dtype for n, v in before.items()}
        for (name, value), gradient in zip(before.items(), gradients, strict=True):
            assert_close(after[name], value - 1e-4 * gradient, 1e-5, 1e-8)

    def test_gradients_are_those_of_scaled_losses(self, harness: Harness, model: Make) -> None:
        """The caller divides them by the scale."""
        plain = harness.prepare_model(model)
        clone = harness.clone_model(model, plain)
        scaled = scaled_program(harness, clone)
        expected = harness.gradient_of(plain, BATCH)
        harness.forward_backward(scaled, harness.inputs(BATCH))
        for gradient, value in zip(harness.gradients(scaled), expected.values(), strict=True):
            assert_close(gradient, value * SCALE.initial, 1e-4, 1e-2)

    def test_a_loss_scale_shrinks_and_grows(self, harness: Harness, model: Make) -> None:
        """It shrinks after a skipped step, and grows after the number of good ones in its spec."""
        program = scaled_program(harness, harness.prepare_model(model))
        scales = []
        for finite in (False, True, True, True):
            program.update_loss_scale(finite=finite)
            state = program.loss_scale_state()
            scales.append((state.scale, state.good_steps, state.skipped))
        assert scales == [(512.0, 0, 1), (512.0, 1, 1), (1024.0, 0, 1), (1024.0, 1, 1)]

    def test_a_loss_scale_goes_on_from_its_state(self, harness: Harness, model: Make) -> None:
        """It continues from the state of another program, and of a snapshot."""
        program = scaled_program(harness, harness.prepare_model(model))
        program.load_loss_scale_state(LossScaleState(64.0, 1, 5))
        snapshot = program.snapshot()
        program.update_loss_scale(finite=True)
        assert program.loss_scale_state() == LossScaleState(128.0, 0, 5)
        program.restore(snapshot)
        assert program.loss_scale_state() == LossScaleState(64.0, 1, 5)

    def test_values_computed_again_give_the_same_gradients(self, harness: Harness, model: Make) -> None:
        """They equal those of a program that keeps the values."""
        prepared = harness.prepare_model(model)
        computes = harness.backend.capability(ComputesPrecision)
        if computes is None or not computes.remat_blocks(prepared, "blocks"):
            pytest.skip("nothing in this model is recomputed")
        clone = harness.clone_model(model, prepared)
        program = built(harness, clone, SegmentPrecision(recomputed=((NODE, "blocks"),)), SGD)
        harness.forward_backward(program, harness.inputs(BATCH))
        actual = harness.gradients(program)
        for gradient, expected in zip(actual, harness.gradient_of(prepared, BATCH).values(), strict=True):
            assert_close(gradient, expected)


class ScaledStepTests(Subject):
    """Steps of scaled losses in one call."""

    @pytest.mark.parametrize("compile_steps", [False, True])
    def test_steps_that_are_not_finite_are_skipped(self, harness: Harness, model: Make, compile_steps: bool) -> None:
        """Others are those without a scale; optimizers count none that is skipped, and the scale follows."""
        prepared = harness.prepare_model(model)
        clone = harness.clone_model(model, prepared)
        optimizer = Optimizer("adam", lr=0.01, clip_norm=0.1)
        batches = [Batch.of(4, seed=seed) for seed in range(4)]
        reference = harness.build_reference(harness.segment(clone, optimizer=optimizer))
        for batch in (batches[0], batches[2], batches[3]):
            harness.forward_backward(reference, harness.inputs(batch))
            stats = reference.grad_stats()
            factors = {name: reference.clip_factor(0.1, [square]) for name, (square, _) in stats.items()}
            reference.optimizer_step(factors)
        reference.close()
        program = scaled_program(harness, prepared, optimizer)
        if not isinstance(program, MultiStepProgram):
            pytest.skip("the program runs single steps")
        x, t = (np.concatenate(arrays) for arrays in zip(*[(b.x, b.targets["mse"]) for b in batches], strict=True))
        t[5] = np.nan
        order = harness.put_indices(np.arange(16))
        arguments = [harness.put(x), harness.put(t)], [order, order]
        if compile_steps:
            # A backend may refuse if it expects nothing of compiling; what it has an estimate for, it compiles.
            refusals = (CompileError,) if program.estimate_compile(4) is None else ()
            with contextlib.suppress(*refusals):
                program.compile(*arguments, 4)
        program.train_steps(*arguments, 0, 4, 4)
        assert isinstance(program, ScalesLosses)
        state, steps = program.loss_scale_state(), program.optimizer_states()[NODE].step
        program.close()
        assert (state, steps) == (LossScaleState(1024.0, 0, 1), 3)
        assert_close(harness.parameter_values(prepared), harness.parameter_values(clone), 1e-4, 1e-5)


def wanted(harness: Harness, model: Any, name: str) -> NodePrecision:
    """Return the precision with this name; skip if the backend does not declare it, or not for this model."""
    computes = harness.backend.capability(ComputesPrecision)
    if computes is None or name not in computes.precisions:
        pytest.skip(f"the precision {name} is not declared")
    reason = computes.precision_reason(model, name, harness.device)
    if reason:
        pytest.skip(reason)
    return NodePrecision(name)


def built(
    harness: Harness, model: Any, precision: SegmentPrecision | None, optimizer: Optimizer | None = None
) -> Program:
    """Return a program of one model in a precision."""
    segment = harness.segment(model, optimizer=optimizer)
    return harness.compute.build(replace(segment, precision=precision))


def outputs(harness: Harness, model: Any, precision: SegmentPrecision | None) -> Any:
    """Return the model's outputs in evaluation mode."""
    program = built(harness, model, precision)
    (y,), _ = program.forward(harness.inputs(BATCH))
    values = np.array(harness.to_numpy(y))
    program.close()
    return values


def scaled_program(harness: Harness, model: Any, optimizer: Optimizer = SGD) -> Any:
    """Return a program with scaled losses; skip if the backend does not declare the required capabilities."""
    computes = harness.backend.capability(ComputesPrecision)
    if computes is None or "fp16-mixed" not in computes.precisions:
        pytest.skip("fp16-mixed, which needs a loss scale, is not declared")
    program = built(harness, model, SegmentPrecision(loss_scale=SCALE), optimizer)
    assert isinstance(program, ScalesLosses)
    return program
