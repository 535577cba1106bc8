"""Tests of the contract of a program that runs whole steps in one call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from anyaccel.backend import MultiStepProgram
from anyaccel.specs import Optimizer, Schedule
from anyaccel.testing import reference_formulas
from anyaccel.testing.compile_tests import (
    COLUMNS,
    ORDER,
    CompileTests,
    MicrobatchTests,
    build_multi_step,
    run_single_steps,
    run_steps,
)
from anyaccel.testing.harness import Array, Harness, assert_close

Make = Callable[[], Any]
OPTIMIZERS = {
    "sgd": Optimizer("sgd", lr=0.1),
    "nesterov": Optimizer("momentum", lr=0.05, nesterov=True),
    "adam": Optimizer("adam", lr=0.02, schedule=Schedule("linear", steps=5, warmup=2)),
    "adamw": Optimizer("adamw", lr=0.02, weight_decay=0.3),
    "sgd, clipped": Optimizer("sgd", lr=0.1, clip_norm=0.05),
    "adam, clipped": Optimizer("adam", lr=0.02, clip_norm=0.01, weight_decay=0.1),
}


def train_single_steps(harness: Harness, model: Any, optimizer: Optimizer, batches: list[Array]) -> list[list[float]]:
    """Train on batches one step at a time with a program of its own; returns the mean losses."""
    program = harness.build(model, optimizer=optimizer)
    losses = run_single_steps(harness, program, [[rows] for rows in batches], optimizer)
    program.close()
    return losses


class MultiStepTests(CompileTests, MicrobatchTests):
    """Everything that `MultiStepProgram` promises."""

    capability = "multi_step"

    @pytest.mark.parametrize("name", OPTIMIZERS)
    def test_train_steps_equal_single_steps(self, harness: Harness, model: Make, name: str) -> None:
        """Two epochs with a smaller last batch give the losses and parameters of single steps (to 1e-5)."""
        prepared = harness.prepare_model(model)
        clone = harness.clone_model(model, prepared)
        batches = [ORDER[i : i + 4] for i in range(0, 22, 4)] * 2
        expected = train_single_steps(harness, clone, OPTIMIZERS[name], batches)
        program = build_multi_step(harness, prepared, optimizer=OPTIMIZERS[name])
        actual = run_steps(harness, program, [(0, 5, 4), (20, 1, 2)] * 2)
        program.close()
        assert_close(actual, np.array(expected), rtol=1e-5, atol=1e-6)
        assert_close(harness.parameter_values(prepared), harness.parameter_values(clone), rtol=1e-5, atol=2e-6)

    def test_buffers_change_as_in_single_steps(self, harness: Harness, buffered_model: Make) -> None:
        """Buffers are carried from step to step."""
        prepared = harness.prepare_model(buffered_model)
        clone = harness.clone_model(buffered_model, prepared)
        train_single_steps(harness, clone, OPTIMIZERS["sgd"], [ORDER[i : i + 4] for i in range(0, 20, 4)])
        program = build_multi_step(harness, prepared, optimizer=OPTIMIZERS["sgd"])
        run_steps(harness, program, [(0, 5, 4)])
        program.close()
        assert_close(harness.compute.state(prepared), harness.compute.state(clone))

    def test_losses_are_a_matrix_on_the_device(self, harness: Harness, model: Make) -> None:
        """[n_steps or more, n_losses], in the order of the segment's losses, left on the device."""
        prepared = harness.prepare_model(model)
        build_multi_step(harness, prepared)  # skips where not declared
        terms = (harness.loss_term(("y", "t"), "mse", "b"), harness.loss_term(("y", "t"), "mae", "a", weight=0.0))
        program = harness.compute.build(replace(harness.segment(prepared), losses=terms))
        assert isinstance(program, MultiStepProgram)
        (y,), _ = program.forward(harness.inputs(COLUMNS.rows(ORDER[:4])))
        columns = harness.inputs(COLUMNS)
        losses = program.train_steps(columns, [harness.put_indices(ORDER)] * 2, 0, 3, 4)
        assert harness.backend.device_of(losses) == harness.device
        assert len(harness.to_numpy(losses)) >= 3
        assert harness.to_numpy(losses).shape[1] == 2
        target = COLUMNS.targets["mse"][ORDER[:4]]
        means = [
            total / weight
            for total, weight in (reference_formulas.loss(n, harness.to_numpy(y), target) for n in ("mse", "mae"))
        ]
        assert_close(harness.to_numpy(losses)[0], np.array(means))

    @pytest.mark.parametrize("name", ["model", "random_model", "buffered_model"])
    def test_one_call_equals_two_calls_of_half(
        self, harness: Harness, request: pytest.FixtureRequest, name: str
    ) -> None:
        """Dividing steps among calls changes neither losses nor random numbers."""
        make = request.getfixturevalue(name)
        prepared = harness.prepare_model(make)
        results = []
        for calls in ([(0, 4, 3)], [(0, 2, 3), (6, 2, 3)]):
            program = build_multi_step(harness, harness.clone_model(make, prepared), optimizer=OPTIMIZERS["adam"])
            program.seed(3)
            results.append(run_steps(harness, program, calls))
        assert_close(results[0], results[1])

    def test_steps_follow_the_seed(self, harness: Harness, random_model: Make) -> None:
        """The same seed gives the same losses, another seed others."""
        prepared = harness.prepare_model(random_model)
        results = []
        for key in (1, 1, 2):
            program = build_multi_step(harness, harness.clone_model(random_model, prepared))
            program.seed(key)
            results.append(run_steps(harness, program, [(0, 3, 4)]))
        np.testing.assert_array_equal(results[0], results[1])
        assert (results[0] != results[2]).any()

    @pytest.mark.parametrize("name", ["model", "mutating_model"])
    def test_train_steps_do_not_change_the_columns(
        self, harness: Harness, request: pytest.FixtureRequest, name: str
    ) -> None:
        """Resident columns and orders serve many epochs, even if the model writes to its batches."""
        program = build_multi_step(harness, harness.prepare_model(request.getfixturevalue(name)))
        columns, order = harness.inputs(COLUMNS), harness.put_indices(np.arange(22))
        program.train_steps(columns, [order] * 2, 0, 3, 4)
        program.train_steps(columns, [order] * 2, 0, 1, 22)
        for tensor, before in zip((*columns, order), (COLUMNS.x, COLUMNS.targets["mse"], np.arange(22)), strict=True):
            np.testing.assert_array_equal(harness.to_numpy(tensor), before)

    def test_train_steps_begin_at_start(self, harness: Harness, model: Make) -> None:
        """`start` is a position in the order, not a number of batches."""
        prepared = harness.prepare_model(model)
        clone = harness.clone_model(model, prepared)
        expected = train_single_steps(harness, clone, OPTIMIZERS["sgd"], [ORDER[5:8], ORDER[8:11]])
        actual = run_steps(harness, build_multi_step(harness, prepared, optimizer=OPTIMIZERS["sgd"]), [(5, 2, 3)])
        assert_close(actual, np.array(expected))

    def test_each_column_has_its_own_order(self, harness: Harness, model: Make) -> None:
        """Orders may differ, repeat and omit rows, and be longer than the columns."""
        prepared = harness.prepare_model(model)
        random = np.random.default_rng(5)
        first, second = random.integers(0, 22, 40), random.integers(0, 22, 40)
        clone = harness.clone_model(model, prepared)
        single = build_multi_step(harness, clone, optimizer=OPTIMIZERS["sgd"])
        for start in range(0, 40, 8):
            x, t = COLUMNS.rows(first[start : start + 8]), COLUMNS.rows(second[start : start + 8])
            harness.forward_backward(single, (harness.inputs(x)[0], harness.inputs(t)[1]))
            single.optimizer_step()
        single.close()
        program = build_multi_step(harness, prepared, optimizer=OPTIMIZERS["sgd"])
        program.train_steps(harness.inputs(COLUMNS), [harness.put_indices(first), harness.put_indices(second)], 0, 5, 8)
        program.close()
        assert_close(harness.parameter_values(prepared), harness.parameter_values(clone), rtol=1e-5, atol=2e-6)

    def test_train_steps_continue_from_single_steps(self, harness: Harness, model: Make) -> None:
        """Both share optimizer state, step count and parameters."""
        prepared = harness.prepare_model(model)
        clone = harness.clone_model(model, prepared)
        batches = [ORDER[i : i + 4] for i in (0, 4, 8)]
        train_single_steps(harness, clone, OPTIMIZERS["adam"], batches)
        program = build_multi_step(harness, prepared, optimizer=OPTIMIZERS["adam"])
        harness.forward_backward(program, harness.inputs(COLUMNS.rows(batches[0])))
        program.optimizer_step()
        run_steps(harness, program, [(4, 1, 4)])
        harness.forward_backward(program, harness.inputs(COLUMNS.rows(batches[2])))
        program.optimizer_step()
        assert program.optimizer_states()["node"].step == 3
        program.close()
        assert_close(harness.parameter_values(prepared), harness.parameter_values(clone), rtol=1e-5, atol=2e-6)

    def test_restore_undoes_train_steps(self, harness: Harness, model: Make) -> None:
        """What `train_steps` changes, `restore` brings back."""
        program = build_multi_step(harness, harness.prepare_model(model), optimizer=OPTIMIZERS["adam"])
        run_steps(harness, program, [(0, 1, 4)])
        snapshot = program.snapshot()
        first = run_steps(harness, program, [(4, 2, 4)])
        program.restore(snapshot)
        np.testing.assert_array_equal(run_steps(harness, program, [(4, 2, 4)]), first)
