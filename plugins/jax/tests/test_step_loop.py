"""Step loops: rows gathered for several steps at once, and convolutions on a CPU, in a loop or step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from anyaccel.adapter.traced_program import MAX_STEPS_PER_CALL
from anyaccel.device import Device
from anyaccel.segment import TensorSpec
from anyaccel.specs import Optimizer
from anyaccel_jax import JaxBackend, SequentialCNN, SequentialMLP, ops, step_loop

CPU = Device("cpu")
ADAM = Optimizer("adam", lr=0.01, clip_norm=0.5)
PICTURE = (1, 6, 6)
ROWS = 22
Make = Callable[..., Any]
Calls = list[tuple[int, int]]


def network(backend: JaxBackend, features: tuple[int, ...]) -> Any:
    model: Any = SequentialCNN(channels=2) if len(features) > 1 else SequentialMLP(hidden_dim=4, dropout=0.3)
    backend.infer(model, [TensorSpec(features, "float32")], 0)
    return backend.place(model, CPU)


def program(backend: JaxBackend, segment_of: Make, features: tuple[int, ...] = PICTURE) -> tuple[Any, Any]:
    """A program, and the columns and orders of `ROWS` rows."""
    random = np.random.default_rng(4)
    model = network(backend, features)
    result = backend.build(segment_of(model, optimizer=ADAM, features=features))
    result.seed(3)
    arrays = random.standard_normal((ROWS, *features), "float32"), random.standard_normal((ROWS, 1), "float32")
    columns = [backend.from_host(array, CPU) for array in arrays]
    return result, (columns, [backend.from_host(random.permutation(ROWS).astype("int32"), CPU) for _ in columns])


def trained(made: tuple[Any, Any], calls: Calls, batch: int = 4, parts: int = 1) -> list[np.ndarray]:
    """Losses of all calls, and the parameters after them."""
    result, given = made
    losses = [np.asarray(result.train_steps(*given, start, count, batch, parts))[:count] for start, count in calls]
    slots = [value for state in result.close().values() for there in state.slots.values() for value in there.values()]
    return [np.concatenate(losses), *map(np.asarray, slots)]


# -- rows --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("ahead", [2, 3, 32])
def test_rows_gathered_for_several_steps_give_the_same_results(
    backend: JaxBackend, segment_of: Make, monkeypatch: pytest.MonkeyPatch, ahead: int, parts: int
) -> None:
    """Also where a block ends after the last row, and where calls end within a block."""
    calls: Calls = [(0, 5), (0, 1), (4, 4), (8, 2)]
    result = []
    for steps in (1, ahead):
        monkeypatch.setattr(step_loop, "steps_gathered_at_once", lambda _, steps=steps: steps)
        result.append(trained(program(backend, segment_of, (3,)), calls, parts=parts))
    for actual, expected in zip(*result, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=2e-6, atol=1e-7)


def test_large_batches_are_gathered_one_by_one() -> None:
    columns = [np.zeros((2, 1000), np.float32)] * 2
    assert [step_loop._steps_per_gather(rows, columns) for rows in (1, 10, 64, 10_000)] == [32, 13, 2, 1]  # noqa: SLF001


# -- convolutions ------------------------------------------------------------------------------------------------------


def way(monkeypatch: pytest.MonkeyPatch, *, loop: bool) -> list[bool]:
    """Decides which way is faster; the list has an entry for each trial."""
    tried: list[bool] = []
    monkeypatch.setattr(step_loop, "is_faster", lambda *_: tried.append(loop) or loop)
    return tried


@pytest.mark.parametrize("parts", [1, 2])
def test_convolutions_in_a_loop_and_step_by_step_give_the_same(
    backend: JaxBackend, segment_of: Make, monkeypatch: pytest.MonkeyPatch, parts: int
) -> None:
    result = []
    for loop in (True, False):
        tried = way(monkeypatch, loop=loop)
        result.append(trained(program(backend, segment_of), [(0, 3), (12, 2), (0, 1), (4, 4)], parts=parts))
        assert tried == [loop]
    for actual, expected in zip(*result, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=1e-6)


def test_a_trial_changes_nothing(backend: JaxBackend, segment_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    real = trained(program(backend, segment_of), [(0, 5)])
    result = []
    for loop in (True, False):
        way(monkeypatch, loop=loop)
        result.append(trained(program(backend, segment_of), [(0, 5)]))
    assert any(all(map(np.array_equal, run, real)) for run in result)


def test_the_faster_way_is_taken(backend: JaxBackend, segment_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[float] = []
    monkeypatch.setattr("anyaccel.adapter.traced_program._shortest_seconds", lambda _: taken.pop(0))
    steps: list[int] = []
    loop_or_steps = step_loop._LoopOrSteps  # noqa: SLF001
    real = loop_or_steps._run_one_by_one  # noqa: SLF001
    monkeypatch.setattr(loop_or_steps, "_run_one_by_one", lambda *given: steps.append(given[-1]) or real(*given))
    for times, ways in (([0.01, 0.02, 1.0, 2.0], [1]), ([0.02, 0.01, 2.0, 1.0], [1, 5])):
        taken[:], steps[:] = times, []
        trained(program(backend, segment_of), [(0, 5)])
        assert (taken, steps) == ([], ways), "one step to compile it, and those of the call if it is the faster way"


def test_without_convolutions_nothing_is_tried(
    backend: JaxBackend, segment_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = way(monkeypatch, loop=False)
    trained(program(backend, segment_of, (3,)), [(0, 5)])
    assert tried == []


def test_a_state_that_cannot_be_kept_is_not_tried_with(
    backend: JaxBackend, segment_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = way(monkeypatch, loop=False)
    plain = trained(program(backend, segment_of), [(0, 3), (12, 2)])
    monkeypatch.setattr("anyaccel_jax.compute.DONATED_BYTES", 0)
    result = trained(program(backend, segment_of), [(0, 3), (12, 2)])
    assert tried == [False], "by the first program"
    for actual, expected in zip(plain, result, strict=True):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("loop", [True, False])
def test_consecutive_steps_send_nothing_either_way(
    backend: JaxBackend, segment_of: Make, monkeypatch: pytest.MonkeyPatch, loop: bool
) -> None:
    way(monkeypatch, loop=loop)
    result, given = program(backend, segment_of)
    for start, count in ((0, 1), (4, 2), (0, 1)):
        result.train_steps(*given, start, count, 4)
    with jax.transfer_guard("disallow_explicit"):
        kept = [result.train_steps(*given, start, count, 4) for start, count in ((4, 1), (8, 2), (16, 1))]
    assert np.isfinite(np.concatenate(kept)).all()


def test_another_number_of_steps_compiles_nothing(
    backend: JaxBackend, segment_of: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """Results have rows for more steps than were run."""
    result, given = program(backend, segment_of, (3,))
    result.compile(*given, 4)
    result.train_steps(*given, 0, 5, 4)
    with jax.log_compiles():
        caplog.clear()
        results = [result.train_steps(*given, 0, count, 4) for count in (1, 2, 4, 3)]
    assert [record.message for record in caplog.records if "ompil" in record.message] == []
    assert {result.shape for result in results} == {(MAX_STEPS_PER_CALL, 1)}
    with jax.log_compiles():
        jax.jit(lambda x: x + 41)(np.float32(1))
    assert any("ompil" in record.message for record in caplog.records)


def test_a_gather_without_an_order_is_a_slice() -> None:
    column = jax.numpy.arange(6.0)
    given = ops.JaxOps(lambda array, _: array).gather_batch(column, None, np.int32(2), 3)
    np.testing.assert_array_equal(given, [2.0, 3.0, 4.0])
