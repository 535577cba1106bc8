"""Keras models: built and unbuilt, trained in graphs, and still the user's models afterwards."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import anyaccel as aa
from anyaccel.device import Device
from anyaccel.errors import GraphError, PhaseError, ShapeError, StateError
from anyaccel.segment import LossTerm, Operation, ParameterGroup, Segment, TensorSpec
from anyaccel_tensorflow.backend import TensorFlowBackend

CPU, SECOND = Device("cpu", 0), Device("cpu", 1)
X = TensorSpec((6,), "float32")
ROWS = 48
layers = keras.layers


def data(rows: int = ROWS) -> aa.FeatureSet:
    draw = np.random.default_rng(0)
    x = draw.standard_normal((rows, 6)).astype("float32")
    return aa.FeatureSet.from_dict("data", {"x": x, "y": np.tanh(x[:, :3]) + 0.5}, ["x"], ["y"])


def sequential() -> Any:
    return keras.Sequential([layers.Dense(8, "tanh"), layers.Dense(3)])


def functional() -> Any:
    given = keras.Input((6,))
    x = layers.Dense(8, "tanh")(given)
    return keras.Model(given, layers.Dense(3)(layers.Concatenate()([x, given])))


class Subclassed(keras.Model):
    """Layers in attributes, a list and a dict, and a call without `training`."""

    def __init__(self) -> None:
        super().__init__()
        self.first = layers.Dense(8, "tanh")
        self.hidden = [layers.Dense(8, "tanh")]
        self.named = {"last": layers.Dense(3)}

    def call(self, x: Any) -> Any:
        return self.named["last"](self.hidden[0](self.first(x)))


MAKERS: list[Callable[[], Any]] = [sequential, functional, Subclassed]


def graph_of(model: Any, optimizer: Any = "sgd", source: aa.FeatureSet | None = None) -> aa.ModelGraph:
    node = aa.ModelNode("net", model, (source or data()).reference())
    return aa.ModelGraph([node], optimizer if not isinstance(optimizer, str) else aa.Optimizer(optimizer, lr=0.1))


def train(graph: aa.ModelGraph, epochs: int = 3, batch: int = 12, loss: Any = "mse", **settings: Any) -> Any:
    phase = aa.TrainPhase(
        "train",
        data="all",
        losses=[aa.AppliedLoss(loss, on="net")],
        sampler=aa.SimpleSampler(batch, shuffle=False),
        epochs=epochs,
        **settings,
    )
    return aa.Experiment("e", graph, progress="none").run_phase(phase)


def by_hand(model: Any, optimizer: Any, epochs: int = 3, batch: int = 12) -> list[float]:
    """The same training as the TensorFlow guide writes it."""
    draw = np.random.default_rng(0)
    x = draw.standard_normal((ROWS, 6)).astype("float32")
    y = np.tanh(x[:, :3]) + 0.5
    losses = []
    for _ in range(epochs):
        epoch = []
        for i in range(0, ROWS, batch):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x[i : i + batch], training=True) - y[i : i + batch]) ** 2)
                total = loss + (tf.add_n(model.losses) if model.losses else 0.0)
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(total, variables), variables, strict=True))
            epoch.append(float(loss))
        losses.append(float(np.mean(epoch)))
    return losses


def copy_of(make: Callable[[], Any], model: Any) -> Any:
    other = make()
    other(np.zeros((1, 6), "float32"))
    other.set_weights(model.get_weights())
    return other


# -- training --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (aa.Optimizer("sgd", lr=0.1, momentum=0.9), lambda: keras.optimizers.SGD(0.1, momentum=0.9)),
        (aa.Optimizer("adam", lr=0.01), lambda: keras.optimizers.Adam(0.01, epsilon=1e-8)),
        (aa.Optimizer("sgd", lr=0.1, clip_value=0.01), lambda: keras.optimizers.SGD(0.1, clipvalue=0.01)),
        (aa.Optimizer("adamw", lr=0.01, weight_decay=0.1), None),
    ],
    ids=["sgd", "adam", "clipped by value", "adamw"],
)
def test_a_graph_trains_as_a_loop_by_hand_does(make: Callable[[], Any], mine: aa.Optimizer, theirs: Any) -> None:
    """Losses and weights, and the user's own model object holds the result."""
    model = make()
    graph = graph_of(model, mine)
    graph.build()
    other = copy_of(make, model)
    start = [np.array(w) for w in model.get_weights()]
    result = train(graph)
    assert graph["net"].model is model
    assert any((a != b).any() for a, b in zip(start, model.get_weights(), strict=True))
    if theirs is None:  # Keras decays by another rule; the reference in the kit is compared instead
        return
    np.testing.assert_allclose(result.loss, by_hand(other, theirs()), rtol=2e-5)
    for mine_, his in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(mine_, his, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("make", MAKERS)
def test_keras_uses_the_trained_values_afterwards(make: Callable[[], Any]) -> None:
    """`model(x)`, `predict`, `evaluate`, `fit` and `get_weights` agree, also where they were compiled before."""
    model, x = make(), np.ones((5, 6), "float32")
    graph = graph_of(model)
    graph.build()
    model.compile("sgd", "mse")
    before = model.predict(x, verbose=0)
    train(graph)
    after = model.predict(x, verbose=0)
    assert np.abs(after - before).max() > 1e-3
    np.testing.assert_allclose(after, model(x).numpy(), rtol=1e-6)
    weights = model.get_weights()
    model.fit(x, np.zeros((5, 3), "float32"), verbose=0)
    assert any((a != b).any() for a, b in zip(weights, model.get_weights(), strict=True))


def test_batch_normalisation_learns_its_statistics() -> None:
    def make() -> Any:
        return keras.Sequential([layers.Dense(8), layers.BatchNormalization(momentum=0.9), layers.Dense(3)])

    model = make()
    graph = graph_of(model)
    graph.build()
    other = copy_of(make, model)
    np.testing.assert_allclose(train(graph).loss, by_hand(other, keras.optimizers.SGD(0.1)), rtol=2e-5)
    for mine, his in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(mine, his, rtol=1e-3, atol=1e-5)


def test_regularizers_and_added_losses_pull_as_they_do_in_keras() -> None:
    class Adding(layers.Layer):
        def call(self, x: Any) -> Any:
            self.add_loss(0.1 * tf.reduce_mean(tf.abs(x)))
            return x

    def make() -> Any:
        regularizer = keras.regularizers.L2(0.05)
        return keras.Sequential([layers.Dense(8, kernel_regularizer=regularizer), Adding(), layers.Dense(3)])

    model = make()
    graph = graph_of(model)
    graph.build()
    other = copy_of(make, model)
    np.testing.assert_allclose(train(graph).loss, by_hand(other, keras.optimizers.SGD(0.1)), rtol=2e-5)


class CustomStep(keras.Sequential):
    def train_step(self, *given: Any) -> Any:
        return super().train_step(*given)


class CustomLoss(keras.Sequential):
    def compute_loss(self, *given: Any, **named: Any) -> Any:
        return super().compute_loss(*given, **named)


class Writing(layers.Layer):
    """Assigns to a weight that is trained."""

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=(6,), initializer="ones")

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.scale.assign(self.scale * 0.5)
        return x * self.scale


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CustomStep([layers.Dense(3)]), "CustomStep overrides train_step, which would not be called"),
        (lambda: CustomLoss([layers.Dense(3)]), "CustomLoss overrides compute_loss, which would not be called"),
        (
            lambda: keras.Sequential([layers.SpectralNormalization(layers.Dense(3))]),
            r"layers\.0 \(SpectralNormalization\) assigns to a weight that it trains",
        ),
        (
            lambda: keras.Sequential([Writing(), layers.Dense(3)]),
            r"call assigns to the trained variable layers\.0\.\S+",
        ),
    ],
)
def test_what_only_kerass_own_loop_does_is_refused_in_training_only(make: Callable[[], Any], message: str) -> None:
    model = make()
    model.build((None, 6))
    before = model.get_weights()
    with pytest.raises(PhaseError, match=message):
        train(graph_of(model), epochs=1)
    for actual, expected in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(actual, expected)
    graph = graph_of(model)
    looking = aa.EvalPhase("look", data="all", outputs=["net"])
    seen = aa.Experiment("e", graph, progress="none").run_phase(looking).prediction("net")
    np.testing.assert_allclose(seen, model.predict(data().array("x"), verbose=0), rtol=1e-5, atol=1e-6)


def test_losses_that_a_model_adds_keep_their_scale_in_accumulated_batches() -> None:
    decay, small, result = keras.regularizers.L2(0.1), keras.initializers.Constant(0.1), []
    for batch, accumulate in ((12, 1), (6, 2)):
        dense = layers.Dense(8, kernel_regularizer=decay, activity_regularizer=decay, kernel_initializer=small)
        model = keras.Sequential([dense, layers.Dense(3, kernel_initializer=small)])
        train(graph_of(model), epochs=2, batch=batch, accumulate=accumulate)
        result.append(model.get_weights())
    for one, other in zip(*result, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("part", ["layer", "model"])
def test_frozen_variables_are_not_trained(part: str) -> None:
    model = sequential()
    graph = graph_of(model)
    graph.build()
    frozen = model.layers[0] if part == "layer" else model
    frozen.trainable = False
    if part == "model":
        with pytest.raises(PhaseError, match="nothing to train"):
            train(graph_of(model))
        return
    before = [np.array(w) for w in model.get_weights()]
    train(graph_of(model))
    after = model.get_weights()
    assert all((a == b).all() for a, b in zip(before[:2], after[:2], strict=True))
    assert all((a != b).any() for a, b in zip(before[2:], after[2:], strict=True))


class Hidden(keras.Model):
    """Dropout in a model whose call has no `training`: Keras passes it on by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.last = layers.Dropout(0.5), layers.Dense(3)

    def call(self, x: Any) -> Any:
        return self.last(self.drop(x))


def test_dropout_works_where_the_call_does_not_name_training(
    backend: TensorFlowBackend, segment_of: Callable[..., Segment]
) -> None:
    model = Hidden()
    backend.infer(model, [X], 0)
    program = backend.build(segment_of(model, features=(6,), target=(3,)))
    x, y = backend.from_host(np.ones((4, 6), "float32"), CPU), backend.from_host(np.zeros((4, 3), "float32"), CPU)
    program.seed(1)
    (first,), _, _ = program.forward_pullback((x, y))
    (second,), _, _ = program.forward_pullback((x, y))
    (plain,), _ = program.forward((x, y))
    program.close()
    assert (first.numpy() != second.numpy()).any() and (first.numpy() != plain.numpy()).any()
    np.testing.assert_allclose(plain.numpy(), model(np.ones((4, 6), "float32")).numpy(), rtol=1e-6)


def test_seed_generators_are_left_as_they_were(backend: TensorFlowBackend, segment_of: Callable[..., Segment]) -> None:
    model = Hidden()
    backend.infer(model, [X], 0)
    before = backend.state(model)["buffers/drop.seed_generator.state"]
    program = backend.build(segment_of(model, features=(6,), target=(3,)))
    x, y = backend.from_host(np.ones((4, 6), "float32"), CPU), backend.from_host(np.zeros((4, 3), "float32"), CPU)
    _, _, pull = program.forward_pullback((x, y))
    pull([None])
    program.optimizer_step()
    program.close()
    np.testing.assert_array_equal(backend.state(model)["buffers/drop.seed_generator.state"], before)


# -- inputs and outputs ----------------------------------------------------------------------------------------------


def two_inputs() -> Any:
    a, b = keras.Input((2,), name="a"), keras.Input((3,), name="b")
    return keras.Model([a, b], layers.Dense(2)(layers.Concatenate()([a, b])))


def named_inputs() -> Any:
    a, b = keras.Input((2,), name="a"), keras.Input((3,), name="b")
    return keras.Model({"a": a, "b": b}, layers.Dense(2)(layers.Concatenate()([a, b])))


class TwoArguments(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.last = layers.Dense(2)

    def call(self, a: Any, b: Any, training: bool = False) -> Any:
        return self.last(tf.concat([a, b], 1))


class OneList(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.last = layers.Dense(2)

    def call(self, inputs: Any, training: bool = False) -> Any:
        return self.last(tf.concat(inputs, 1))


class AnyNumber(keras.layers.Layer):
    def call(self, *inputs: Any) -> Any:
        return tf.concat(inputs, 1)[:, :2]


@pytest.mark.parametrize("make", [two_inputs, named_inputs, TwoArguments, OneList, AnyNumber])
def test_several_inputs_are_given_as_the_model_wants_them(make: Callable[[], Any], backend: TensorFlowBackend) -> None:
    specs = [TensorSpec((2,), "float32"), TensorSpec((3,), "float32")]
    assert backend.infer(make(), specs, 0) == (TensorSpec((2,), "float32"),)


@pytest.mark.parametrize("kind", [tuple, list, dict])
def test_several_outputs_keep_their_order(kind: type, backend: TensorFlowBackend) -> None:
    given = keras.Input((6,))
    first, second = layers.Dense(2)(given), layers.Dense(5)(given)
    model = keras.Model(given, {"z": first, "a": second} if kind is dict else kind([first, second]))
    assert [spec.shape for spec in backend.infer(model, [X], 0)] == [(2,), (5,)]


def test_an_output_without_gradients_is_returned(backend: TensorFlowBackend) -> None:
    """A model with an integer output, and one whose losses are on the second output only."""
    given = keras.Input((6,))
    logits = layers.Dense(3, kernel_regularizer=keras.regularizers.L2(0.1))(given)
    model = keras.Model(given, [keras.ops.argmax(logits, -1), logits])
    specs = backend.infer(model, [X], 0)
    assert [spec.dtype for spec in specs] == ["int32", "float32"]
    segment = Segment(
        "s",
        (Operation("a", model, ("x",), ("a.0", "a.1"), CPU),),
        {"x": (X, CPU), "y": (TensorSpec((3,), "float32"), CPU)},
        ("a.0", "a.1"),
        (LossTerm("l", "a", aa.Loss("mse"), ("a.1", "y"), CPU),),
        (ParameterGroup("g", aa.Optimizer("sgd", lr=0.1), ("a",)),),
    )
    program = backend.build(segment)
    x, y = np.ones((4, 6), "float32"), np.zeros((4, 3), "float32")
    outputs, _, pull = program.forward_pullback((backend.from_host(x, CPU), backend.from_host(y, CPU)))
    pull([None, None])
    before = model.get_weights()[0]
    with tf.GradientTape() as tape:
        total = tf.reduce_mean(model(x)[1] ** 2) + tf.add_n(model.losses)
    expected = tape.gradient(total, model.trainable_variables[0])
    program.optimizer_step()
    program.close()
    np.testing.assert_array_equal(outputs[0].numpy(), np.argmax(outputs[1].numpy(), -1))
    np.testing.assert_allclose(model.get_weights()[0], before - 0.1 * expected.numpy(), rtol=1e-5)


def test_integer_inputs_reach_an_embedding() -> None:
    draw = np.random.default_rng(0)
    which = draw.integers(0, 7, (ROWS, 2))
    source = aa.FeatureSet.from_dict("words", {"x": which, "y": (which % 3).astype("float32")}, ["x"], ["y"])
    model = keras.Sequential([layers.Embedding(7, 4), layers.Flatten(), layers.Dense(2)])
    result = train(graph_of(model, aa.Optimizer("adam", lr=0.05), source), epochs=15)
    assert result.loss[-1] < result.loss[0] / 2


def test_recurrent_and_attention_layers_train() -> None:
    class Net(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.cut, self.recur = layers.Reshape((3, 2)), layers.GRU(4, return_sequences=True)
            self.attend, self.last = layers.MultiHeadAttention(2, 2), layers.Dense(3)

        def call(self, x: Any) -> Any:
            x = self.recur(self.cut(x))
            return self.last(keras.ops.mean(self.attend(x, x), axis=1))

    result = train(graph_of(Net(), aa.Optimizer("adam", lr=0.02)), epochs=8)
    assert result.loss[-1] < result.loss[0]


# -- building --------------------------------------------------------------------------------------------------------


def weights(make: Callable[[], Any], seed: int) -> list[np.ndarray]:
    model = make()
    TensorFlowBackend().infer(model, [X], seed)
    return [np.array(w) for w in model.get_weights()]


class Wrapped(keras.layers.Layer):
    """A layer that creates other layers and weights when it is built."""

    def build(self, shape: Any) -> None:
        self.inside = layers.Dense(4)
        self.own = self.add_weight(shape=(4,), initializer="random_normal")

    def call(self, x: Any) -> Any:
        return self.inside(x) + self.own


@pytest.mark.parametrize("make", [sequential, Subclassed, Wrapped])
def test_weights_of_unbuilt_layers_follow_the_seed(make: Callable[[], Any]) -> None:
    first, same, other = weights(make, 3), weights(make, 3), weights(make, 4)
    assert all((a == b).all() for a, b in zip(first, same, strict=True))
    assert any((a != b).any() for a, b in zip(first, other, strict=True))


def test_layers_of_one_shape_do_not_start_alike() -> None:
    result = weights(lambda: keras.Sequential([layers.Dense(6), layers.Dense(6), layers.Dense(6)]), 5)
    assert (result[0] != result[2]).any() and (result[2] != result[4]).any()


def test_a_seed_that_the_user_gave_stays() -> None:
    def make() -> Any:
        return keras.Sequential([layers.Dense(3, kernel_initializer=keras.initializers.GlorotNormal(seed=11))])

    assert (weights(make, 1)[0] == weights(make, 2)[0]).all()


def test_building_leaves_the_generators_of_python_numpy_and_tensorflow_alone() -> None:
    def draws() -> tuple[float, float]:
        return random.random(), np.random.random()

    model = Subclassed()  # Keras draws seeds for initializers here already
    random.seed(1)
    np.random.seed(1)
    expected = draws()
    random.seed(1)
    np.random.seed(1)
    TensorFlowBackend().infer(model, [X], 3)
    assert draws() == expected


def test_building_leaves_the_stream_of_tensorflow_where_it_is() -> None:
    tf.random.set_seed(7)
    expected = [float(tf.random.uniform([])) for _ in range(2)]
    tf.random.set_seed(7)
    first = float(tf.random.uniform([]))
    weights(Subclassed, 3)
    assert [first, float(tf.random.uniform([]))] == expected
    tf.random.set_seed(None)


def test_a_built_layer_in_an_unbuilt_model_keeps_its_weights() -> None:
    layer = layers.Dense(6)
    layer.build((None, 6))
    before = np.array(layer.get_weights()[0])
    TensorFlowBackend().infer(keras.Sequential([layer, layers.Dense(3)]), [X], 3)
    np.testing.assert_array_equal(layer.get_weights()[0], before)


def test_names_do_not_depend_on_how_many_layers_were_made_before(backend: TensorFlowBackend) -> None:
    result = []
    for _ in range(2):
        model = keras.Sequential([layers.Dense(4), layers.BatchNormalization(), layers.Dropout(0.5), layers.Dense(3)])
        backend.infer(model, [X], 0)
        result.append(list(backend.state(model)))
    assert result[0] == result[1]
    assert result[0][:2] == ["parameters/layers.0.kernel", "parameters/layers.0.bias"]
    assert "buffers/layers.1.moving_mean" in result[0] and "buffers/layers.2.seed_generator.state" in result[0]


def test_names_are_paths_of_attributes(backend: TensorFlowBackend) -> None:
    model = Subclassed()
    backend.infer(model, [X], 0)
    names = [name.removesuffix(".kernel") for name in backend.parameters(model) if name.endswith("kernel")]
    assert names == ["first", "hidden.0", "named.last"]


def test_variables_of_a_shared_layer_are_listed_once(backend: TensorFlowBackend) -> None:
    shared = layers.Dense(6)
    model = keras.Sequential([shared, layers.Activation("tanh"), shared])
    backend.infer(model, [X], 0)
    assert list(backend.parameters(model)) == ["layers.0.kernel", "layers.0.bias"]


def test_an_unbuilt_model_has_no_state_yet(backend: TensorFlowBackend) -> None:
    with pytest.raises(StateError, match=r"Sequential has no parameters yet.*build the graph that contains it"):
        backend.state(sequential())


@pytest.mark.parametrize(
    ("make", "spec", "message"),
    [
        (sequential, TensorSpec((5,), "float32"), "does not accept float32\\[5\\] per sample.*expected axis -1"),
        (functional, TensorSpec((5,), "float32"), "does not accept float32\\[5\\] per sample"),
        (lambda: layers.Lambda(lambda x: tf.reduce_sum(x)), X, "returns \\[\\] for a batch of 2"),
        (lambda: layers.Lambda(lambda x: [1, 2]), X, "returned a list of int, int"),
    ],
)
def test_models_that_do_not_accept_their_inputs_raise(make: Callable[[], Any], spec: TensorSpec, message: str) -> None:
    backend, model = TensorFlowBackend(), make()
    if spec.shape == (5,):
        backend.infer(model, [X], 0)
    with pytest.raises(ShapeError, match=message):
        backend.infer(model, [spec], 0)


def test_layouts_of_images(backend: TensorFlowBackend) -> None:
    first = keras.Sequential([layers.Conv2D(2, 3), layers.ReLU(), layers.MaxPooling2D()])
    assert backend.data_format(first) == ("channels_last", "channels_last")
    assert backend.data_format(keras.Sequential([first, layers.Flatten()])) == ("channels_last", "")
    assert backend.data_format(keras.Sequential([first, layers.GlobalAveragePooling2D()])) == ("channels_last", "")
    assert backend.data_format(layers.Conv2D(2, 3, data_format="channels_first")) == (
        "channels_first",
        "channels_first",
    )
    assert backend.data_format(Subclassed()) == ("", "")


class Odd(keras.initializers.Initializer):
    """An initializer without a configuration."""

    seed = None

    def __call__(self, shape: Any, dtype: Any = None) -> Any:
        return tf.ones(shape, dtype)

    def get_config(self) -> Any:
        raise NotImplementedError


def test_an_initializer_of_the_users_own_is_left_alone(backend: TensorFlowBackend) -> None:
    model = keras.Sequential([layers.Dense(2, kernel_initializer=Odd())])
    backend.infer(model, [X], 0)
    np.testing.assert_array_equal(model.get_weights()[0], 1)


def test_shapes_that_only_values_tell_are_found_by_running(backend: TensorFlowBackend) -> None:
    """A trace does not know the shapes that `tf.unique` and `tf.boolean_mask` give."""
    cut = layers.Lambda(lambda x: tf.boolean_mask(x, tf.ones(tf.shape(x)[:1]) > 0))
    assert backend.infer(cut, [X], 0) == (X,)


@pytest.mark.parametrize(
    ("layer", "spec", "message"),
    [
        (
            lambda: layers.Lambda(lambda x: tf.repeat(x, 2, axis=0)),
            X,
            "returns \\[4, 6\\] for a batch of 2.*keep the batch",
        ),
        (
            lambda: layers.Lambda(lambda x: x[:, : x.shape[0]]),
            X,
            "returns \\[2, 2\\] for a batch of 2, and",
        ),
        (lambda: layers.Dense(2), TensorSpec((), "float32"), "store the column as \\[n, 1\\]"),
        (lambda: layers.Lambda(lambda x: x @ tf.ones([6, 1])), TensorSpec((6,), "int64"), "convert the data"),
    ],
    ids=["no batch", "varying", "number", "dtype"],
)
def test_the_error_has_a_hint_for_what_is_wrong(
    backend: TensorFlowBackend, layer: Any, spec: TensorSpec, message: str
) -> None:
    with pytest.raises(ShapeError, match=message):
        backend.infer(layer(), [spec], 0)


def test_a_mistake_in_a_layers_code_is_not_told_as_one_of_shapes(backend: TensorFlowBackend) -> None:
    with pytest.raises(GraphError, match=r"Lambda raised AttributeError.*nothing.*fix the model's code") as caught:
        backend.infer(layers.Lambda(lambda x: x.nothing), [X], 0)
    assert not isinstance(caught.value, ShapeError)


@pytest.mark.parametrize(
    ("dtype", "message"),
    [
        ("float64", "provide float32 inputs if the dtype is the problem.*dtype='float64'"),
        ("int64", "convert the data.*'float32'"),
    ],
)
def test_the_error_for_a_wrong_dtype_has_a_hint(backend: TensorFlowBackend, dtype: str, message: str) -> None:
    class Strict(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__(autocast=False)
            self.w = self.add_weight(shape=(6, 1))

        def call(self, x: Any) -> Any:
            return tf.matmul(x, self.w)

    with pytest.raises(ShapeError, match=message):
        backend.infer(Strict(), [TensorSpec((6,), dtype)], 0)
    assert backend.infer(Strict(), [X], 0) == (TensorSpec((1,), "float32"),)


def test_attributes_that_differ_by_an_underscore_have_names_of_their_own(backend: TensorFlowBackend) -> None:
    class Twice(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.w = self.add_weight(shape=(6,))
            self._w = self.add_weight(shape=(6,))

        def call(self, x: Any) -> Any:
            return x * self.w + self._w

    model = Twice()
    backend.infer(model, [X], 0)
    assert list(backend.parameters(model)) == ["w", "w_2"]


def test_half_precision_trains() -> None:
    """Keras's mixed policy: variables in float32, computed in bfloat16."""
    model = keras.Sequential([layers.Dense(8, "tanh", dtype="mixed_bfloat16"), layers.Dense(3, dtype="mixed_bfloat16")])
    result = train(graph_of(model, aa.Optimizer("adam", lr=0.02)), epochs=6)
    assert result.loss[-1] < result.loss[0]
    assert {w.dtype.name for w in model.get_weights()} == {"float32"}
