"""SteppingTests: the promises of a program that runs whole steps in one call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from anyaccel.backend import Exchange, MultiStepProgram
from anyaccel.specs import Optimizer, Schedule
from anyaccel.testing import reference_formulas
from anyaccel.testing.compiling_tests import CompilingTests
from anyaccel.testing.harness import GROUP, LOSS, Array, Batch, Bench, Wiring, close

Make = Callable[[], Any]
COLUMNS = Batch.of(22)
ORDER = np.random.default_rng(1).permutation(np.arange(22, dtype="int64"))
RECIPES = {
    "sgd": Optimizer("sgd", lr=0.1),
    "nesterov": Optimizer("momentum", lr=0.05, nesterov=True),
    "adam": Optimizer("adam", lr=0.02, schedule=Schedule("linear", steps=5, warmup=2)),
    "adamw": Optimizer("adamw", lr=0.02, weight_decay=0.3),
    "sgd, clipped": Optimizer("sgd", lr=0.1, clip_norm=0.05),
    "adam, clipped": Optimizer("adam", lr=0.02, clip_norm=0.01, weight_decay=0.1),
}


def built(bench: Bench, model: Any, **settings: Any) -> MultiStepProgram:
    """A program that steps, or a skip where the backend has none."""
    program = bench.build(model, **settings)
    if not isinstance(program, MultiStepProgram) or not isinstance(bench.backend, Exchange):
        pytest.skip("stepping is not declared")
    return program


def stepped(bench: Bench, program: MultiStepProgram, calls: list[tuple[int, int, int]]) -> Array:
    """The mean losses of some calls of (start, count, batch), one after the other."""
    columns = bench.inputs(COLUMNS)
    orders = [bench.order(ORDER)] * len(columns)
    return np.concatenate([bench.read(program.train_steps(columns, orders, *call))[: call[1]] for call in calls])


def looped(bench: Bench, model: Any, optimizer: Optimizer, batches: list[Array]) -> list[list[float]]:
    """The mean losses of the same steps done one by one; clipped by the formula, with gradients read on the host."""
    program, losses = bench.build(model, optimizer=optimizer), []
    for which in batches:
        found = bench.pull(program, bench.inputs(COLUMNS.rows(which)))
        losses.append([bench.loss(found[LOSS])])
        clip = optimizer.clip_norm
        scale = {} if clip is None else {GROUP: reference_formulas.clip_scale(bench.gradients(program), clip)}
        program.optimizer_step(scale)
    program.close()
    return losses


@pytest.mark.anyaccel_capability("stepping")
class SteppingTests(CompilingTests):
    """Every promise of `MultiStepProgram`."""

    @pytest.mark.parametrize("name", RECIPES)
    def test_steps_are_the_steps_of_the_plain_way(self, bench: Bench, model: Make, name: str) -> None:
        """Two whole epochs with a smaller last batch end where steps done one by one end (to 1e-5)."""
        ready = bench.ready(model)
        other = bench.twin(model, ready)
        batches = [ORDER[i : i + 4] for i in range(0, 22, 4)] * 2
        expected = looped(bench, other, RECIPES[name], batches)
        program = built(bench, ready, optimizer=RECIPES[name])
        found = stepped(bench, program, [(0, 5, 4), (20, 1, 2)] * 2)
        program.close()
        close(found, np.array(expected), rtol=1e-5, atol=1e-6)
        close(bench.values(ready), bench.values(other), rtol=1e-5, atol=2e-6)

    def test_buffers_change_as_in_the_plain_way(self, bench: Bench, buffered_model: Make) -> None:
        """Values that change without gradients are carried from step to step."""
        ready = bench.ready(buffered_model)
        other = bench.twin(buffered_model, ready)
        looped(bench, other, RECIPES["sgd"], [ORDER[i : i + 4] for i in range(0, 20, 4)])
        program = built(bench, ready, optimizer=RECIPES["sgd"])
        stepped(bench, program, [(0, 5, 4)])
        program.close()
        close(bench.compute.state(ready), bench.compute.state(other))

    def test_losses_are_a_table_on_the_device(self, bench: Bench, model: Make) -> None:
        """[count, losses], in the order of the segment's losses, left on the device."""
        ready = bench.ready(model)
        built(bench, ready)
        terms = (bench.term(("y", "t"), "mse", "b"), bench.term(("y", "t"), "mae", "a", weight=0.0))
        program = bench.compute.build(replace(bench.segment(Wiring(ready)), losses=terms))
        assert isinstance(program, MultiStepProgram)
        (y,), _ = program.forward(bench.inputs(COLUMNS.rows(ORDER[:4])))
        columns = bench.inputs(COLUMNS)
        table = program.train_steps(columns, [bench.order(ORDER)] * 2, 0, 3, 4)
        assert bench.backend.device_of(table) == bench.device
        assert len(bench.read(table)) >= 3
        assert bench.read(table).shape[1] == 2
        target = COLUMNS.targets["mse"][ORDER[:4]]
        means = [
            total / weight
            for total, weight in (reference_formulas.loss(n, bench.read(y), target) for n in ("mse", "mae"))
        ]
        close(bench.read(table)[0], np.array(means))

    @pytest.mark.parametrize("name", ["model", "random_model", "buffered_model"])
    def test_one_call_is_two_calls_of_half(self, bench: Bench, request: pytest.FixtureRequest, name: str) -> None:
        """Where calls are cut makes no difference, to random numbers neither."""
        make = request.getfixturevalue(name)
        ready = bench.ready(make)
        results = []
        for calls in ([(0, 4, 3)], [(0, 2, 3), (6, 2, 3)]):
            program = built(bench, bench.twin(make, ready), optimizer=RECIPES["adam"])
            program.seed(3)
            results.append(stepped(bench, program, calls))
        close(results[0], results[1])

    def test_steps_follow_the_seed(self, bench: Bench, random_model: Make) -> None:
        """The same key gives the same losses, another key others."""
        ready = bench.ready(random_model)
        results = []
        for key in (1, 1, 2):
            program = built(bench, bench.twin(random_model, ready))
            program.seed(key)
            results.append(stepped(bench, program, [(0, 3, 4)]))
        np.testing.assert_array_equal(results[0], results[1])
        assert (results[0] != results[2]).any()

    @pytest.mark.parametrize("name", ["model", "writing_model"])
    def test_steps_leave_the_columns_as_they_are(self, bench: Bench, request: pytest.FixtureRequest, name: str) -> None:
        """Resident columns and orders serve many epochs, whatever the model does with its batches."""
        program = built(bench, bench.ready(request.getfixturevalue(name)))
        columns, order = bench.inputs(COLUMNS), bench.order(np.arange(22))
        program.train_steps(columns, [order] * 2, 0, 3, 4)
        program.train_steps(columns, [order] * 2, 0, 1, 22)
        for tensor, before in zip((*columns, order), (COLUMNS.x, COLUMNS.targets["mse"], np.arange(22)), strict=True):
            np.testing.assert_array_equal(bench.read(tensor), before)

    def test_steps_start_where_they_are_told(self, bench: Bench, model: Make) -> None:
        """`start` counts rows of the order, not batches."""
        ready = bench.ready(model)
        other = bench.twin(model, ready)
        expected = looped(bench, other, RECIPES["sgd"], [ORDER[5:8], ORDER[8:11]])
        found = stepped(bench, built(bench, ready, optimizer=RECIPES["sgd"]), [(5, 2, 3)])
        close(found, np.array(expected))

    def test_each_column_has_an_order_of_its_own(self, bench: Bench, model: Make) -> None:
        """Orders may differ, name rows twice and others never, and be longer than the columns."""
        ready = bench.ready(model)
        drawn = np.random.default_rng(5)
        first, second = drawn.integers(0, 22, 40), drawn.integers(0, 22, 40)
        other = bench.twin(model, ready)
        single = built(bench, other, optimizer=RECIPES["sgd"])
        for start in range(0, 40, 8):
            x, t = COLUMNS.rows(first[start : start + 8]), COLUMNS.rows(second[start : start + 8])
            bench.pull(single, (bench.inputs(x)[0], bench.inputs(t)[1]))
            single.optimizer_step()
        single.close()
        program = built(bench, ready, optimizer=RECIPES["sgd"])
        program.train_steps(bench.inputs(COLUMNS), [bench.order(first), bench.order(second)], 0, 5, 8)
        program.close()
        close(bench.values(ready), bench.values(other), rtol=1e-5, atol=2e-6)

    def test_steps_go_on_from_single_steps(self, bench: Bench, model: Make) -> None:
        """Both ways share one state: optimizer, step count and parameters."""
        ready = bench.ready(model)
        other = bench.twin(model, ready)
        batches = [ORDER[i : i + 4] for i in (0, 4, 8)]
        looped(bench, other, RECIPES["adam"], batches)
        program = built(bench, ready, optimizer=RECIPES["adam"])
        bench.pull(program, bench.inputs(COLUMNS.rows(batches[0])))
        program.optimizer_step()
        stepped(bench, program, [(4, 1, 4)])
        bench.pull(program, bench.inputs(COLUMNS.rows(batches[2])))
        program.optimizer_step()
        assert program.optimizer_states()["node"].step == 3
        program.close()
        close(bench.values(ready), bench.values(other), rtol=1e-5, atol=2e-6)

    def test_a_snapshot_holds_between_steps(self, bench: Bench, model: Make) -> None:
        """What `steps` changes, `restore` brings back."""
        program = built(bench, bench.ready(model), optimizer=RECIPES["adam"])
        stepped(bench, program, [(0, 1, 4)])
        snapshot = program.snapshot()
        first = stepped(bench, program, [(4, 2, 4)])
        program.restore(snapshot)
        np.testing.assert_array_equal(stepped(bench, program, [(4, 2, 4)]), first)
