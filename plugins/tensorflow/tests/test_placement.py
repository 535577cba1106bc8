"""Putting tensors, variables, models and optimizers on devices: where they land, and what is refused."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import anyaccel as aa
from anyaccel.device import Device
from anyaccel.errors import DeviceUnavailableError, MoveError
from anyaccel_tensorflow import SequentialMLP, transfers
from anyaccel_tensorflow.backend import TensorFlowBackend

CPU, SECOND, GPU = Device("cpu", 0), Device("cpu", 1), Device("gpu", 0)
layers = keras.layers


@pytest.fixture(autouse=True)
def settings_stay() -> Iterator[None]:
    """After each test, soft placement and the device policy have TensorFlow's defaults."""
    yield
    assert tf.config.get_soft_device_placement()
    assert tf.config.experimental.get_device_policy() == "silent"


class Net(tf.Module):
    """Variables in an attribute, a list, a dict in a tuple, and a module inside."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = tf.Variable(tf.ones(3), name="scale")
        self.many = [tf.Variable(tf.ones(3)), tf.Variable(tf.ones(3), trainable=False)]
        self.deep = ({"shift": tf.Variable(tf.zeros(3))}, 7)
        self.again = self.scale
        self.inside = Inside()
        self.layer = layers.Dense(3)

    def __call__(self, x: Any) -> Any:
        x = self.layer(x) * self.scale * self.many[0] + self.many[1] + self.deep[0]["shift"] + self.again
        return x + self.inside.value


class Inside(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.value = tf.Variable(0.5)


# -- where things are ------------------------------------------------------------------------------------------------


def test_device_of_whatever_has_one(backend: TensorFlowBackend) -> None:
    with tf.device("/CPU:1"):
        tensor, variable = tf.constant([1.0]), tf.Variable([1.0])
        model = keras.Sequential([layers.Dense(2)])
        model.build((None, 3))
        sparse = tf.sparse.from_dense([[0.0, 1.0]])
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    for obj in (tensor, variable, model, model.layers[0].kernel, sparse, {"a": [tensor]}, (tensor,)):
        assert backend.device_of(obj) == SECOND, obj
    assert backend.device_of(optimizer) is not None


@pytest.mark.parametrize("empty", [[], {}, (), 3, None, "text"])
def test_an_object_without_tensors_has_no_device(backend: TensorFlowBackend, empty: Any) -> None:
    assert backend.device_of(empty) is None


def test_an_unbuilt_model_is_nowhere(backend: TensorFlowBackend) -> None:
    assert backend.device_of(keras.Sequential([layers.Dense(2)])) is None
    assert backend.device_of(SequentialMLP()) is None
    model = keras.Sequential([layers.Dense(2)])
    assert backend.place(model, SECOND) is model


# -- tensors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bool", "int32", "int64", "float16", "bfloat16", "float64", "complex64", "uint8"])
def test_a_moved_tensor_keeps_its_dtype(backend: TensorFlowBackend, dtype: str) -> None:
    tensor = tf.cast(tf.constant([0, 1, 3]), dtype)
    moved = backend.move(tensor, SECOND)
    assert (moved.dtype, backend.device_of(moved)) == (tensor.dtype, SECOND)
    np.testing.assert_array_equal(np.asarray(moved), np.asarray(tensor))
    assert backend.move(moved, SECOND) is moved


def test_a_missing_device_raises_instead_of_using_the_cpu(backend: TensorFlowBackend) -> None:
    """TensorFlow itself would silently put all of these on the CPU."""
    for act in (
        lambda: backend.move(tf.constant([1.0]), GPU),
        lambda: backend.place({"a": tf.constant([1.0])}, GPU),
        lambda: backend.place(Inside(), GPU),
        lambda: backend.from_host(np.ones(3), GPU),
        lambda: backend.move(tf.constant([1.0]), Device("cpu", 9)),
    ):
        with pytest.raises(DeviceUnavailableError, match=r"(gpu:0|GPU:0|cpu:9|CPU:9)"):
            act()


def test_the_error_names_the_available_devices(backend: TensorFlowBackend) -> None:
    with pytest.raises(DeviceUnavailableError) as caught:
        backend.move(tf.constant([1.0]), GPU)
    assert "float32 tensor of shape [1] on /GPU:0" in str(caught.value) or "instead of /GPU:0" in str(caught.value)
    assert "CPU:2" in str(caught.value)
    with pytest.raises(
        DeviceUnavailableError, match=r"TensorFlow has no gpu:0 \(.*\)\. Available: cpu:0, cpu:1, cpu:2"
    ):
        backend.place(Inside(), GPU)


def test_a_tensor_that_landed_elsewhere_raises(backend: TensorFlowBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers.tf, "identity", lambda tensor: tensor)
    with pytest.raises(DeviceUnavailableError, match=r"put a tensor on .*CPU:0 instead of /CPU:1"):
        backend.move(tf.constant([1.0]), SECOND)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tf.constant(["text"]), "a tensor of dtype string cannot be moved"),
        (lambda: tf.sparse.from_dense([[0.0, 1.0]]), "cannot place a .*SparseTensor"),
        (lambda: tf.ragged.constant([[1.0], []]), "cannot place a .*RaggedTensor"),
    ],
    ids=["text", "sparse", "ragged"],
)
def test_tensors_that_no_device_holds_are_refused(
    backend: TensorFlowBackend, make: Callable[[], Any], message: str
) -> None:
    with tf.device("/CPU:0"):
        obj = make()
    with pytest.raises(MoveError, match=message):
        backend.move(obj, SECOND)


def test_trees_keep_their_structure(backend: TensorFlowBackend) -> None:
    pair = namedtuple("pair", "a b")
    with tf.device("/CPU:0"):
        tree = {"x": [tf.zeros(2), pair(tf.ones(1), "text")], "n": 3}
    placed = backend.place(tree, SECOND)
    assert isinstance(placed["x"][1], pair) and placed["x"][1].b == "text" and placed["n"] == 3
    assert {backend.device_of(tensor) for tensor in (placed["x"][0], placed["x"][1].a)} == {SECOND}
    assert backend.place(placed, SECOND) is placed


# -- models ----------------------------------------------------------------------------------------------------------


def test_a_single_variable_is_placed_as_a_new_one(backend: TensorFlowBackend) -> None:
    with tf.device("/CPU:0"):
        variable = tf.Variable([1.0, 2.0], trainable=False, name="mine")
    placed = backend.place(variable, SECOND)
    assert backend.device_of(placed) == SECOND and placed.name == "mine:0" and not placed.trainable
    assert backend.place(placed, SECOND) is placed and backend.move(placed, SECOND) is placed
    np.testing.assert_array_equal(placed.numpy(), [1.0, 2.0])


def test_every_variable_of_a_module_is_moved_and_shared_ones_stay_shared(backend: TensorFlowBackend) -> None:
    with tf.device("/CPU:0"):
        model = Net()
        expected = model(tf.ones([2, 3])).numpy()
    names = list(backend.parameters(model))
    assert backend.place(model, SECOND) is model
    result = [variable for _, variable in _variables(model)]
    assert {Device.parse(f"cpu:{variable.device[-1]}") for variable in result} == {SECOND}
    assert model.again is model.scale
    assert list(backend.parameters(model)) == names
    with tf.device("/CPU:1"):
        np.testing.assert_array_equal(model(tf.ones([2, 3])).numpy(), expected)


def test_a_moved_module_can_still_be_saved(backend: TensorFlowBackend, tmp_path: Any) -> None:
    """TensorFlow's own lists refuse checkpoints after an element was replaced."""
    with tf.device("/CPU:0"):
        model, other = Net(), Net()
        model(tf.ones([2, 3]))
        other(tf.ones([2, 3]))
    backend.place(model, SECOND)
    model.many[0].assign([5.0, 6.0, 7.0])
    path = tf.train.Checkpoint(model=model).save(str(tmp_path / "ckpt"))
    tf.train.Checkpoint(model=other).restore(path).assert_consumed()
    np.testing.assert_array_equal(other.many[0].numpy(), [5.0, 6.0, 7.0])


def _variables(model: Any) -> Any:
    from anyaccel_tensorflow import variables

    return [
        (path, variables.tf_variable(v))
        for path, v in variables.keras().walk(model)
        if variables.keras().is_variable(v)
    ]


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras 3.15 saving, with NumPy 2
def test_a_keras_model_is_moved_with_all_that_knows_its_variables(backend: TensorFlowBackend, tmp_path: Any) -> None:
    """The model, its layers, its optimizer, compiled functions and saving use the moved variables."""
    with tf.device("/CPU:0"):
        model = keras.Sequential([keras.Input((3,)), layers.Dense(4), layers.BatchNormalization(), layers.Dense(1)])
        model.compile("adam", "mse")
        x, y = np.ones((4, 3), "float32"), np.zeros((4, 1), "float32")
        model.fit(x, y, verbose=0)
        model.predict(x, verbose=0)
    kernel, weights = model.layers[0].kernel, model.get_weights()
    assert backend.place(model, SECOND) is model and model.layers[0].kernel is kernel
    assert {variable.value.device[-5:] for variable in [*model.variables, *model.optimizer.variables]} == {"CPU:1"}
    for before, after in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)
    kernel.assign(np.zeros((3, 4), "float32"))
    np.testing.assert_array_equal(model.get_weights()[0], 0)
    np.testing.assert_allclose(model.predict(x, verbose=0), model(x).numpy(), rtol=1e-6)
    before = model.get_weights()[-1]
    model.fit(x, y + 1, verbose=0)
    assert (model.get_weights()[-1] != before).any()
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.get_weights()[-1], model.get_weights()[-1])


def test_an_optimizer_of_keras_is_moved_alone_too(backend: TensorFlowBackend) -> None:
    with tf.device("/CPU:0"):
        optimizer = keras.optimizers.Adam()
        optimizer.build([keras.Variable([1.0])])
    assert backend.place(optimizer, SECOND) is optimizer
    assert {variable.value.device[-5:] for variable in optimizer.variables} == {"CPU:1"}


def test_an_unknown_kind_of_keras_variable_raises(backend: TensorFlowBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """The private attribute `_value` is the only one used, and it is checked."""
    with tf.device("/CPU:0"):
        variable = keras.Variable([1.0])
    held = variable.value
    monkeypatch.setattr(type(variable), "value", property(lambda self: held))
    with pytest.raises(
        MoveError, match=r"cannot be moved: this version of Keras stores its values in another.*scope\(device, .tensorf"
    ):
        backend.place(variable, SECOND)


class Traced(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = tf.Variable([1.0, 2.0])
        self.extra = tf.function(lambda x: x * self.w)

    @tf.function
    def __call__(self, x: Any) -> Any:
        return x * self.w


@pytest.mark.parametrize("way", ["method", "attribute"])
def test_a_traced_function_that_would_use_the_old_variables_is_refused(backend: TensorFlowBackend, way: str) -> None:
    with tf.device("/CPU:0"):
        model = Traced()
    assert backend.place(model, SECOND) is model  # not traced yet
    with tf.device("/CPU:1"):
        model(tf.ones(2)) if way == "method" else model.extra(tf.ones(2))
    name = "__call__" if way == "method" else "extra"
    with pytest.raises(MoveError, match=rf"Traced cannot be moved: its tf.function '{name}' was traced.*before it is"):
        backend.place(model, CPU)
    assert backend.device_of(model) == SECOND and backend.place(model, SECOND) is model


def test_a_keras_layer_with_a_traced_function_is_refused_as_well(backend: TensorFlowBackend) -> None:
    class Layer(layers.Layer):
        def build(self, shape: Any) -> None:
            self.w = self.add_weight(shape=(3,))

        @tf.function
        def call(self, x: Any) -> Any:
            return x * self.w

    with tf.device("/CPU:0"):
        layer = Layer()
        layer(tf.ones([2, 3]))
    with pytest.raises(MoveError, match=r"its tf.function 'call' was traced"):
        backend.place(layer, SECOND)


def test_a_random_generator_cannot_be_moved(backend: TensorFlowBackend) -> None:
    class Noisy(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.draw = tf.Variable([1.0]), tf.random.Generator.from_seed(1)

    with tf.device("/CPU:0"):
        model = Noisy()
    with pytest.raises(MoveError, match=r"has a tf.random.Generator, which cannot be moved.*inside anyaccel.scope"):
        backend.place(model, SECOND)


def test_nothing_is_replaced_where_a_variable_finds_no_room(
    backend: TensorFlowBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tf.device("/CPU:0"):
        model = Net()
        model(tf.ones([2, 3]))
    made, real = [], tf.Variable

    def full(*args: Any, **kwargs: Any) -> Any:
        if len(made) == 2:
            raise tf.errors.ResourceExhaustedError(None, None, "failed to allocate memory")
        made.append(real(*args, **kwargs))
        return made[-1]

    full_variable = type("Full", (), {"__new__": staticmethod(lambda cls, *a, **k: full(*a, **k))})
    monkeypatch.setattr(transfers, "tf", _With(transfers.tf, Variable=full_variable))
    with pytest.raises(
        aa.errors.OutOfMemoryError, match=r"not enough memory for variable .* on /CPU:1.*failed to allocate"
    ):
        transfers.relocate(model, "/CPU:1")
    assert {variable.device[-5:] for _, variable in _variables(model)} == {"CPU:0"}


class _With:
    """A module with some names replaced."""

    def __init__(self, module: Any, **names: Any) -> None:
        self._module, self._names = module, names

    def __getattr__(self, name: str) -> Any:
        return self._names[name] if name in self._names else getattr(self._module, name)


def test_a_model_that_is_on_two_devices_is_brought_together(backend: TensorFlowBackend) -> None:
    with tf.device("/CPU:1"):
        model = keras.Sequential([layers.Dense(2)])
        model.build((None, 3))
    with tf.device("/CPU:2"):
        model.add(layers.Dense(2))
    backend.place(model, SECOND)
    assert {variable.value.device[-5:] for variable in model.variables} == {"CPU:1"}


# -- scope -----------------------------------------------------------------------------------------------------------


def test_a_scope_of_an_absent_device_is_an_error_at_once(backend: TensorFlowBackend) -> None:
    with pytest.raises(DeviceUnavailableError, match=r"TensorFlow has no gpu:0"), backend.scope(GPU):
        pass


def test_nothing_falls_back_inside_a_scope(backend: TensorFlowBackend) -> None:
    with backend.scope(SECOND):
        assert not tf.config.get_soft_device_placement()
        with pytest.raises(tf.errors.InvalidArgumentError, match="GPU:0"), tf.device("/GPU:0"):
            tf.constant([1.0])
        with backend.scope(CPU):
            assert not tf.config.get_soft_device_placement()
        assert not tf.config.get_soft_device_placement()


def test_settings_made_inside_a_scope_stay(backend: TensorFlowBackend) -> None:
    tf.config.set_soft_device_placement(False)
    with backend.scope(SECOND):
        pass
    assert not tf.config.get_soft_device_placement()
    tf.config.set_soft_device_placement(True)
    with backend.scope(SECOND):
        tf.config.set_soft_device_placement(True)
    assert tf.config.get_soft_device_placement()


def test_keras_models_are_built_where_the_scope_says(backend: TensorFlowBackend) -> None:
    with backend.scope(SECOND):
        model = keras.Sequential([layers.Dense(2), layers.Dropout(0.5)])
        model.build((None, 3))
    assert {variable.value.device[-5:] for variable in model.variables} == {"CPU:1"}


# -- ownership -------------------------------------------------------------------------------------------------------


def test_it_owns_objects_of_tensorflow_and_keras(backend: TensorFlowBackend) -> None:
    class Mine(keras.Model):
        pass

    for obj in (tf.constant(1.0), tf.Variable(1.0), Net(), Mine(), SequentialMLP(), keras.Variable(1.0)):
        assert backend.owns(obj), obj


def test_keras_on_another_framework_is_not_its_own(backend: TensorFlowBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras.config, "backend", lambda: "torch")
    assert not backend.owns(layers.Dense(2))
    assert not backend.owns(keras.losses.MeanSquaredError())
    assert backend.owns(tf.constant(1.0)) and backend.owns(Inside())


def test_the_keras_of_before_is_not_its_own(backend: TensorFlowBackend) -> None:
    """A layer of Keras 2 is a tf.Module, and is called in another way."""
    old = type("Layer", (tf.Module,), {"__module__": "tf_keras.src.engine.base_layer"})
    assert not backend.owns(old())
