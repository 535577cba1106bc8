"""Programs: strict until they are closed, traced once, on one device and on several."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import anyaccel as aa
from anyaccel.adapter.traced_program import MAX_STEPS_PER_CALL
from anyaccel.device import Device
from anyaccel.errors import AnyaccelError, DeviceMismatchError, DeviceUnavailableError, OutOfMemoryError, SpecError
from anyaccel.segment import LossTerm, Operation, ParameterGroup, Segment, TensorSpec
from anyaccel_tensorflow import SequentialMLP
from anyaccel_tensorflow.backend import TensorFlowBackend
from anyaccel_tensorflow.error_translation import first_line, translate_errors
from anyaccel_tensorflow.ops import TensorFlowOps
from anyaccel_tensorflow.program import TensorFlowProgram

CPU, SECOND, THIRD = (Device("cpu", i) for i in range(3))
X = TensorSpec((3,), "float32")
layers = keras.layers


def settings() -> tuple[bool, str]:
    return tf.config.get_soft_device_placement(), tf.config.experimental.get_device_policy()


USUAL, STRICT = (True, "silent"), (False, "explicit")


@pytest.fixture(autouse=True)
def settings_stay() -> Iterator[None]:
    gc.collect()
    assert settings() == USUAL
    yield
    gc.collect()
    assert settings() == USUAL


def mlp(backend: TensorFlowBackend, device: Device = CPU, inputs: int = 3, **given: Any) -> Any:
    model = SequentialMLP(**given)
    backend.infer(model, [TensorSpec((inputs,), "float32")], 3)
    return backend.place(model, device)


def arrays(rows: int = 24) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    x = draw.standard_normal((rows, 3)).astype("float32")
    return x, x[:, :1] * 2


# -- strictness ------------------------------------------------------------------------------------------------------


def test_settings_are_strict_from_build_to_close(
    backend: TensorFlowBackend, segment_of: Callable[..., Segment]
) -> None:
    program = backend.build(segment_of(mlp(backend)))
    assert settings() == STRICT
    other = backend.build(segment_of(mlp(backend)))
    program.close()
    assert settings() == STRICT
    other.close()
    assert settings() == USUAL
    other.close()
    program.close()
    assert settings() == USUAL


def test_the_users_settings_are_restored(backend: TensorFlowBackend, segment_of: Callable[..., Segment]) -> None:
    tf.config.set_soft_device_placement(False)
    tf.config.experimental.set_device_policy("warn")
    try:
        program = backend.build(segment_of(mlp(backend)))
        assert settings() == STRICT
        program.close()
        assert settings() == (False, "warn")
    finally:
        tf.config.set_soft_device_placement(True)
        tf.config.experimental.set_device_policy(None)


def test_a_program_that_cannot_be_built_leaves_no_trace(
    backend: TensorFlowBackend, segment_of: Callable[..., Segment]
) -> None:
    optimizer = aa.Optimizer(keras.optimizers.Adam, nothing=1)
    with pytest.raises(SpecError):
        backend.build(segment_of(mlp(backend), optimizer=optimizer))
    assert settings() == USUAL


def test_a_program_that_nobody_closed_restores_settings_when_collected(
    backend: TensorFlowBackend, segment_of: Callable[..., Segment]
) -> None:
    program = backend.build(segment_of(mlp(backend)))
    del program
    gc.collect()
    assert settings() == USUAL


def data() -> aa.FeatureSet:
    x, y = arrays()
    return aa.FeatureSet.from_dict("data", {"x": x, "y": y}, ["x"], ["y"])


def phase(on: str = "net", **given: Any) -> aa.TrainPhase:
    losses = [aa.AppliedLoss("mse", on=on)]
    return aa.TrainPhase("train", data="all", losses=losses, sampler=aa.SimpleSampler(8), epochs=2, **given)


def test_a_phase_is_strict_and_restores_settings() -> None:
    graph = aa.ModelGraph([aa.ModelNode("net", SequentialMLP(), data().reference())], "adam")
    seen = []

    def look(run: Any) -> None:
        seen.append(settings())

    aa.Experiment("e", graph, progress="none").run_phase(phase(callbacks=[_Ends(look)]))
    assert seen == [STRICT, STRICT] and settings() == USUAL


class _Ends(aa.Callback):
    def __init__(self, act: Callable[[Any], None]) -> None:
        self._act = act

    def epoch_end(self, run: Any) -> None:
        self._act(run)


def test_a_phase_that_fails_restores_settings() -> None:
    def fail(run: Any) -> None:
        raise ZeroDivisionError

    graph = aa.ModelGraph([aa.ModelNode("net", SequentialMLP(), data().reference())], "adam")
    with pytest.raises(ZeroDivisionError):
        aa.Experiment("e", graph, progress="none").run_phase(phase(callbacks=[_Ends(fail)]))
    assert settings() == USUAL


# -- the predecessor -------------------------------------------------------------------------------------------------


def test_variables_batches_and_losses_are_on_the_device_and_inside_the_tape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The predecessor never moved variables and batches, and computed losses outside the tape."""
    seen: list[str] = []
    whole = TensorFlowProgram.train_steps

    def steps(self: Any, columns: Any, orders: Any, *rest: Any) -> Any:
        table = whole(self, columns, orders, *rest)
        seen.extend(tensor.backing_device[-5:] for tensor in (*columns, *orders, table))
        return table

    def loss(outputs: Any, targets: Any) -> Any:
        return tf.reduce_mean((outputs - targets) ** 2)

    monkeypatch.setattr(TensorFlowProgram, "train_steps", steps)
    model = keras.Sequential([layers.Dense(1)])
    graph = aa.ModelGraph([aa.ModelNode("net", model, data().reference())], aa.Optimizer("sgd", lr=0.1, momentum=0.9))
    graph.build()
    start = model.get_weights()
    judged = aa.TrainPhase(
        "train",
        data="all",
        losses=[aa.AppliedLoss(loss, on="net")],
        sampler=aa.SimpleSampler(8),
        epochs=4,
        accelerator="cpu:1",
    )
    result = aa.Experiment("e", graph, progress="none").run_phase(judged)
    assert {variable.value.device[-5:] for variable in model.variables} == {"CPU:1"}
    assert seen and set(seen) == {"CPU:1"}
    assert result.loss[-1] < result.loss[0]
    assert all((a != b).any() for a, b in zip(start, model.get_weights(), strict=True))
    for state in graph.optimizer_states.values():
        for kept in state.slots.values():
            assert {aa.device_of(value) for value in kept.values()} == {SECOND}


def test_loss_and_gradients_are_those_of_the_formula_on_a_second_device(
    backend: TensorFlowBackend, segment_of: Callable[..., Segment]
) -> None:
    model = mlp(backend, SECOND)
    program = backend.build(segment_of(model, device=SECOND))
    inputs = [backend.from_host(array, SECOND) for array in arrays()]
    outputs, losses, pull = program.forward_pullback(inputs)
    pull([None])
    stats = program.grad_stats()["g"]
    for tensor in (*outputs, *losses["l"], *stats):
        assert backend.device_of(tensor) == SECOND
    program.close()


# -- tracing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["mlp", "keras", "module"])
def test_later_steps_cause_no_new_traces(
    backend: TensorFlowBackend, segment_of: Callable[..., Segment], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever learning rate, random draws, start and number of steps."""
    monkeypatch.setattr(TensorFlowOps, "eager_seconds", 0.0)
    traces: list[int] = []

    class Counting(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            traces.append(1)
            return x

    class Module(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = tf.Variable([[0.1], [0.2], [0.3]])

        def __call__(self, x: Any) -> Any:
            traces.append(1)
            return x @ self.w

    class Own(SequentialMLP):
        def _features(self, *given: Any) -> Any:
            traces.append(1)
            return super()._features(*given)

    model = {
        "mlp": lambda: Own(dropout=0.1),
        "keras": lambda: keras.Sequential([layers.Dense(3), Counting(), layers.Dropout(0.1), layers.Dense(1)]),
        "module": Module,
    }[kind]()
    backend.infer(model, [X], 1)
    schedule = aa.Schedule("cosine", steps=100)
    optimizer = aa.Optimizer("adam", lr=0.01, schedule=schedule, clip_norm=0.1)
    program = backend.build(segment_of(model, optimizer=optimizer))
    columns = [backend.from_host(array, CPU) for array in arrays()]
    order = backend.from_host(np.arange(24), CPU)
    program.compile(columns, [order, order], 4)

    def epoch(key: int, count: int) -> None:
        program.seed(key)
        program.train_steps(columns, [order, order], 8, count, 4)
        inputs = [backend.gather_rows(column, 0, 4, order) for column in columns]
        program.forward(inputs)
        for scale in (None, {"l": key + 0.5}):
            _, _, pull = program.forward_pullback(inputs, scale)
            pull([None])
            stats = program.grad_stats()
            program.optimizer_step({"g": program.clip_factor(0.1 * key, [stats["g"][0]])})
            program.forward_pullback(inputs)[2]([None])
            program.optimizer_step({"g": 0.5 * key})

    epoch(1, 4)
    first = len(traces)
    assert first
    for key, count in ((2, 3), (3, 1), (4, 2)):
        epoch(key, count)
    program.close()
    assert len(traces) == first


def test_more_steps_than_fit_in_one_loop(backend: TensorFlowBackend, segment_of: Callable[..., Segment]) -> None:
    count = MAX_STEPS_PER_CALL + 3
    result = []
    for calls in ([count], [200, count - 200]):
        model = mlp(backend)
        program = backend.build(segment_of(model, optimizer=aa.Optimizer("adam", lr=1e-3)))
        columns = [backend.from_host(array, CPU) for array in arrays(count)]
        order, start, parts = backend.from_host(np.arange(count), CPU), 0, []
        program.compile(columns, [order, order], 1)
        for size in calls:
            parts.append(np.asarray(program.train_steps(columns, [order, order], start, size, 1))[:size])
            start += size
        program.close()
        result.append(np.concatenate(parts))
    assert result[0].shape == (count, 1)
    np.testing.assert_allclose(result[0], result[1], rtol=1e-5, atol=1e-7)  # losses of single rows come near zero


# -- several devices -------------------------------------------------------------------------------------------------


def spread(backend: TensorFlowBackend, devices: tuple[Device, Device, Device], **changes: Any) -> Segment:
    """x -> a (a Keras model) -> b (an MLP), with the loss on a third device."""
    first, second, third = devices
    a = keras.Sequential([layers.Dense(4, "tanh", dtype="float64"), layers.BatchNormalization(dtype="float64")])
    b = SequentialMLP((2,), 2, 5, "tanh", dtype="float64")
    backend.infer(a, [TensorSpec((3,), "float64")], 1)
    backend.infer(b, [TensorSpec((4,), "float64")], 2)
    given: dict[str, Any] = {
        "label": "s",
        "operations": (
            Operation("a", backend.place(a, first), ("x",), ("a",), first),
            Operation("b", backend.place(b, second), ("a",), ("b",), second),
        ),
        "inputs": {"x": (TensorSpec((3,), "float64"), first), "y": (TensorSpec((2,), "float64"), third)},
        "outputs": ("a", "b"),
        "losses": (LossTerm("l", "b", aa.Loss("mse"), ("b", "y"), third),),
        "groups": (ParameterGroup("g", aa.Optimizer("adam", lr=0.05, clip_norm=0.2), ("a", "b")),),
    }
    return Segment(**{**given, **changes})


def trained(backend: TensorFlowBackend, segment: Segment) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    draw = np.random.default_rng(0)
    columns, orders = [], []
    for name, (spec, device) in segment.inputs.items():
        columns.append(backend.from_host(draw.standard_normal((24, *spec.shape)), device))
        orders.append(backend.from_host(np.arange(24)[::-1].copy(), device))
        assert name
    program = backend.build(segment)
    table = np.asarray(program.train_steps(columns, orders, 0, 6, 4))[:6]
    inputs = [backend.gather_rows(column, 0, 8) for column in columns]
    for _ in range(2):  # gradients of two batches add up, and cotangents come from outside
        outputs, _, pull = program.forward_pullback(inputs)
        back = pull([backend.from_dlpack(np.ones((8, 4)), segment.operations[0].device), None])
        assert [backend.device_of(op) for op in outputs] == [op.device for op in segment.operations]
        assert [backend.device_of(tensor) for tensor in back] == [segment.inputs[n][1] for n in segment.needs_pullback]
    square, finite = program.grad_stats()["g"]
    program.optimizer_step({"g": program.clip_factor(0.1, [square])})
    assert bool(finite)
    for node, state in program.optimizer_states().items():
        place = next(op.device for op in segment.operations if op.label == node)
        for slots in state.slots.values():
            assert {backend.device_of(tensor) for tensor in slots.values()} == {place}
    program.close()
    state = {}
    for op in segment.operations:
        assert backend.device_of(op.model) == op.device
        state.update({f"{op.label}.{name}": value for name, value in backend.state(op.model).items()})
    return table, state


@pytest.mark.parametrize(
    "devices", [(SECOND, SECOND, SECOND), (CPU, SECOND, SECOND), (SECOND, CPU, THIRD), (THIRD, SECOND, THIRD)]
)
@pytest.mark.parametrize("needs", [(), ("x",)], ids=["from data", "from others"])
def test_a_segment_on_several_devices_has_the_results_of_one(
    backend: TensorFlowBackend, devices: tuple[Device, Device, Device], needs: tuple[str, ...]
) -> None:
    table, state = trained(backend, spread(backend, (CPU, CPU, CPU), needs_pullback=needs))
    others, other = trained(backend, spread(backend, devices, needs_pullback=needs))
    np.testing.assert_allclose(others, table, rtol=1e-9)
    for name, value in state.items():
        np.testing.assert_allclose(other[name], value, rtol=1e-7, atol=1e-10, err_msg=name)


def test_each_model_is_computed_on_its_own_device_forward_and_back(backend: TensorFlowBackend) -> None:
    """Read from the traced graphs: operations of `b`'s forward and backward pass are on `b`'s device."""
    seen: dict[str, set[str]] = {"forward": set(), "back": set()}

    @tf.custom_gradient
    def watched(x: Any) -> Any:
        seen["forward"].add(x.device[-5:])

        def back(dy: Any) -> Any:
            seen["back"].add((dy * 1.0).device[-5:])
            return dy

        return tf.identity(x), back

    class Watched(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = tf.Variable(np.ones((4, 2)))

        def __call__(self, x: Any) -> Any:
            return watched(x @ self.w)

    with backend.scope(THIRD):
        model = Watched()
    segment = spread(backend, (SECOND, THIRD, CPU))
    first, second = segment.operations
    program = backend.build(
        spread(backend, (SECOND, THIRD, CPU), operations=(first, Operation("b", model, ("a",), ("b",), second.device)))
    )
    inputs = [backend.from_host(np.ones((4, n)), d) for n, d in ((3, SECOND), (2, CPU))]
    program.forward_pullback(inputs)[2]([None, None])
    program.optimizer_step()
    program.close()
    assert seen == {"forward": {"CPU:2"}, "back": {"CPU:2"}}
    assert backend.device_of(model) == THIRD


# -- errors ----------------------------------------------------------------------------------------------------------


def test_a_missing_device_raises_before_anything_is_computed(backend: TensorFlowBackend) -> None:
    graph = aa.ModelGraph([aa.ModelNode("net", SequentialMLP(), data().reference())], "adam")
    with pytest.raises(AnyaccelError, match=r"gpu:0"):
        aa.Experiment("e", graph, progress="none").run_phase(phase(accelerator="gpu:0", strict=True))
    assert settings() == USUAL


def test_running_out_of_memory_is_a_named_error() -> None:
    message = r"not enough memory for a batch: OOM when allocating\. Hint: use smaller"
    with pytest.raises(OutOfMemoryError, match=message), translate_errors("a batch"):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating\n\t [[{{node x}}]]")


def test_a_device_that_tensorflow_lacks_is_a_named_error() -> None:
    message = r"a batch: TensorFlow has no such device. Available: .*CPU:2"
    tf.config.set_soft_device_placement(False)
    try:
        with pytest.raises(DeviceUnavailableError, match=message), translate_errors("a batch"), tf.device("/GPU:3"):
            tf.constant([1.0])
    finally:
        tf.config.set_soft_device_placement(True)


def test_inputs_on_different_devices_are_a_named_error() -> None:
    with tf.device("/CPU:1"):
        there = tf.constant([1.0])
    message = (
        r"a batch computes with tensors on several devices: AddV2 computes on cpu:2, but its input #0 is on cpu:1; "
        r"at .*test_program.py:\d+, with there on cpu:1.*anyaccel.move"
    )
    tf.config.experimental.set_device_policy("explicit")
    try:
        with pytest.raises(DeviceMismatchError, match=message), translate_errors("a batch"), tf.device("/CPU:2"):
            there + there
    finally:
        tf.config.experimental.set_device_policy("silent")


def test_other_errors_pass() -> None:
    with pytest.raises(tf.errors.NotFoundError, match="other"), translate_errors("a batch"):
        raise tf.errors.NotFoundError(None, None, "other")


def test_first_lines_are_without_frames() -> None:
    words = "Exception encountered when calling Dense.call().\n\n\x1b[1mSizes differ\x1b[0m [Op:MatMul] name: \nmore"
    assert first_line(ValueError(words)) == "Sizes differ"
    assert first_line(ValueError("Input must be 2 {{node a/b}}and 3")) == "Input must be 2 and 3"


def test_many_programs_do_not_make_tensorflow_warn_of_tracing(
    backend: TensorFlowBackend, segment_of: Callable[..., Segment], caplog: pytest.LogCaptureFixture
) -> None:
    columns = [backend.from_host(array, CPU) for array in arrays()]
    order = backend.from_host(np.arange(24), CPU)
    for width in range(1, 9):
        program = backend.build(segment_of(mlp(backend, hidden_dim=width)))
        program.train_steps(columns, [order, order], 0, 3, 8)
        program.forward_pullback([backend.gather_rows(column, 0, 8, order) for column in columns])[2]([None])
        program.grad_stats()
        program.optimizer_step()
        program.close()
    assert [record.getMessage() for record in caplog.records if "retracing" in record.getMessage()] == []
