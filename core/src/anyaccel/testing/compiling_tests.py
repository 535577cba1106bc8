"""CompilingTests: whole steps compiled, offered, left plain, and computed in parts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from anyaccel.backend import CompileEstimate, Exchange, MultiStepProgram
from anyaccel.errors import CompileError
from anyaccel.specs import Optimizer
from anyaccel.testing import reference_formulas
from anyaccel.testing.harness import GROUP, LOSS, Array, Batch, Bench, Wiring, close
from anyaccel.testing.subject import Subject

Make = Callable[[], Any]
Call = tuple[int, ...]
COLUMNS = Batch.of(22)
ORDER = np.random.default_rng(1).permutation(np.arange(22, dtype="int64"))
ADAM = Optimizer("adam", lr=0.02, weight_decay=0.1)
CLIPPED = Optimizer("adam", lr=0.02, clip_norm=0.05, weight_decay=0.1)


def built(bench: Bench, model: Any, *, compile: str = "auto", **settings: Any) -> MultiStepProgram:
    """A program that steps, or a skip where the backend has none."""
    segment = replace(bench.segment(Wiring(model, **settings)), compile=compile)
    program = bench.compute.build(segment)
    if not isinstance(program, MultiStepProgram) or not isinstance(bench.backend, Exchange):
        pytest.skip("stepping is not declared")
    return program


def in_parts(bench: Bench, model: Any, **settings: Any) -> MultiStepProgram:
    """A program whose steps take parts, or a skip."""
    program = built(bench, model, **settings)
    if not program.supports_microbatching:
        pytest.skip("steps in parts are not declared")
    return program


def given(bench: Bench) -> tuple[Any, Any]:
    """Columns and orders, on the device."""
    columns = bench.inputs(COLUMNS)
    return columns, [bench.order(ORDER)] * len(columns)


def stepped(bench: Bench, program: MultiStepProgram, calls: list[Call]) -> Array:
    """The mean losses of some calls of (start, count, batch) or (start, count, batch, parts)."""
    columns, orders = given(bench)
    return np.concatenate([bench.read(program.train_steps(columns, orders, *call))[: call[1]] for call in calls])


def by_hand(
    bench: Bench, program: MultiStepProgram, steps: list[list[Array]], optimizer: Optimizer
) -> list[list[float]]:
    """The mean losses of steps done one by one, each from the mean gradients of some pieces of equal size."""
    losses = []
    for pieces in steps:
        found = [bench.pull(program, bench.inputs(COLUMNS.rows(which))) for which in pieces]
        losses.append([float(np.mean([bench.loss(one[LOSS]) for one in found]))])
        clip = optimizer.clip_norm
        share = 1 / len(pieces)
        program.optimizer_step(
            {GROUP: share if clip is None else share * reference_formulas.clip_scale(bench.gradients(program), clip)}
        )
    return losses


def buffers(bench: Bench, model: Any) -> dict[str, Array]:
    """What a model has changed without gradients: no update of one step matters to it."""
    return {name: value for name, value in bench.compute.state(model).items() if name.startswith("buffers/")}


def cut(start: int, batch: int, parts: int) -> list[Array]:
    """The rows of a step in parts."""
    return np.split(ORDER[start : start + batch], parts)


class PartsTests(Subject):
    """Steps whose rows are computed in parts, one after the other."""

    @pytest.mark.parametrize("optimizer", [Optimizer("sgd", lr=0.1), CLIPPED], ids=["sgd", "adam, clipped"])
    def test_steps_in_parts_are_whole_steps(self, bench: Bench, model: Make, optimizer: Optimizer) -> None:
        """Losses and values are those of all rows at once (to 1e-5), however many parts there are."""
        ready = bench.ready(model)
        other = bench.twin(model, ready)
        program = in_parts(bench, ready, optimizer=optimizer)
        found = stepped(bench, program, [(0, 2, 8, 2), (16, 1, 6, 3), (0, 1, 8, 8)])
        program.close()
        plain = built(bench, other, optimizer=optimizer, compile="off")
        expected = by_hand(bench, plain, [[ORDER[:8]], [ORDER[8:16]], [ORDER[16:22]], [ORDER[:8]]], optimizer)
        plain.close()
        close(found, np.array(expected), rtol=1e-5, atol=1e-6)
        close(bench.values(ready), bench.values(other), rtol=1e-5, atol=2e-6)

    def test_buffers_go_from_part_to_part(self, bench: Bench, buffered_model: Make) -> None:
        """Values that change without gradients change with each part, as if it were a batch of its own."""
        ready, sgd = bench.ready(buffered_model), Optimizer("sgd", lr=0.1)
        other = bench.twin(buffered_model, ready)
        program = in_parts(bench, ready, optimizer=sgd)
        found = stepped(bench, program, [(0, 1, 8, 2)])
        program.close()
        plain = built(bench, other, optimizer=sgd, compile="off")
        expected = by_hand(bench, plain, [cut(0, 8, 2)], sgd)
        plain.close()
        close(found, np.array(expected), rtol=1e-5, atol=1e-6)
        close(buffers(bench, ready), buffers(bench, other))

    def test_each_part_draws_its_own_random_numbers(self, bench: Bench, random_model: Make) -> None:
        """Two parts of the same rows differ in what is left out; cut calls draw what one call does."""
        ready, results = bench.ready(random_model), []
        same = np.tile(ORDER[:4], 4)
        for calls in ([(0, 2, 8, 2)], [(0, 1, 8, 2), (8, 1, 8, 2)], [(0, 2, 4, 1)]):
            program = in_parts(bench, bench.twin(random_model, ready), optimizer=Optimizer("sgd", lr=1e-9))
            program.seed(3)
            columns = bench.inputs(COLUMNS)
            steps: Callable[..., Any] = program.train_steps
            means = [bench.read(steps(columns, [bench.order(same)] * 2, *call))[: call[1]] for call in calls]
            results.append(np.concatenate(means)[:, 0])
        close(results[0], results[1])
        first, second = results[2]
        if abs(first - second) < 1e-6:
            pytest.skip("steps draw no random numbers of their own")
        assert abs(results[0][0] - first) > 1e-6


@pytest.mark.anyaccel_capability("stepping")
class CompilingTests(PartsTests):
    """`offer`, `compile`, and segments that must not be compiled. It compiles twice, as that may take long."""

    def test_compiled_steps_are_plain_steps(self, bench: Bench, model: Make) -> None:
        """To compile changes nothing; the steps after it are those of the plain way (to 1e-5), of other sizes too."""
        ready = bench.ready(model)
        other = bench.twin(model, ready)
        program = built(bench, ready, optimizer=ADAM)
        program.seed(1)
        before = stepped(bench, program, [(0, 1, 4)])
        columns, orders = given(bench)
        offer = program.estimate_compile(1000)
        assert offer is None or (
            isinstance(offer, CompileEstimate) and offer.compile_seconds >= 0.0 and 0.0 <= offer.step_ratio <= 1.0
        )
        program.sync_models()
        published = bench.compute.state(ready)
        with contextlib.suppress(CompileError):  # refused, steps go the plain way
            program.compile(columns, orders, 4)
        program.sync_models()
        np.testing.assert_equal(bench.compute.state(ready), published)
        assert program.optimizer_states()["node"].step == 1
        after = stepped(bench, program, [(4, 2, 4), (12, 2, 4), (20, 1, 2), (0, 1, 4)])
        program.close()
        plain = built(bench, other, optimizer=ADAM, compile="off")
        batches = [*(ORDER[i : i + 4] for i in range(0, 20, 4)), ORDER[20:], ORDER[:4]]
        expected = by_hand(bench, plain, [[which] for which in batches], ADAM)
        plain.close()
        close(np.concatenate([before, after]), np.array(expected), rtol=1e-5, atol=1e-6)
        close(bench.values(ready), bench.values(other), rtol=1e-5, atol=2e-6)

    def test_compiled_steps_in_parts_carry_buffers(self, bench: Bench, buffered_model: Make) -> None:
        """Values that change without gradients go from part to part (to 1e-5)."""
        ready, sgd = bench.ready(buffered_model), Optimizer("sgd", lr=0.1)
        other = bench.twin(buffered_model, ready)
        program = in_parts(bench, ready, optimizer=sgd)
        columns, orders = given(bench)
        with contextlib.suppress(CompileError):
            program.compile(columns, orders, 8, 2)
        found = stepped(bench, program, [(0, 2, 8, 2)])
        program.close()
        plain = built(bench, other, optimizer=sgd, compile="off")
        expected = by_hand(bench, plain, [cut(0, 8, 2), cut(8, 8, 2)], sgd)
        plain.close()
        close(found, np.array(expected), rtol=1e-5, atol=1e-6)
        close(buffers(bench, ready), buffers(bench, other), rtol=1e-5, atol=1e-6)

    def test_off_is_never_compiled(self, bench: Bench, model: Make) -> None:
        """Nothing is offered, before and after plain steps, and these are the same numbers."""
        ready = bench.ready(model)
        other = bench.twin(model, ready)
        program = built(bench, ready, compile="off", optimizer=ADAM)
        assert program.estimate_compile(1000) is None
        found = stepped(bench, program, [(0, 3, 4)])
        assert program.estimate_compile(1000) is None
        program.close()
        plain = built(bench, other, optimizer=ADAM)
        expected = by_hand(bench, plain, [[ORDER[i : i + 4]] for i in (0, 4, 8)], ADAM)
        plain.close()
        close(found, np.array(expected), rtol=1e-5, atol=1e-6)
