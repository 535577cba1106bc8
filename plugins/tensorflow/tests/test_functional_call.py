"""Plain tf.Modules: many ways to hold variables and to write a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import anyaccel as aa
from anyaccel.device import Device
from anyaccel.errors import GraphError, ShapeError
from anyaccel.segment import Segment, TensorSpec
from anyaccel_tensorflow.backend import TensorFlowBackend

CPU, SECOND = Device("cpu", 0), Device("cpu", 1)
X = TensorSpec((3,), "float32")


class Plain(tf.Module):
    """As in TensorFlow's guide."""

    def __init__(self) -> None:
        super().__init__()
        self.w = tf.Variable([[0.1], [0.2], [0.3]], name="w")
        self.b = tf.Variable([0.0], name="b")

    def __call__(self, x: Any) -> Any:
        return x @ self.w + self.b


class Compiled(Plain):
    __call__ = tf.function(Plain.__call__)


class CompiledAbove(Plain):
    @tf.function
    def __call__(self, x: Any) -> Any:
        return super().__call__(x) * 1.0


class CompiledInside(Plain):
    @tf.function
    def middle(self, x: Any) -> Any:
        return x @ self.w

    def __call__(self, x: Any) -> Any:
        return self.middle(x) + self.b


class WithKeras(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = keras.layers.Dense(1)
        self.scale = tf.Variable(1.5)

    def __call__(self, x: Any) -> Any:
        return self.layer(x) * self.scale


class Lazy(tf.Module):
    """Variables that the first call creates."""

    def __init__(self) -> None:
        super().__init__()
        self.w: Any = None

    def __call__(self, x: Any) -> Any:
        if self.w is None:
            self.w = tf.Variable(tf.random.normal([x.shape[-1], 1]))
        return x @ self.w


class Branching(Plain):
    """Control flow that depends on values: TensorFlow rewrites it where the call is a tf.function."""

    @tf.function
    def __call__(self, x: Any) -> Any:
        y = x @ self.w + self.b
        if tf.reduce_sum(y) > 1e6:
            y = y * 0.0
        return y


MODELS = [Plain, Compiled, CompiledAbove, CompiledInside, WithKeras, Lazy, Branching]


def arrays(rows: int = 24) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    x = draw.standard_normal((rows, 3)).astype("float32")
    return x, (x[:, :1] - x[:, 1:2]).astype("float32")


def by_hand(model: Any, batches: list[slice], device: str) -> list[float]:
    x, y = arrays()
    result, variables = [], [variable for _, variable in _named(model)]
    with tf.device(device):
        for which in batches:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(tf.constant(x[which])) - y[which]) ** 2)
            for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
                variable.assign_sub(0.1 * gradient)
            result.append(float(loss))
    return result


def _named(model: Any) -> list[tuple[str, Any]]:
    from anyaccel_tensorflow import variables

    return [(name, variables.tf_variable(v)) for name, v in variables.model_variables(model).parameters.items()]


@pytest.mark.parametrize("device", [CPU, SECOND], ids=str)
@pytest.mark.parametrize("make", MODELS)
def test_training_is_that_of_a_loop_by_hand(
    backend: TensorFlowBackend, segment_of: Callable[..., Segment], make: type, device: Device
) -> None:
    model, other = make(), make()
    for net in (model, other):
        backend.infer(net, [X], 5)
        backend.place(net, device)
    backend.load_state(other, backend.state(model))
    program = backend.build(segment_of(model, device=device))
    columns = [backend.from_host(array, device) for array in arrays()]
    order = backend.from_host(np.arange(24), device)
    result = program.train_steps(columns, [order, order], 0, 3, 8)
    assert backend.device_of(result) == device
    program.close()
    batches = [slice(i, i + 8) for i in range(0, 24, 8)]
    expected = by_hand(other, batches, backend.device_string(device))
    np.testing.assert_allclose(np.asarray(result)[:3, 0], expected, rtol=1e-5)
    for (name, mine), (_, his) in zip(_named(model), _named(other), strict=True):
        np.testing.assert_allclose(np.asarray(mine.read_value()), np.asarray(his.read_value()), rtol=1e-4, err_msg=name)


@pytest.mark.parametrize("make", [Compiled, CompiledInside, Branching])
def test_the_users_own_tf_functions_keep_no_trace_of_a_phase(
    backend: TensorFlowBackend, segment_of: Callable[..., Segment], make: type
) -> None:
    """So that they can be moved afterwards, and hold no tensor of another function."""
    model = make()
    backend.infer(model, [X], 5)
    program = backend.build(segment_of(model))
    inputs = [backend.from_host(array, CPU) for array in arrays()]
    program.forward(inputs)
    program.forward_pullback(inputs)[2]([None])
    program.optimizer_step()
    program.close()
    function = model.middle if make is CompiledInside else type(model).__call__.__get__(model, make)
    assert function.experimental_get_tracing_count() == 0
    backend.place(model, SECOND)
    expected = arrays()[0] @ model.w.numpy() + model.b.numpy()
    np.testing.assert_allclose(model(tf.constant(arrays()[0])).numpy(), expected, rtol=1e-5)
    assert not tf.config.functions_run_eagerly()


def test_a_function_traced_before_uses_the_trained_values(
    backend: TensorFlowBackend, segment_of: Callable[..., Segment]
) -> None:
    model = Compiled()
    x, y = arrays()
    before = model(tf.constant(x)).numpy()
    backend.infer(model, [X], 5)
    program = backend.build(segment_of(model))
    program.forward_pullback([backend.from_host(x, CPU), backend.from_host(y, CPU)])[2]([None])
    program.optimizer_step()
    program.close()
    after = model(tf.constant(x)).numpy()
    assert np.abs(after - before).max() > 1e-3
    np.testing.assert_allclose(after, x @ model.w.numpy() + model.b.numpy(), rtol=1e-5)


class Moving(tf.Module):
    """A running mean, a counter, and noise from its own generator."""

    def __init__(self, noise: float = 0.0) -> None:
        super().__init__()
        self.w = tf.Variable([[0.1], [0.2], [0.3]])
        self.mean = tf.Variable([0.0, 0.0, 0.0], trainable=False)
        self.seen = tf.Variable(0)
        self.noise, self.draw = noise, tf.random.Generator.from_seed(3)

    def __call__(self, x: Any, training: bool = False) -> Any:
        if training:
            self.mean.assign(0.5 * self.mean + 0.5 * tf.reduce_mean(x, 0))
            self.seen.assign_add(1)
            x = x + self.noise * self.draw.normal(tf.shape(x))
        return (x - self.mean) @ self.w


def test_variables_that_a_call_changes_are_buffers(
    backend: TensorFlowBackend, segment_of: Callable[..., Segment]
) -> None:
    model = Moving()
    backend.infer(model, [X], 5)
    assert list(backend.parameters(model)) == ["w"]
    assert sorted(backend.state(model)) == ["buffers/draw.state", "buffers/mean", "buffers/seen", "parameters/w"]
    assert model.seen.numpy() == 0  # inference did not change it
    program = backend.build(segment_of(model))
    inputs = [backend.from_host(array, CPU) for array in arrays()]
    program.forward(inputs)
    program.forward_pullback(inputs)
    program.zero_grad()
    program.forward_pullback(inputs)
    program.close()
    assert model.seen.numpy() == 2
    np.testing.assert_allclose(model.mean.numpy(), 0.75 * arrays()[0].mean(0), rtol=1e-5)


def test_random_numbers_of_a_generator_follow_the_seed(
    backend: TensorFlowBackend, segment_of: Callable[..., Segment]
) -> None:
    model = Moving(noise=1.0)
    backend.infer(model, [X], 5)
    state = model.draw.state.numpy()
    program = backend.build(segment_of(model))
    inputs = [backend.from_host(array, CPU) for array in arrays()]
    start = program.snapshot()

    def outputs(key: int) -> np.ndarray:
        program.restore(start)
        program.seed(key)
        return np.stack([np.asarray(program.forward_pullback(inputs)[0][0]) for _ in range(2)])

    first, same, other = outputs(1), outputs(1), outputs(2)
    program.close()
    np.testing.assert_array_equal(first, same)
    assert (first != other).any() and (first[0] != first[1]).any()
    np.testing.assert_array_equal(model.draw.state.numpy(), state)


def test_the_flag_of_other_libraries_is_set_too(backend: TensorFlowBackend, segment_of: Callable[..., Segment]) -> None:
    """Sonnet calls it `is_training`."""

    class Sonnet(Plain):
        def __call__(self, x: Any, is_training: bool) -> Any:
            return super().__call__(x) + (1.0 if is_training else 0.0)

    model = Sonnet()
    backend.infer(model, [X], 5)
    program = backend.build(segment_of(model))
    inputs = [backend.from_host(array, CPU) for array in arrays()]
    (plain,), _ = program.forward(inputs)
    (train,), _, _ = program.forward_pullback(inputs)
    program.close()
    np.testing.assert_allclose(np.asarray(train) - np.asarray(plain), 1.0, rtol=1e-6)


def test_weights_of_a_first_call_follow_the_seed_of_tensorflow_if_it_is_set(
    backend: TensorFlowBackend,
) -> None:
    result = []
    for seed in (1, 2):
        tf.random.set_seed(9)
        model = Lazy()
        backend.infer(model, [X], seed)
        result.append(model.w.numpy())
    tf.random.set_seed(None)
    np.testing.assert_array_equal(result[0], result[1])


def test_weights_that_the_first_call_makes_follow_the_seed(backend: TensorFlowBackend) -> None:
    tf.random.set_seed(None)  # one of other tests would count
    models = [Lazy(), Lazy(), Lazy()]
    for model, seed in zip(models, (1, 1, 2), strict=True):
        backend.infer(model, [X], seed)
    assert tf.compat.v1.random.get_seed(None) == (None, None)
    np.testing.assert_array_equal(models[0].w.numpy(), models[1].w.numpy())
    assert (models[0].w.numpy() != models[2].w.numpy()).any()


def test_the_call_that_makes_weights_leaves_the_others(backend: TensorFlowBackend) -> None:
    class Counting(Lazy):
        def __init__(self) -> None:
            super().__init__()
            self.n_calls = tf.Variable(0, trainable=False)

        def __call__(self, x: Any) -> Any:
            self.n_calls.assign_add(1)
            return super().__call__(x)

    model = Counting()
    backend.infer(model, [X], 0)
    assert model.w is not None and model.n_calls.numpy() == 0


def test_a_module_that_cannot_be_called_raises(backend: TensorFlowBackend) -> None:
    with pytest.raises(ShapeError, match=r"Module cannot be called.*define a __call__"):
        backend.infer(tf.Module(), [X], 0)


def test_an_error_in_a_models_code_is_reported_with_its_message(backend: TensorFlowBackend) -> None:
    class Wrong(Plain):
        def __call__(self, x: Any) -> Any:
            return x.no_such_thing

    with pytest.raises(
        GraphError, match=r"Wrong raised AttributeError in __call__, .*no_such_thing.*fix the"
    ) as caught:
        backend.infer(Wrong(), [X], 0)
    assert not isinstance(caught.value, ShapeError)


def test_two_modules_that_share_a_variable_are_refused(backend: TensorFlowBackend) -> None:
    first, second = Plain(), Plain()
    second.w = first.w
    draw = np.random.default_rng(0)
    x = draw.standard_normal((8, 3)).astype("float32")
    source = aa.FeatureSet.from_dict("data", {"x": x, "y": x[:, :1]}, ["x"], ["y"])
    nodes = [aa.ModelNode("one", first, source.reference()), aa.ModelNode("two", second, source.reference())]
    graph = aa.ModelGraph(nodes, aa.Optimizer("sgd", lr=0.1))
    losses = [aa.AppliedLoss("mse", on="one"), aa.AppliedLoss("mse", on="two")]
    phase = aa.TrainPhase("train", data="all", losses=losses, sampler=aa.SimpleSampler(4))
    with pytest.raises(aa.errors.GraphError, match=r"different models that share the parameter 'w'"):
        aa.Experiment("e", graph, progress="none").run_phase(phase)
    assert tf.config.get_soft_device_placement()
