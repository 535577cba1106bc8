"""Compiled steps: eager at first, by XLA, reused in later phases, in micro-batches, and without transfers."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import ops as internals

import anyaccel as aa
from anyaccel.backend import CompileEstimate
from anyaccel.device import Device
from anyaccel.errors import CompileError
from anyaccel.segment import Segment, TensorSpec
from anyaccel_tensorflow import SequentialMLP, step_loop
from anyaccel_tensorflow.backend import TensorFlowBackend
from anyaccel_tensorflow.ops import TensorFlowOps

CPU, SECOND = Device("cpu"), Device("cpu", 1)
X = TensorSpec((3,), "float32")
ADAM = aa.Optimizer("adam", lr=0.01, schedule=aa.Schedule("cosine", steps=40), clip_norm=0.5)
Make = Callable[..., Segment]
layers = keras.layers


class Linear(tf.Module):
    """x @ w, with a callback for each call."""

    def __init__(self, see: Callable[[Any], Any] = lambda x: None) -> None:
        super().__init__()
        self.w = tf.Variable(tf.ones((3, 1)))
        self.see = see

    def __call__(self, x: Any) -> Any:
        self.see(x)
        return x @ self.w


def mlp(backend: TensorFlowBackend, device: Device = CPU, **given: Any) -> Any:
    model = SequentialMLP(**given)
    backend.infer(model, [X], 3)
    return backend.place(model, device)


def resident(backend: TensorFlowBackend, device: Device = CPU) -> tuple[list[Any], list[Any]]:
    x = np.random.default_rng(0).standard_normal((24, 3)).astype("float32")
    order = backend.from_host(np.random.default_rng(1).permutation(24), device)
    return [backend.from_host(array, device) for array in (x, x[:, :1] * 2)], [order, order]


def trained(
    backend: TensorFlowBackend, segment: Segment, parts: int = 1, compiled: bool = False, device: Device = CPU
) -> np.ndarray:
    columns, orders = resident(backend, device)
    program = backend.build(segment)
    program.seed(9)
    if compiled:
        program.compile(columns, orders, 4, parts)
    result = np.asarray(program.train_steps(columns, orders, 0, 5, 4, parts))[:5]
    program.close()
    return result


# -- ways ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ahead", "parts"), [(2, 1), (3, 2), (32, 1)])
def test_rows_gathered_for_several_steps_give_the_same_results(
    backend: TensorFlowBackend, segment_of: Make, monkeypatch: pytest.MonkeyPatch, ahead: int, parts: int
) -> None:
    """Also where a block ends after the last row, and where calls end within a block."""
    result = []
    for steps in (1, ahead):
        monkeypatch.setattr(step_loop, "steps_gathered_at_once", lambda _, steps=steps: steps)
        columns, orders = resident(backend)
        program = backend.build(segment_of(mlp(backend, dropout=0.4), optimizer=ADAM))
        program.compile(columns, orders, 4, parts)
        cuts = ((0, 5), (4, 4), (8, 1))
        calls = [program.train_steps(columns, orders, start, count, 4, parts)[:count] for start, count in cuts]
        result.append(np.concatenate([np.asarray(result) for result in calls]))
        program.close()
    np.testing.assert_allclose(result[1], result[0], rtol=2e-6)


def test_blocks_of_large_batches_have_fewer_steps() -> None:
    columns = [tf.zeros((2, 1000))] * 2
    assert [step_loop._steps_per_block(rows, columns) for rows in (1, 10, 64, 10_000)] == [32, 13, 2, 1]  # noqa: SLF001


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("device", [CPU, SECOND], ids=str)
def test_all_modes_draw_the_same_and_give_the_same(
    backend: TensorFlowBackend, segment_of: Make, parts: int, device: Device
) -> None:
    result = []
    for mode, compiled in (("off", False), ("auto", False), ("steps", True)):
        model = mlp(backend, device, dropout=0.4)
        segment = segment_of(model, optimizer=ADAM, compile=mode, device=device)
        result.append(trained(backend, segment, parts, compiled, device))
    np.testing.assert_array_equal(result[1], result[0])
    np.testing.assert_allclose(result[2], result[0], rtol=2e-6)


def test_off_calls_the_model_in_each_step_with_values(backend: TensorFlowBackend, segment_of: Make) -> None:
    calls: list[float] = []
    model = Linear(lambda x: calls.append(float(x[0, 0])))
    result = trained(backend, segment_of(model, compile="off"))
    columns, (order, _) = resident(backend)
    assert calls == [float(columns[0][order[i], 0]) for i in range(0, 20, 4)]
    np.testing.assert_allclose(result, trained(backend, segment_of(Linear()), compiled=True), rtol=1e-5)


def test_off_offers_nothing_and_compiles_nothing(backend: TensorFlowBackend, segment_of: Make) -> None:
    columns, orders = resident(backend)
    program = backend.build(segment_of(Linear(), compile="off"))
    assert program.estimate_compile(100) is None
    with pytest.raises(CompileError, match=r"segment 's' cannot be compiled: .*built with compile='off'"):
        program.compile(columns, orders, 4)


def test_the_first_steps_are_eager_and_compilation_is_estimated(backend: TensorFlowBackend, segment_of: Make) -> None:
    calls: SimpleQueue[int] = SimpleQueue()  # no list, whose contents would be a change of the model
    columns, orders = resident(backend)
    model = Linear(lambda x: calls.put(1))
    program = backend.build(segment_of(model))
    program.train_steps(columns, orders, 0, 3, 4)
    assert calls.qsize() == 3
    estimate = program.estimate_compile(100)
    assert estimate is not None and estimate.compile_seconds > 0.0 and 0.0 < estimate.step_ratio < 1.0
    program.compile(columns, orders, 4)
    before = calls.qsize()
    program.train_steps(columns, orders, 0, 3, 4)
    assert calls.qsize() == before, "compiled"
    program.train_steps(columns, orders, 0, 1, 3)
    assert calls.qsize() == before + 1, "the last batch, which is smaller, is done plain"
    program.close()
    assert backend.build(segment_of(model)).estimate_compile(100) == CompileEstimate(0.0, 0.0), (
        "what is compiled already takes no time"
    )


def test_small_last_batches_are_compiled_when_they_have_taken_long_enough(
    backend: TensorFlowBackend, segment_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TensorFlowOps, "eager_seconds", 0.0)
    result = []
    for compiled in (True, False):
        columns, orders = resident(backend)
        program = backend.build(segment_of(mlp(backend), compile="auto" if compiled else "off"))
        if compiled:
            program.compile(columns, orders, 4)
        calls = ((0, 5, 4), (20, 1, 3), (0, 5, 4), (20, 1, 3))
        tables = [program.train_steps(columns, orders, *call)[: call[1]] for call in calls]
        program.close()
        result.append(np.concatenate(tables))
    np.testing.assert_allclose(result[0], result[1], rtol=2e-6)


def test_operations_that_xla_lacks_are_compiled_without_it(backend: TensorFlowBackend, segment_of: Make) -> None:
    def see(x: Any) -> Any:
        if not tf.executing_eagerly():
            tf.strings.as_string(x)
            tf.print(tf.strings.length(tf.strings.as_string(x[0, 0])), output_stream="file:///dev/null")

    result = trained(backend, segment_of(Linear(see)), compiled=True)
    np.testing.assert_allclose(result, trained(backend, segment_of(Linear(), compile="off")), rtol=1e-5)


def test_a_loop_that_xla_makes_slow_is_compiled_without_it(
    backend: TensorFlowBackend, segment_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is faster is measured; here the measurement is replaced."""
    result, tried = [], []
    for better in (True, False):
        monkeypatch.setattr(step_loop, "is_faster", lambda *given, better=better: tried.append(given) or better)
        result.append(trained(backend, segment_of(mlp(backend), optimizer=ADAM), compiled=True))
    assert len(tried) == 2
    np.testing.assert_allclose(result[0], result[1], rtol=1e-5)


def test_the_faster_loop_is_chosen_by_one_step_that_takes_long_enough() -> None:
    calls: list[int] = []

    def slow(*given: Any) -> str:
        calls.append(int(given[-1]))
        time.sleep(0.05 * int(given[-1]))
        return "slow"

    def fast(*given: Any) -> str:
        calls.append(int(given[-1]))
        return "fast"

    given = ({}, {}, {}, tf.constant([0, 1, 0, 4, 1], tf.int64), tf.constant(0, tf.int64))
    for loops in ((fast, slow), (slow, fast)):
        assert step_loop._FasterLoop(*loops, "/CPU:0")(*given) == "fast"  # noqa: SLF001
    assert set(calls) == {0, 1}


def test_a_model_that_cannot_be_traced_runs_eagerly(
    backend: TensorFlowBackend, segment_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TensorFlowOps, "eager_seconds", 0.0)
    columns, orders = resident(backend)
    program = backend.build(segment_of(Linear(float_of), optimizer=ADAM))
    with pytest.raises(CompileError, match=r"cannot be compiled: TypeError: .*SymbolicTensor"):
        program.compile(columns, orders, 4)
    inputs = [backend.gather_rows(column, 0, 4) for column in columns]
    _, losses = program.forward(inputs)
    assert "SymbolicTensor" in program.untraceable_reason and program.estimate_compile(100) is None
    program.forward_pullback(inputs)[2]([None])
    program.zero_grad()
    result = np.asarray(program.train_steps(columns, orders, 0, 5, 4))[:5]
    program.close()
    other = backend.build(segment_of(Linear(), optimizer=ADAM))
    np.testing.assert_allclose(losses["l"][0], other.forward(inputs)[1]["l"][0], rtol=1e-6)
    np.testing.assert_allclose(result, np.asarray(other.train_steps(columns, orders, 0, 5, 4))[:5], rtol=1e-6)
    other.close()


def float_of(x: Any) -> float:
    return float(tf.reduce_sum(x))


# -- from phase to phase ---------------------------------------------------------------------------------------------


def test_the_next_phase_uses_what_was_compiled_with_current_values(
    backend: TensorFlowBackend, segment_of: Make
) -> None:
    calls: list[int] = []
    see = lambda x: calls.append(1)  # noqa: E731
    model, plain = Linear(see), Linear()
    fast = aa.Optimizer("adam", lr=0.5, clip_norm=0.5)
    first = trained(backend, segment_of(model, optimizer=ADAM), compiled=True)
    traces = len(calls)
    again = trained(backend, segment_of(model, optimizer=fast), compiled=True)
    assert traces and len(calls) == traces, "another rate is no other program"
    np.testing.assert_array_equal(trained(backend, segment_of(plain, optimizer=ADAM), compiled=True), first)
    np.testing.assert_array_equal(trained(backend, segment_of(plain, optimizer=fast), compiled=True), again)
    trained(backend, segment_of(model, optimizer=aa.Optimizer("sgd", lr=0.5)), compiled=True)
    assert len(calls) > traces, "another optimizer is one"


def test_a_changed_layer_is_compiled_again(backend: TensorFlowBackend, segment_of: Make) -> None:
    model, result = keras.Sequential([layers.Dense(1), layers.Dropout(0.1)]), []
    backend.infer(model, [X], 1)
    start = model.get_weights()
    for rate in (0.1, 0.9, 0.1):
        model.set_weights(start)
        model.layers[1].rate = rate
        result.append(trained(backend, segment_of(model), compiled=True))
    assert (result[0] != result[1]).any()
    np.testing.assert_array_equal(result[0], result[2])


ALPHA = 1.0


def scaled_error(outputs: Any, targets: Any) -> Any:
    return ALPHA * tf.reduce_mean((outputs - targets) ** 2)


def test_a_changed_global_of_a_loss_is_compiled_again(
    backend: TensorFlowBackend, segment_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, result = Linear(), []
    start = backend.state(model)
    for alpha in (1.0, 2.0):
        monkeypatch.setitem(globals(), "ALPHA", alpha)
        for compiled in (False, True):
            backend.load_state(model, start)
            mode = "auto" if compiled else "off"
            result.append(trained(backend, segment_of(model, loss=scaled_error, compile=mode), compiled=compiled))
    np.testing.assert_allclose(result[1], result[0], rtol=1e-5)
    np.testing.assert_allclose(result[3], result[2], rtol=1e-5)
    assert (result[3] != result[1]).any()


def test_a_compiled_program_drops_what_has_read_a_changed_value(
    backend: TensorFlowBackend, segment_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns, orders = resident(backend)
    program = backend.build(segment_of(Linear(), loss=scaled_error))
    program.compile(columns, orders, 4)
    monkeypatch.setitem(globals(), "ALPHA", 3.0)
    assert program.renew_compiled() == ["ALPHA of the loss 'l'"]
    before = float(program.train_steps(columns, orders, 0, 1, 4)[0, 0])
    again = backend.build(segment_of(Linear(), loss=scaled_error, compile="off"))
    assert before == pytest.approx(float(again.train_steps(columns, orders, 0, 1, 4)[0, 0]), rel=1e-5)
    assert program.renew_compiled() == []


@pytest.mark.parametrize("kind", ["module", "keras", "own"])
def test_models_and_what_was_compiled_for_them_are_garbage_collected(
    backend: TensorFlowBackend, segment_of: Make, kind: str
) -> None:
    from anyaccel.adapter import compile_cache

    made: dict[str, Callable[[], Any]] = {
        "module": Linear,
        "keras": lambda: keras.Sequential([layers.Dense(3), layers.BatchNormalization(), layers.Dense(1)]),
        "own": SequentialMLP,
    }
    model = made[kind]()
    backend.infer(model, [X], 1)
    gc.collect()
    gone, before = weakref.ref(model), len(compile_cache.CACHE)
    trained(backend, segment_of(model, optimizer=ADAM), compiled=True)
    assert len(compile_cache.CACHE) == before + 1
    del model
    gc.collect()
    assert gone() is None and len(compile_cache.CACHE) == before


# -- transfers -------------------------------------------------------------------------------------------------------


def test_consecutive_steps_send_nothing(
    backend: TensorFlowBackend, segment_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a second device, under the explicit policy; no tensor is created from values, and no value is read."""
    columns, orders = resident(backend, SECOND)
    program = backend.build(segment_of(mlp(backend, SECOND, dropout=0.2), optimizer=ADAM, device=SECOND))
    program.seed(1)
    program.compile(columns, orders, 4)
    for start, count in ((0, 1), (4, 2), (0, 1)):
        program.train_steps(columns, orders, start, count, 4)
    message: list[str] = []
    for name in ("numpy", "__array__", "__float__", "__int__", "__bool__"):
        monkeypatch.setattr(internals.EagerTensor, name, _refused(name, message), raising=False)
    make = tf.constant
    monkeypatch.setattr(tf, "constant", lambda *given, **named: message.append("constant") or make(*given, **named))
    assert tf.config.experimental.get_device_policy() == "explicit"
    kept = [
        program.train_steps(columns, orders, start, count, 4) for start, count in ((4, 1), (8, 2), (16, 1), (20, 1))
    ]
    follows = list(message)
    program.train_steps(columns, orders, 0, 1, 4)
    monkeypatch.undo()
    assert follows == []
    assert message == ["constant"] * 4, "an epoch begins: five whole numbers are sent, and a table of three columns"
    assert np.isfinite(np.concatenate([np.asarray(result) for result in kept])).all()
    program.close()


def _refused(name: str, message: list[str]) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        message.append(name)
        raise AssertionError(f"a value was read by {name}")

    return refuse


def test_processes_with_it_are_not_forked() -> None:
    """TensorFlow keeps threads of its own."""
    assert TensorFlowBackend.fork_safe is False
