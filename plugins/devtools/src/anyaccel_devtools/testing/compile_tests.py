"""Tests of compiled steps, and of steps whose batches are computed in micro-batches."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from anyaccel.backend import CompileEstimate, Exchange, MultiStepProgram, Program
from anyaccel.errors import CompileError
from anyaccel.specs import Optimizer
from anyaccel_devtools.testing import reference_formulas
from anyaccel_devtools.testing.harness import GROUP, LOSS, Array, Batch, Harness, assert_close
from anyaccel_devtools.testing.subject import Subject

Make = Callable[[], Any]
COLUMNS = Batch.of(22)
ORDER = np.random.default_rng(1).permutation(np.arange(22, dtype="int64"))
ADAM = Optimizer("adam", lr=0.02, weight_decay=0.1)
CLIPPED = Optimizer("adam", lr=0.02, clip_norm=0.05, weight_decay=0.1)


def build_multi_step(harness: Harness, model: Any, *, compile: str = "auto", **options: Any) -> MultiStepProgram:
    """Return a program that runs several steps in one call, or skip if the backend has none."""
    program = harness.compute.build(replace(harness.segment(model, **options), compile=compile))
    if not isinstance(program, MultiStepProgram) or not isinstance(harness.backend, Exchange):
        pytest.skip("multi_step is not declared")
    return program


def build_microbatched(harness: Harness, model: Any, **options: Any) -> MultiStepProgram:
    """Return a program that supports micro-batches, or a skip."""
    program = build_multi_step(harness, model, **options)
    if not program.supports_microbatching:
        pytest.skip("micro-batches are not supported: supports_microbatching is not declared")
    return program


def columns_and_orders(harness: Harness) -> tuple[Any, Any]:
    """Return the columns and their row orders, on the device."""
    columns = harness.inputs(COLUMNS)
    return columns, [harness.put_indices(ORDER)] * len(columns)


def run_steps(harness: Harness, program: MultiStepProgram, calls: Sequence[tuple[int, ...]]) -> Array:
    """The mean losses of calls with (start, n_steps, batch_size) or (start, n_steps, batch_size, n_microbatches)."""
    columns, orders = columns_and_orders(harness)
    return np.concatenate([harness.to_numpy(program.train_steps(columns, orders, *call))[: call[1]] for call in calls])


def run_single_steps(
    harness: Harness, program: Program, steps: list[list[Array]], optimizer: Optimizer
) -> list[list[float]]:
    """The mean losses of single steps, each with the mean gradient of micro-batches of equal size."""
    losses = []
    for micro_batches in steps:
        computed = [harness.forward_backward(program, harness.inputs(COLUMNS.rows(rows))) for rows in micro_batches]
        losses.append([float(np.mean([harness.mean_loss(outputs[LOSS]) for outputs in computed]))])
        scale, limit = 1 / len(micro_batches), optimizer.clip_norm
        if limit is not None:
            scale *= reference_formulas.clip_scale(harness.gradients(program), limit)
        program.optimizer_step({GROUP: scale})
    return losses


def buffers(harness: Harness, model: Any) -> dict[str, Array]:
    """Return the buffers of a model."""
    return {name: value for name, value in harness.compute.state(model).items() if name.startswith("buffers/")}


def micro_batch_rows(start: int, batch_size: int, n_microbatches: int) -> list[Array]:
    """Return the rows of each micro-batch of a step."""
    return np.split(ORDER[start : start + batch_size], n_microbatches)


class MicrobatchTests(Subject):
    """Steps whose batch is computed in micro-batches, one after the clone."""

    capability = "multi_step"

    @pytest.mark.parametrize("optimizer", [Optimizer("sgd", lr=0.1), CLIPPED], ids=["sgd", "adam, clipped"])
    def test_microbatched_steps_equal_whole_steps(self, harness: Harness, model: Make, optimizer: Optimizer) -> None:
        """Losses and parameters equal those of whole batches (to 1e-5), for any number of micro-batches."""
        prepared = harness.prepare_model(model)
        clone = harness.clone_model(model, prepared)
        program = build_microbatched(harness, prepared, optimizer=optimizer)
        actual = run_steps(harness, program, [(0, 1, 8, 2), (8, 1, 3, 3)])
        program.close()
        eager = build_multi_step(harness, clone, optimizer=optimizer, compile="off")
        expected = run_single_steps(harness, eager, [[ORDER[:8]], [ORDER[8:11]]], optimizer)
        eager.close()
        assert_close(actual, np.array(expected), rtol=1e-5, atol=1e-6)
        assert_close(harness.parameter_values(prepared), harness.parameter_values(clone), rtol=1e-5, atol=2e-6)

    def test_buffers_are_carried_from_micro_batch_to_micro_batch(self, harness: Harness, buffered_model: Make) -> None:
        """Buffers change with each micro-batch, as if it were a batch."""
        prepared, sgd = harness.prepare_model(buffered_model), Optimizer("sgd", lr=0.1)
        clone = harness.clone_model(buffered_model, prepared)
        program = build_microbatched(harness, prepared, optimizer=sgd)
        actual = run_steps(harness, program, [(0, 1, 8, 2)])
        program.close()
        eager = build_multi_step(harness, clone, optimizer=sgd, compile="off")
        expected = run_single_steps(harness, eager, [micro_batch_rows(0, 8, 2)], sgd)
        eager.close()
        assert_close(actual, np.array(expected), rtol=1e-5, atol=1e-6)
        assert_close(buffers(harness, prepared), buffers(harness, clone))

    def test_each_micro_batch_draws_its_own_random_numbers(self, harness: Harness, random_model: Make) -> None:
        """Two micro-batches of the same rows drop different values, and two calls draw the same numbers as one."""
        program = build_microbatched(harness, harness.prepare_model(random_model), optimizer=Optimizer("sgd", lr=1e-9))
        columns, orders = harness.inputs(COLUMNS), [harness.put_indices(np.resize(ORDER[:4], len(ORDER)))] * 2
        snapshot, results = program.snapshot(), []
        for calls in ([(0, 2, 8, 2)], [(0, 1, 8, 2), (8, 1, 8, 2)], [(0, 2, 4, 1)]):
            program.restore(snapshot)
            program.seed(3)
            steps: Callable[..., Any] = program.train_steps
            losses = [harness.to_numpy(steps(columns, orders, *call))[: call[1]] for call in calls]
            results.append(np.concatenate(losses)[:, 0])
        assert_close(results[0], results[1])
        first, second = results[2]
        if abs(first - second) < 1e-6:
            pytest.skip("steps draw no random numbers")
        assert abs(results[0][0] - first) > 1e-6


class CompileTests(Subject):
    """`estimate_compile`, `compile`, and segments that must not be compiled. Compiles twice only, as it may be slow."""

    capability = "multi_step"

    def test_compiled_steps_equal_eager_steps(self, harness: Harness, model: Make) -> None:
        """Compiling changes no state; steps after it equal eager steps (to 1e-5), with any batch size."""
        prepared = harness.prepare_model(model)
        clone = harness.clone_model(model, prepared)
        program = build_multi_step(harness, prepared, optimizer=ADAM)
        program.seed(1)
        before = run_steps(harness, program, [(0, 1, 4)])
        columns, orders = columns_and_orders(harness)
        estimate = program.estimate_compile(1000)
        assert estimate is None or (
            isinstance(estimate, CompileEstimate)
            and estimate.compile_seconds >= 0.0
            and 0.0 <= estimate.step_ratio <= 1.0
        )
        program.sync_models()
        synced = harness.compute.state(prepared)
        with contextlib.suppress(CompileError):  # a backend may refuse; steps then stay eager
            program.compile(columns, orders, 4)
        program.sync_models()
        np.testing.assert_equal(harness.compute.state(prepared), synced)
        assert program.optimizer_states()["node"].step == 1
        after = run_steps(harness, program, [(4, 2, 4), (19, 1, 3)])
        program.close()
        eager = build_multi_step(harness, clone, optimizer=ADAM, compile="off")
        batches = [ORDER[:4], ORDER[4:8], ORDER[8:12], ORDER[19:]]
        expected = run_single_steps(harness, eager, [[rows] for rows in batches], ADAM)
        eager.close()
        assert_close(np.concatenate([before, after]), np.array(expected), rtol=1e-5, atol=1e-6)
        assert_close(harness.parameter_values(prepared), harness.parameter_values(clone), rtol=1e-5, atol=2e-6)

    def test_compiled_microbatched_steps_carry_buffers(self, harness: Harness, buffered_model: Make) -> None:
        """Buffers are carried from micro-batch to micro-batch (to 1e-5)."""
        prepared, sgd = harness.prepare_model(buffered_model), Optimizer("sgd", lr=0.1)
        clone = harness.clone_model(buffered_model, prepared)
        program = build_microbatched(harness, prepared, optimizer=sgd)
        columns, orders = columns_and_orders(harness)
        with contextlib.suppress(CompileError):
            program.compile(columns, orders, 8, 2)
        actual = run_steps(harness, program, [(0, 2, 8, 2)])
        program.close()
        eager = build_multi_step(harness, clone, optimizer=sgd, compile="off")
        expected = run_single_steps(harness, eager, [micro_batch_rows(0, 8, 2), micro_batch_rows(8, 8, 2)], sgd)
        eager.close()
        assert_close(actual, np.array(expected), rtol=1e-5, atol=1e-6)
        assert_close(buffers(harness, prepared), buffers(harness, clone), rtol=1e-5, atol=1e-6)

    def test_compile_off_is_never_compiled(self, harness: Harness, model: Make) -> None:
        """No estimate is given, before and after steps, and the steps are the same."""
        prepared = harness.prepare_model(model)
        clone = harness.clone_model(model, prepared)
        program = build_multi_step(harness, prepared, compile="off", optimizer=ADAM)
        assert program.estimate_compile(1000) is None
        actual = run_steps(harness, program, [(0, 1, 4)])
        assert program.estimate_compile(1000) is None
        program.close()
        eager = build_multi_step(harness, clone, optimizer=ADAM)
        expected = run_single_steps(harness, eager, [[ORDER[:4]]], ADAM)
        eager.close()
        assert_close(actual, np.array(expected), rtol=1e-5, atol=1e-6)
