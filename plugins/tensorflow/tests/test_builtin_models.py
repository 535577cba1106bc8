"""SequentialMLP and SequentialCNN: the same numbers as in every framework."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import anyaccel as aa
from anyaccel import numpy_backend
from anyaccel.device import Device
from anyaccel.errors import ShapeError, SpecError, StateError
from anyaccel.registry import registry
from anyaccel.segment import LossTerm, Operation, ParameterGroup, Segment, TensorSpec
from anyaccel_tensorflow import SequentialCNN, SequentialMLP
from anyaccel_tensorflow.backend import TensorFlowBackend

CPU = Device("cpu")
IMAGE = TensorSpec((2, 9, 7), "float64")


def segment(model: Any, x: TensorSpec, width: int, optimizer: aa.Optimizer) -> Segment:
    return Segment(
        "s",
        (Operation("n", model, ("x",), ("n",), CPU),),
        {"x": (x, CPU), "y": (TensorSpec((width,), x.dtype), CPU)},
        ("n",),
        (LossTerm("l", "n", aa.Loss("mse"), ("n", "y"), CPU),),
        (ParameterGroup("g", optimizer, ("n",)),),
    )


def losses(backend: Any, model: Any, x: TensorSpec, width: int, optimizer: aa.Optimizer, batch: int = 8) -> np.ndarray:
    """Mean losses of 30 steps over shuffled rows."""
    draw = np.random.default_rng(0)
    inputs = draw.standard_normal((64, *x.shape)).astype(x.dtype)
    targets = draw.standard_normal((64, width)).astype(x.dtype)
    order = backend.from_host(draw.permutation(64), CPU)
    backend.infer(model, [x], 11)
    program = backend.build(segment(model, x, width, optimizer))
    program.seed(1)
    columns = [backend.from_host(inputs, CPU), backend.from_host(targets, CPU)]
    result = [np.asarray(program.train_steps(columns, [order, order], 0, 6, batch))[:6] for _ in range(5)]
    program.close()
    return np.concatenate(result)


MODELS = {
    "mlp": (lambda home: home.SequentialMLP((3,), 3, 7, "tanh", dtype="float64"), TensorSpec((5,), "float64")),
    "mlp of images": (lambda home: home.SequentialMLP((3,), 2, 7, "sigmoid", dtype="float64"), IMAGE),
    "cnn": (lambda home: home.SequentialCNN((3,), (4, 5), 3, 2, "relu", dtype="float64"), IMAGE),
    "cnn, pooled unevenly": (lambda home: home.SequentialCNN((3,), (4,), 5, 3, "relu", dtype="float64"), IMAGE),
    "cnn, not pooled": (lambda home: home.SequentialCNN((3,), (4,), 1, 1, "identity", dtype="float64"), IMAGE),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_training_is_that_of_the_reference(backend: TensorFlowBackend, name: str, optimizer: str) -> None:
    import anyaccel_tensorflow

    make, spec = MODELS[name]
    own_optimizer = aa.Optimizer(optimizer, lr=0.02, clip_norm=0.5)
    numpy: Any = registry().computing("numpy", "cpu")
    mine, theirs = make(anyaccel_tensorflow), make(numpy_backend)
    result = losses(backend, mine, spec, 3, own_optimizer)
    np.testing.assert_allclose(result, losses(numpy, theirs, spec, 3, own_optimizer), rtol=1e-9)
    expected = numpy.state(theirs)
    assert list(backend.state(mine)) == list(expected)
    for key, value in backend.state(mine).items():
        np.testing.assert_allclose(value, expected[key], rtol=1e-7, atol=1e-10, err_msg=key)


def test_float32_agrees_with_the_reference_to_its_digits(backend: TensorFlowBackend) -> None:
    spec, adam = TensorSpec((50,), "float32"), aa.Optimizer("adam", lr=1e-3)
    numpy: Any = registry().computing("numpy", "cpu")
    result = losses(backend, SequentialMLP((1,), 3, 16, "tanh"), spec, 1, adam)
    expected = losses(numpy, numpy_backend.SequentialMLP((1,), 3, 16, "tanh"), spec, 1, adam)
    np.testing.assert_allclose(result, expected, rtol=2e-6)


def test_variables_are_reached_by_the_names_of_the_spec(backend: TensorFlowBackend) -> None:
    mlp, cnn = SequentialMLP((2,), 2, 4), SequentialCNN((2,), (3, 4))
    backend.infer(mlp, [TensorSpec((5,), "float32")], 0)
    backend.infer(cnn, [TensorSpec((1, 8, 8), "float32")], 0)
    assert mlp.layers[0].weight.shape == (4, 5) and mlp.layers[1].bias.shape == (2,)
    assert cnn.convs[1].weight.shape == (4, 3, 3, 3) and cnn.head.weight.shape == (2, 16)
    assert list(backend.parameters(mlp)) == ["layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias"]
    names = [f"{part}.{kind}" for part in ("convs.0", "convs.1", "head") for kind in ("weight", "bias")]
    assert sorted(backend.parameters(cnn)) == sorted(names)
    assert {variable.ref() for variable in mlp.trainable_variables} == {
        variable.ref() for layer in mlp.layers for variable in (layer.weight, layer.bias)
    }


@pytest.mark.parametrize("make", [SequentialMLP, SequentialCNN])
def test_it_can_be_called_without_a_graph(make: Any) -> None:
    """The first batch builds it with seed 0."""
    first, second = make(dropout=0.5), make(dropout=0.5)
    x = tf.ones([4, 1, 8, 8])
    np.testing.assert_array_equal(first(x), second(x))
    assert first.is_built and (first(x, training=True).numpy() != first(x, training=True).numpy()).any()
    assert make(**first.get_config()).get_config() == first.get_config()


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 1, 3)])
def test_the_output_has_the_shape_of_the_spec(shape: tuple[int, ...]) -> None:
    x = tf.ones([4, 5])
    flat = SequentialMLP((6,) if len(shape) > 1 else shape)(x)
    assert SequentialMLP(shape)(x).shape == (4, *shape)
    np.testing.assert_array_equal(SequentialMLP(shape)(x), tf.reshape(flat, [4, *shape]))


def test_dropout_keeps_the_mean() -> None:
    model = SequentialMLP((1,), 2, 4000, "identity", dropout=0.25)
    x = tf.ones([1, 3])
    plain, dropped = (float(model(x, training=flag)[0, 0]) for flag in (False, True))
    hidden = 0.9 if abs(plain) < 1 else 0.1
    assert abs(plain - dropped) < hidden


def test_other_shapes_are_refused() -> None:
    model = SequentialMLP()
    model.build([(5,)], seed=0)
    model.build([(5,)], seed=1)
    with pytest.raises(ShapeError, match=r"cannot take inputs of shapes \[6\]; it is built for \[5\]"):
        model.build([(6,)], seed=0)
    with pytest.raises(ShapeError, match=r"one input \[channels, height, width\]"):
        SequentialCNN().build([(5,)], seed=0)
    with pytest.raises(SpecError, match="activation"):
        SequentialMLP(activation="swish")


def test_a_builtin_model_inside_a_module_is_built_from_the_seed(backend: TensorFlowBackend) -> None:
    class Two(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = SequentialMLP((4,), 1), SequentialMLP((4,), 1)

        def __call__(self, x: Any) -> Any:
            return self.a(x) + self.b(x)

    models = [Two(), Two(), Two()]
    assert backend.dtype_of(models[0]) == "float32"
    with pytest.raises(StateError, match="Two has no parameters yet"):
        backend.parameters(models[0])
    states = []
    for model, seed in zip(models, (1, 1, 2), strict=True):
        backend.infer(model, [TensorSpec((4,), "float32")], seed)
        states.append(backend.state(model)["parameters/a.layers.0.weight"])
    np.testing.assert_array_equal(states[0], states[1])
    assert (states[0] != states[2]).any()
    assert (states[0] != backend.state(models[0])["parameters/b.layers.0.weight"]).any()


def test_layouts(backend: TensorFlowBackend) -> None:
    assert backend.data_format(SequentialCNN()) == ("channels_first", "")
    assert backend.data_format(SequentialMLP()) == ("", "")


def test_weights_go_to_another_framework_and_back(backend: TensorFlowBackend) -> None:
    """The same spec has the same state in every framework."""
    numpy: Any = registry().computing("numpy", "cpu")
    mine, theirs = SequentialCNN((2,), (3,)), numpy_backend.SequentialCNN((2,), (3,))
    spec = [TensorSpec((1, 6, 6), "float32")]
    backend.infer(mine, spec, 1)
    numpy.infer(theirs, spec, 2)
    numpy.load_state(theirs, backend.state(mine))
    for name, value in numpy.state(theirs).items():
        np.testing.assert_array_equal(value, backend.state(mine)[name])


def test_live_state_has_the_values_and_loads_into_the_same_model(backend):
    model = SequentialMLP([2], hidden_dim=3)
    backend.infer(model, [TensorSpec((4,), "float32")], 1)
    live, copies = backend.live_state(model), backend.state(model)
    assert live.keys() == copies.keys()
    assert all(np.array_equal(live[name], copies[name]) for name in copies)
    changed = {name: value + 1 for name, value in copies.items()}
    first = next(iter(copies))
    backend.load_state(model, {**changed, first: live[first]})
    for name, value in backend.state(model).items():
        np.testing.assert_array_equal(value, copies[name] if name == first else changed[name])
        assert value.flags.writeable
