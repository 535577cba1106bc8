"""TensorFlowOps: what arrays hold, and gradients through values that are not floating."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import anyaccel as aa
from anyaccel.device import Device
from anyaccel.errors import GraphError
from anyaccel.segment import Operation, Segment, TensorSpec
from anyaccel_tensorflow import SequentialMLP, numpy_namespace
from anyaccel_tensorflow.ops import TensorFlowOps


@pytest.mark.parametrize(
    ("dtype", "kind", "itemsize"),
    [
        (tf.bfloat16, "floating", 2),
        (tf.float64, "floating", 8),
        (tf.complex64, "complex", 8),
        (tf.uint8, "integer", 1),
        (tf.int64, "integer", 8),
        (tf.bool, "boolean", 1),
    ],
)
def test_the_kind_of_a_tensor(dtype: Any, kind: str, itemsize: int) -> None:
    ops, tensor = TensorFlowOps.__new__(TensorFlowOps), tf.zeros(2, dtype)
    assert (ops.kind(tensor), ops.itemsize(tensor)) == (kind, itemsize)


class Rotate(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.real, self.imag = tf.Variable(tf.fill((4, 3), 0.3)), tf.Variable(tf.fill((4, 3), 0.1))

    def __call__(self, x: Any) -> Any:
        return tf.complex(x @ self.real, x @ self.imag)


class Magnitude(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = tf.Variable(tf.fill((3, 3), 0.5))

    def __call__(self, x: Any) -> Any:
        return tf.abs(x) @ self.scale


class Both(tf.Module):
    """The two in one model."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Rotate(), Magnitude()

    def __call__(self, x: Any) -> Any:
        return self.second(self.first(x))


@pytest.mark.parametrize("compile_steps", ["off", "steps"])
def test_gradients_flow_through_a_complex_value_between_nodes(compile_steps: str) -> None:
    rng = np.random.default_rng(0)
    columns = {"x": rng.normal(size=(16, 4)).astype("float32"), "y": rng.normal(size=(16, 3)).astype("float32")}
    data = aa.FeatureSet.from_dict("data", columns, ["x"], ["y"])

    def losses(*models: Any) -> Any:
        nodes = [aa.ModelNode("a", models[0], data.reference())]
        nodes += [aa.ModelNode("b", model, "a") for model in models[1:]]
        phase = aa.TrainPhase(
            "train",
            data=data,
            losses=[aa.AppliedLoss("mse", on=nodes[-1].label)],
            batch_size=8,
            epochs=4,
            compile=compile_steps,
        )
        experiment = aa.Experiment("e", aa.ModelGraph(nodes, aa.Optimizer("sgd", lr=0.1)), progress="none")
        return experiment.run_phase(phase).loss

    np.testing.assert_allclose(losses(Rotate(), Magnitude()), losses(Both()), rtol=1e-5)


class Turn(tf.Module):
    """A complex parameter beside a real one."""

    def __init__(self) -> None:
        super().__init__()
        self.phase, self.scale = tf.Variable(tf.ones(4, tf.complex64)), tf.Variable(tf.ones(4))

    def __call__(self, x: Any) -> Any:
        return tf.abs(self.phase) * self.scale * x


def test_a_complex_parameter_is_refused_and_not_left_as_it_is() -> None:
    columns = {"x": np.ones((8, 4), "float32"), "y": np.ones((8, 4), "float32")}
    data = aa.FeatureSet.from_dict("data", columns, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("a", Turn(), data.reference())], "sgd")
    experiment = aa.Experiment("e", graph, progress="none")
    phase = aa.TrainPhase("train", data="all", losses=[aa.AppliedLoss("mse", on="a")], batch_size=8)
    with pytest.raises(GraphError, match=r"the parameter 'phase' of node 'a' is complex \(<dtype: 'complex64'>\)"):
        experiment.run_phase(phase)
    assert experiment.run_phase(aa.EvalPhase("eval", data="all")).prediction("a").shape == (8, 4)


@pytest.mark.parametrize(
    "function",
    [
        *(partial(getattr(numpy_namespace, name), axis=0) for name in ("any", "all")),
        *(partial(getattr(numpy_namespace, name), axis=0) for name in ("max", "sum")),
        *(getattr(numpy_namespace, name) for name in ("concatenate", "stack")),
        numpy_namespace.zeros_like,
    ],
    ids=lambda function: getattr(function, "func", function).__name__,
)
def test_results_stay_on_the_device_of_their_arguments(function: Any) -> None:
    is_logical = getattr(function, "func", function).__name__ in ("any", "all")
    with tf.device("/CPU:1"):
        x = tf.zeros([2, 3], tf.bool if is_logical else tf.float32)
    given = [x, x] if function in (numpy_namespace.concatenate, numpy_namespace.stack) else x
    assert x.device.endswith("CPU:1") and function(given).device == x.device


def test_a_tensor_may_be_a_primal_and_a_constant() -> None:
    """The gradient of x * c by x is c, also where both are one tensor."""
    ops, x = TensorFlowOps.__new__(TensorFlowOps), tf.constant(3.0)
    value, _, pullback = ops.value_and_pullback(lambda primal, constant: (primal * constant, ()), x, x)
    assert (value.numpy(), pullback(tf.constant(1.0)).numpy()) == (9.0, 3.0)
    other = tf.constant(4.0)
    value, _, pullback = ops.value_and_pullback(lambda primal, constant: (primal * constant, ()), x, other)
    assert (value.numpy(), pullback(tf.constant(1.0)).numpy()) == (12.0, 4.0)


@pytest.mark.parametrize(("kind", "index", "is_eager_at_first"), [("cpu", 0, True), ("cpu", 1, False)])
def test_only_the_first_cpu_begins_without_a_compiler(kind: str, index: int, is_eager_at_first: bool) -> None:
    device = Device(kind, index)
    operation = Operation("n", SequentialMLP(), ("x",), ("n",), device)
    segment = Segment("s", (operation,), {"x": (TensorSpec((4,), "float32"), device)}, ("n",))
    ops = TensorFlowOps(segment, lambda device: f"/CPU:{device.index}")
    assert (ops.eager_seconds > 0) is is_eager_at_first


@pytest.mark.parametrize("compiled", [False, True])
def test_auxiliary_results_have_no_part_in_gradients(compiled: bool) -> None:
    """The slope of the auxiliary logarithm is infinite at 0; the gradient of the square is 2x."""
    ops = TensorFlowOps.__new__(TensorFlowOps)
    ops.home, ops.uses_several_devices = "/device:CPU:0", False

    def function(x: Any, rest: Any) -> tuple[Any, Any]:
        return x * x, {"log": tf.math.log(x), "count": tf.size(x)}

    eager = partial(ops.value_and_pullback, function)
    x = tf.constant([0.0, 4.0])
    values, others, pullback = (ops.compile_value_and_pullback(function) if compiled else eager)(x, ())
    np.testing.assert_array_equal(values, [0.0, 16.0])
    np.testing.assert_allclose(others["log"], [-np.inf, np.log(4.0)], rtol=1e-6)
    assert int(others["count"]) == 2
    np.testing.assert_array_equal(pullback(tf.ones(2)), [0.0, 8.0])


def test_a_compiled_part_trains_with_a_loss_whose_slope_is_vertical_somewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of |d|**1.5 is 0 at d = 0, and the derivative of that gradient is infinite."""
    import keras

    def trained(eager_seconds: float) -> list[float]:
        monkeypatch.setattr(TensorFlowOps, "eager_seconds", eager_seconds)
        x = np.random.default_rng(0).standard_normal((8, 3)).astype("float32")
        y = np.repeat(np.array([[0], [1]], "float32"), 4, axis=0)
        data = aa.FeatureSet.from_dict("data", {"x": x, "y": y}, ["x"], ["y"])
        head = keras.Sequential([keras.layers.Dense(1, kernel_initializer="zeros")])  # predicts the first targets
        nodes = [
            aa.ModelNode("encoder", aa.SequentialMLP((5,)), data.reference()),
            aa.ModelNode("head", head, "encoder"),
        ]
        graph = aa.ModelGraph(nodes, aa.Optimizer("sgd", lr=0.1), seed=1)
        loss = aa.AppliedLoss(lambda outputs, targets: tf.reduce_mean(tf.abs(outputs - targets) ** 1.5), "head")
        phase = aa.TrainPhase("train", data="all", losses=[loss], sampler=aa.SimpleSampler(4), epochs=3)
        return list(aa.Experiment("e", graph, progress="none").run_phase(phase).loss)

    compiled = trained(0.0)
    assert np.isfinite(compiled).all() and compiled[-1] < compiled[0]
    assert compiled == pytest.approx(trained(1e9), rel=1e-5)
