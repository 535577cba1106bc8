"""Tests of the contract of a program that runs whole steps in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from anyaccel.adapter.notifying_program import NotifyingProgram
from anyaccel.backend import MultiStepProgram
from anyaccel.specs import Optimizer, Schedule
from anyaccel_devtools.testing import reference_formulas
from anyaccel_devtools.testing.compile_tests import (
    COLUMNS,
    ORDER,
    CompileTests,
    MicrobatchTests,
    build_multi_step,
    columns_and_orders,
    run_single_steps,
    run_steps,
)
from anyaccel_devtools.testing.harness import Array, Harness, assert_close
from anyaccel_devtools.testing.precision_tests import ScaledStepTests
from anyaccel_devtools.testing.segment_tests import shared_model_segment, squared_norm

Make = Callable[[], Any]
LIMIT = 0.05
OPTIMIZERS = {
    "sgd": Optimizer("sgd", lr=0.1),
    "nesterov": Optimizer("momentum", lr=0.05, nesterov=True),
    "adam": Optimizer("adam", lr=0.02, schedule=Schedule("linear", steps=5, warmup=2)),
    "adamw": Optimizer("adamw", lr=0.02, weight_decay=0.3),
    "adam, clipped": Optimizer("adam", lr=0.02, clip_norm=0.01, weight_decay=0.1),
    "sgd, clipped by value": Optimizer("sgd", lr=0.1, clip_value=1e-3, momentum=0.5),
}


def train_single_steps(harness: Harness, model: Any, optimizer: Optimizer, batches: list[Array]) -> list[list[float]]:
    """Train on batches one uncompiled step at a time with its own program; returns the mean losses."""
    program = harness.build(model, optimizer=optimizer, compile="off")
    losses = run_single_steps(harness, program, [[rows] for rows in batches], optimizer)
    program.close()
    return losses


def from_one_state(
    harness: Harness, program: MultiStepProgram, runs: Sequence[tuple[int, Sequence[tuple[int, ...]]]]
) -> list[Array]:
    """The mean losses of runs that all begin with the program's present state; each has a seed and its calls."""
    snapshot, results = program.snapshot(), []
    for key, calls in runs:
        program.restore(snapshot)
        program.seed(key)
        results.append(run_steps(harness, program, calls))
    return results


class MultiStepTests(CompileTests, MicrobatchTests, ScaledStepTests):
    """Everything that `MultiStepProgram` promises."""

    capability = "multi_step"

    @pytest.mark.parametrize("name", ["nesterov", "adamw", "adam, clipped"])
    def test_train_steps_equal_single_steps(self, harness: Harness, model: Make, name: str) -> None:
        """Steps in one call, and the calls after it, give what single steps give (to 1e-5)."""
        prepared = harness.prepare_model(model)
        clone = harness.clone_model(model, prepared)
        batches = [ORDER[:4], ORDER[4:8], ORDER[:4]]
        expected = train_single_steps(harness, clone, OPTIMIZERS[name], batches)
        program = build_multi_step(harness, prepared, optimizer=OPTIMIZERS[name])
        actual = run_steps(harness, program, [(0, 2, 4), (0, 1, 4)])
        program.close()
        assert_close(actual, np.array(expected), rtol=1e-5, atol=1e-6)
        assert_close(harness.parameter_values(prepared), harness.parameter_values(clone), rtol=1e-5, atol=2e-6)

    def test_told_steps_are_the_same_steps(self, harness: Harness, model: Make) -> None:
        """Each step of a call is reported with its losses, once it is done; the call ends when requested."""
        program = build_multi_step(harness, harness.prepare_model(model), optimizer=OPTIMIZERS["adamw"], compile="off")
        if not isinstance(program, NotifyingProgram):
            pytest.skip("the program does not report each step: it is not a NotifyingProgram")
        start = program.snapshot()
        expected = run_steps(harness, program, [(0, 2, 4), (8, 1, 4)])
        program.restore(start)
        columns, orders = columns_and_orders(harness)
        told: list[Array] = []

        def after_step(table: Callable[[], Any]) -> bool:
            told.append(harness.to_numpy(table()))
            return len(told) == 2

        table = harness.to_numpy(program.train_and_notify(columns, orders, 0, 3, 4, after_step))
        after = run_steps(harness, program, [(8, 1, 4)])  # as after two steps, not three
        program.close()
        assert_close(table, np.concatenate(told), rtol=1e-6)
        assert_close(np.concatenate([table, after]), expected, rtol=1e-5, atol=1e-6)

    def test_buffers_change_as_in_single_steps(self, harness: Harness, buffered_model: Make) -> None:
        """Buffers are carried from step to step."""
        prepared = harness.prepare_model(buffered_model)
        clone = harness.clone_model(buffered_model, prepared)
        train_single_steps(harness, clone, OPTIMIZERS["sgd"], [ORDER[i : i + 4] for i in range(0, 8, 4)])
        program = build_multi_step(harness, prepared, optimizer=OPTIMIZERS["sgd"])
        run_steps(harness, program, [(0, 2, 4)])
        program.close()
        assert_close(harness.compute.state(prepared), harness.compute.state(clone))

    def test_losses_are_a_matrix_on_the_device(self, harness: Harness, model: Make) -> None:
        """They are [n_steps or more, n_losses], in the order of the segment's losses, on the device."""
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

    @pytest.mark.parametrize("name", ["random_model", "buffered_model"])
    def test_one_call_equals_two_calls_of_half(
        self, harness: Harness, request: pytest.FixtureRequest, name: str
    ) -> None:
        """Dividing steps among calls changes neither losses nor random numbers."""
        prepared = harness.prepare_model(request.getfixturevalue(name))
        program = build_multi_step(harness, prepared, optimizer=OPTIMIZERS["nesterov"])
        first, second = from_one_state(harness, program, [(3, [(0, 2, 3)]), (3, [(0, 1, 3), (3, 1, 3)])])
        assert_close(first, second)

    def test_steps_follow_the_seed(self, harness: Harness, random_model: Make) -> None:
        """The same seed gives the same losses, another seed others."""
        program = build_multi_step(harness, harness.prepare_model(random_model))
        first, same, other = from_one_state(harness, program, [(key, [(0, 2, 4)]) for key in (1, 1, 2)])
        np.testing.assert_array_equal(first, same)
        assert (first != other).any()

    @pytest.mark.parametrize("name", ["model", "mutating_model"])
    def test_train_steps_do_not_change_the_columns(
        self, harness: Harness, request: pytest.FixtureRequest, name: str
    ) -> None:
        """Resident columns and orders serve many epochs, even if the model writes to its batches."""
        program = build_multi_step(harness, harness.prepare_model(request.getfixturevalue(name)))
        columns, order = harness.inputs(COLUMNS), harness.put_indices(np.arange(22))
        if name == "mutating_model":
            program.train_steps(columns, [order] * 2, 0, 2, 4)
        program.train_steps(columns, [order] * 2, 0, 1, 22)
        for tensor, before in zip((*columns, order), (COLUMNS.x, COLUMNS.targets["mse"], np.arange(22)), strict=True):
            np.testing.assert_array_equal(harness.to_numpy(tensor), before)

    def test_each_column_has_its_own_order(self, harness: Harness, model: Make) -> None:
        """Orders may differ, repeat and omit rows."""
        prepared = harness.prepare_model(model)
        random = np.random.default_rng(5)
        first, second = random.integers(0, 22, 16), random.integers(0, 22, 16)
        clone = harness.clone_model(model, prepared)
        single = build_multi_step(harness, clone, compile="off", optimizer=OPTIMIZERS["sgd"])
        for start in range(0, 16, 8):
            x, t = COLUMNS.rows(first[start : start + 8]), COLUMNS.rows(second[start : start + 8])
            harness.forward_backward(single, (harness.inputs(x)[0], harness.inputs(t)[1]))
            single.optimizer_step()
        single.close()
        program = build_multi_step(harness, prepared, optimizer=OPTIMIZERS["sgd"])
        program.train_steps(harness.inputs(COLUMNS), [harness.put_indices(first), harness.put_indices(second)], 0, 2, 8)
        program.close()
        assert_close(harness.parameter_values(prepared), harness.parameter_values(clone), rtol=1e-5, atol=2e-6)

    def test_train_steps_continue_from_single_steps(self, harness: Harness, model: Make) -> None:
        """Both share optimizer state, step count and parameters; evaluation and `sync_models` in between see them."""
        prepared, adam = harness.prepare_model(model), OPTIMIZERS["adam"]
        clone = harness.clone_model(model, prepared)
        batches = [ORDER[i : i + 4] for i in (0, 4, 8)]
        single = build_multi_step(harness, clone, compile="off", optimizer=adam)
        program = build_multi_step(harness, prepared, optimizer=adam)
        for running in (single, program):
            run_single_steps(harness, running, [[batches[0]]], adam)
        run_single_steps(harness, single, [[batches[1]]], adam)
        run_steps(harness, program, [(4, 1, 4)])
        assert_close(harness.eval_loss(program, COLUMNS), harness.eval_loss(single, COLUMNS))
        for running in (single, program):
            running.sync_models()
        assert_close(harness.parameter_values(prepared), harness.parameter_values(clone), rtol=1e-5, atol=2e-6)
        for running in (single, program):
            run_single_steps(harness, running, [[batches[2]]], adam)
        assert program.optimizer_states()["node"].step == 3
        for running in (single, program):
            running.close()
        assert_close(harness.parameter_values(prepared), harness.parameter_values(clone), rtol=1e-5, atol=2e-6)

    def test_batches_may_begin_anywhere_and_have_any_size(self, harness: Harness, model: Make) -> None:
        """`start` is a position, not a number of batches; last batches of 1 to 3 rows are computed from these alone."""
        prepared, adam = harness.prepare_model(model), OPTIMIZERS["adam"]
        clone = harness.clone_model(model, prepared)
        program = build_multi_step(harness, prepared, optimizer=adam)
        actual = run_steps(harness, program, [(3, 2, 4), (21, 1, 1), (20, 1, 2), (19, 1, 3)])
        program.close()
        batches = [ORDER[3:7], ORDER[7:11], ORDER[21:], ORDER[20:], ORDER[19:]]
        expected = train_single_steps(harness, clone, adam, batches)
        assert_close(actual, np.array(expected), rtol=1e-5, atol=1e-6)
        assert_close(harness.parameter_values(prepared), harness.parameter_values(clone), rtol=1e-5, atol=2e-6)

    @pytest.mark.parametrize("name", ["model", "tied_model"])
    def test_clipped_steps_count_shared_parameters_once(
        self, harness: Harness, request: pytest.FixtureRequest, name: str
    ) -> None:
        """A model in two operations, or a parameter in two places of one, enters the norm with the sum of gradients."""
        prepared = harness.prepare_model(request.getfixturevalue(name))
        build_multi_step(harness, prepared)  # skips where not declared
        state, start, steps = harness.compute.state(prepared), harness.parameter_values(prepared), []
        for limit in (None, LIMIT):
            harness.compute.load_state(prepared, state)
            optimizer = Optimizer("sgd", lr=1.0, clip_norm=limit)
            segment = shared_model_segment(harness, prepared, optimizer)
            program = harness.compute.build(segment) if limit else harness.build_reference(segment)
            assert isinstance(program, MultiStepProgram)
            program.train_steps(harness.inputs(COLUMNS) * 2, [harness.put_indices(ORDER)] * 4, 0, 1, 6)
            program.close()
            end = harness.parameter_values(prepared)
            steps.append({key: value - end[key] for key, value in start.items()})
        gradient, clipped = steps
        factor = LIMIT / (squared_norm(start, gradient) ** 0.5 + 1e-6)
        assert factor < 1
        assert_close(clipped, {key: factor * value for key, value in gradient.items()}, rtol=1e-3, atol=1e-6)

    def test_restore_undoes_train_steps(self, harness: Harness, model: Make) -> None:
        """`restore` undoes the changes of `train_steps`."""
        program = build_multi_step(harness, harness.prepare_model(model), optimizer=OPTIMIZERS["adam"])
        run_steps(harness, program, [(0, 1, 4)])
        snapshot = program.snapshot()
        first = run_steps(harness, program, [(4, 1, 4)])
        program.restore(snapshot)
        np.testing.assert_array_equal(run_steps(harness, program, [(4, 1, 4)]), first)
