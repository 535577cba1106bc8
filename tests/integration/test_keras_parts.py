"""What Keras models and layers carry, trained in a graph and beside it by Keras's own `fit`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.errors import ColumnError, ShapeError, SpecError

keras = pytest.importorskip("keras", reason="Keras is not installed")
from keras import layers, ops  # noqa: E402

random = np.random.default_rng(0)
N = 24
X = random.standard_normal((N, 6)).astype("float32")
Y = random.standard_normal((N, 1)).astype("float32")
SEQUENCES = random.standard_normal((N, 5, 4)).astype("float32")
IDS = random.integers(1, 9, (N, 5)).astype("int32")
IDS[:, 3:] = 0
IMAGES = random.standard_normal((N, 8, 8, 3)).astype("float32")


@pytest.fixture(autouse=True)
def only_the_framework_of_keras(framework: str) -> None:
    if keras.config.backend() != framework:
        pytest.skip(f"Keras runs on {keras.config.backend()} here")


# -- layers of our own -------------------------------------------------------------------------------------------------


class AddsLosses(layers.Layer):
    """Adds a loss of its input, one of its weight, and one in training only."""

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x: Any, training: bool = False) -> Any:
        self.add_loss(0.1 * ops.mean(ops.square(x)))
        self.add_loss(0.1 * ops.sum(ops.square(self.scale)))
        if training:
            self.add_loss(0.3 * ops.mean(ops.abs(x)))
        return x * self.scale


class Follows(layers.Layer):
    """Counts its calls in training, and subtracts a moving average."""

    def build(self, shape: Any) -> None:
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False)
        self.mean = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False)

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.count.assign(self.count + 1)
            self.mean.assign(0.9 * self.mean + 0.1 * ops.mean(x, axis=0))
        return x * (1 + 0.1 * self.count) - ops.stop_gradient(ops.convert_to_tensor(self.mean))


class KeepsMask(layers.Layer):
    """Computes a mask of its own."""

    supports_masking = True

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        return ops.any(ops.not_equal(inputs, 0), axis=-1)

    def call(self, x: Any) -> Any:
        return x


class Containers(keras.Model):
    """Layers in a dict, a list and a tuple, one of them twice, and one that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.named = {"a": layers.Dense(3), "b": [layers.Dense(3), layers.Dense(1)]}
        self.first = (layers.Dense(6),)
        self.again = self.first[0]
        self.frozen = layers.Dense(6, kernel_constraint="unit_norm", trainable=False)

    def call(self, x: Any, training: bool | None = None) -> Any:
        x = self.again(self.first[0](x)) + self.frozen(x)
        x = self.named["b"][0](x) + self.named["a"](x)
        return self.named["b"][1](x * 2 if training else x)


# -- models ------------------------------------------------------------------------------------------------------------


def sequence(*parts: Any) -> Any:
    return keras.Sequential([*parts, layers.Dense(1)])


def adds_losses() -> Any:
    dense = layers.Dense(4, kernel_regularizer="l2", bias_regularizer="l1", activity_regularizer="l2")
    return sequence(dense, AddsLosses(), layers.ActivityRegularization(0.1))


def constrained() -> Any:
    norm = layers.Dense(4, kernel_constraint=keras.constraints.MaxNorm(0.5), bias_constraint="non_neg")
    return sequence(norm, layers.PReLU(alpha_constraint="non_neg"), layers.Dense(3, kernel_constraint="unit_norm"))


def normalized() -> Any:
    frozen = layers.BatchNormalization(trainable=False)
    adapted = layers.Normalization(mean=0.5, variance=2.0)
    ours = [layers.BatchNormalization(), layers.LayerNormalization(), layers.RMSNormalization()]
    return sequence(adapted, layers.Dense(4), *ours, frozen, layers.UnitNormalization())


def policies() -> Any:
    cast = [layers.Dense(4, dtype="mixed_bfloat16"), layers.Dense(4, autocast=False, dtype="float32")]
    return sequence(*cast, layers.Lambda(ops.tanh), layers.Dense(3))


def low_rank() -> Any:
    # Keras's own fit fails with it on TensorFlow: custom gradients take no keywords in graphs
    with nullcontext() if keras.config.backend() == "tensorflow" else keras.RematScope(mode="full"):
        model = sequence(layers.Dense(4, "tanh"), dense := layers.Dense(3))
    model.build((None, 6))
    dense.enable_lora(2)
    return model


def quantized() -> Any:
    model = sequence(layers.Dense(4))
    model.build((None, 6))
    model.quantize("int8")
    return model


def masked() -> Any:
    both = layers.Bidirectional(layers.LSTM(3, return_sequences=True))
    cells = layers.RNN([layers.GRUCell(3), layers.SimpleRNNCell(2)])
    return sequence(layers.Embedding(9, 4, mask_zero=True), both, KeepsMask(), cells)


def averaged() -> Any:
    return sequence(layers.Embedding(9, 4, mask_zero=True), layers.GlobalAveragePooling1D())


def attention() -> Any:
    x = layers.Input((5, 4))
    y = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 3)(x, x))
    y = layers.EinsumDense("abc,cd->abd", output_shape=(5, 3), bias_axes="d")(y)
    y = layers.Conv1D(3, 2, padding="causal", dilation_rate=2)(y)
    return keras.Model(x, layers.Dense(1)(layers.TimeDistributed(layers.Dense(2))(y)[:, 0]))


def images() -> Any:
    shrink = [
        layers.Rescaling(0.5),
        layers.Conv2D(4, 3),
        layers.MaxPooling2D(3, 2, "same"),
        layers.GroupNormalization(2),
    ]
    widen = [layers.Conv2DTranspose(3, 2, strides=2), layers.UpSampling2D(2), layers.ZeroPadding2D(1)]
    deep = [layers.DepthwiseConv2D(3), layers.SeparableConv2D(3, 2), layers.AveragePooling2D(2, padding="same")]
    return sequence(
        *shrink, layers.GroupNormalization(2), *widen, *deep, layers.CenterCrop(4, 4), layers.GlobalAveragePooling2D()
    )


def categories() -> Any:
    bins = layers.Discretization(bin_boundaries=[-1.0, 0.0, 1.0])
    return sequence(bins, layers.Embedding(4, 2), layers.Flatten())


SHARED = pytest.mark.shared
NOT_BY_JAX = pytest.mark.shared("torch", "tensorflow")  # it compiles each of these for 20 seconds, twice
MODELS = [
    pytest.param(adds_losses, X, marks=SHARED),
    pytest.param(constrained, X, marks=SHARED),
    pytest.param(normalized, X, marks=SHARED),
    pytest.param(policies, X, marks=SHARED),
    pytest.param(low_rank, X, marks=SHARED),
    pytest.param(quantized, X, marks=SHARED),
    pytest.param(masked, IDS, marks=NOT_BY_JAX),
    pytest.param(averaged, IDS, marks=SHARED),
    pytest.param(attention, SEQUENCES, marks=NOT_BY_JAX),
    pytest.param(images, IMAGES, marks=NOT_BY_JAX),
    pytest.param(categories, X, marks=SHARED),
    pytest.param(Containers, X, marks=SHARED),
    pytest.param(lambda: sequence(layers.Dense(4), Follows()), X, marks=SHARED),
]


def values(model: Any) -> list[np.ndarray]:
    return [ops.convert_to_numpy(v.value).astype("float64") for v in model.variables if "seed" not in v.path]


def alike(make: Callable[[], Any], x: np.ndarray) -> tuple[Any, Any]:
    """Two models of equal weights."""
    models = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Keras itself warns of
        for _ in range(2):
            keras.utils.set_random_seed(3)
            models.append(make())
            models[-1](x[:8])
        for mine, other in zip(*(model.variables for model in models), strict=True):
            mine.assign(np.array(ops.convert_to_numpy(other.value)))
    return models[0], models[1]


def graph_of(model: Any, x: np.ndarray, y: np.ndarray, optimizer: Any) -> aa.ModelGraph:
    data = aa.FeatureSet.from_dict("data", {"x": x, "y": y}, ["x"], ["y"])
    return aa.ModelGraph([aa.ModelNode("net", model, data.reference())], optimizer)


def train(graph: aa.ModelGraph, **settings: Any) -> Any:
    mse = aa.AppliedLoss("mse", on="net")
    settings = {"sampler": aa.SimpleSampler(8, shuffle=False), "epochs": 2, **settings}
    phase = aa.TrainPhase("train", data="all", losses=[mse], **settings)
    return aa.Experiment("e", graph, progress="none").run_phase(phase)


def check_as_fit(make: Callable[[], Any], x: np.ndarray, **settings: Any) -> None:
    atol = 1e-3 if make is policies else 1e-5  # a compiler may round to 16 bits in other places
    own, model = alike(make, x)
    own.compile(keras.optimizers.SGD(0.05), "mse")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Keras itself warns of
        own.fit(x, Y, batch_size=8, epochs=2, shuffle=False, verbose=0)
        graph = graph_of(model, x, Y, aa.Optimizer("sgd", lr=0.05))
        train(graph, **settings)
        mine, theirs, predicted = values(model), values(own), own.predict(x, verbose=0)
    for actual, expected in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=atol)
    looking = aa.EvalPhase("look", data="all", outputs=["net"])
    seen = aa.Experiment("e", graph, progress="none").run_phase(looking).prediction("net")
    np.testing.assert_allclose(seen, predicted, rtol=1e-4, atol=10 * atol)


@pytest.mark.shared
@pytest.mark.parametrize(("make", "x"), MODELS)
def test_a_graph_trains_what_fit_trains(make: Callable[[], Any], x: np.ndarray, framework: str) -> None:
    if framework == "jax" and make in (masked, images, attention):
        pytest.skip("JAX compiles each of these for 20 seconds, twice; their layers are those of the other frameworks")
    if framework == "torch" and make in (low_rank, quantized) and aa.devices("gpu", framework="torch"):
        pytest.skip("Keras computes these on its default device, a GPU here: docs/limitations.md")
    check_as_fit(make, x)


@pytest.mark.shared
@pytest.mark.parametrize("make", [adds_losses, constrained])
def test_so_it_does_in_micro_batches(make: Callable[[], Any]) -> None:
    check_as_fit(make, X, sampler=aa.SimpleSampler(4, shuffle=False), accumulate=2)


@pytest.mark.shared
@pytest.mark.parametrize("compile_", ["steps", "off"])
def test_constraints_hold_in_compiled_and_in_single_steps(compile_: Any, framework: str) -> None:
    if framework == "torch" and compile_ == "steps":
        pytest.skip("torch compiles no steps with constraints")
    check_as_fit(constrained, X, compile=compile_)


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_a_stateful_layer_is_refused() -> None:
    given = [layers.Input(batch_shape=(8, 5, 4)), layers.LSTM(3, stateful=True), layers.Dense(1)]
    message = r"node 'net' .*layers\.0 \(LSTM\) is stateful: .*Hint: create it with stateful=False"
    with pytest.raises(ShapeError, match=message):
        graph_of(keras.Sequential(given), SEQUENCES, Y, "sgd").build()


def test_an_output_with_a_mask_is_refused_in_training_and_trained_where_the_mask_ends() -> None:
    targets = random.standard_normal((N, 5, 1)).astype("float32")

    def tagger(*last: Any) -> Any:
        return keras.Sequential([layers.Embedding(9, 4, mask_zero=True), layers.Dense(1), *last])

    with pytest.raises(
        ShapeError, match=r"node 'net': an output of Sequential carries a mask.*Hint: end the model with"
    ):
        train(graph_of(tagger(), IDS, targets, "sgd"))
    model = tagger(layers.Lambda(ops.copy))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras says that the layer drops the mask
        results = train(graph_of(model, IDS, targets, aa.Optimizer("sgd", lr=0.05)))
    assert results.loss[-1] < results.loss[0]


# -- optimizers --------------------------------------------------------------------------------------------------------

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9, "nesterov": True, "clipnorm": 0.5},
    "Adam": {"amsgrad": True, "clipvalue": 0.1},
    "AdamW": {"weight_decay": 0.1},
    "Nadam": {},
    "RMSprop": {"momentum": 0.5, "centered": True},
    "Adagrad": {},
    "Adamax": {},
    "Ftrl": {},
    "Lion": {"weight_decay": 0.1},
    "Lamb": {},
    "Adafactor": {},
}


@pytest.fixture
def optimizers(framework: str) -> Any:
    return keras.optimizers


@pytest.mark.shared
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_of_keras_trains_as_fit_does(optimizers: Any, name: str) -> None:
    own, model = alike(lambda: sequence(layers.Dense(4, "tanh", kernel_constraint="unit_norm")), X)
    kind, settings = getattr(optimizers, name), OPTIMIZERS[name]
    own.compile(kind(learning_rate=0.05, **settings), "mse")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Keras itself warns of
        own.fit(X, Y, batch_size=8, epochs=4, shuffle=False, verbose=0)
        graph = graph_of(model, X, Y, aa.Optimizer(kind, lr=0.05, **settings))
        train(graph, epochs=2)
        train(graph, epochs=1, compile="off")  # goes on with the state of the phase before
        train(graph, epochs=1)
        mine, theirs = values(model), values(own)
    for actual, expected in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"use_ema": True}, "has use_ema, which .* applies.*Hint: pass averaging = WeightAveraging.0\\.99. to"),
        ({"gradient_accumulation_steps": 2}, "has gradient_accumulation_steps.*Hint: write TrainPhase.accumulate="),
        ({"loss_scale_factor": 8.0}, "has loss_scale_factor.*Hint: leave it out"),
        ({"global_clipnorm": 0.5}, r"has global_clipnorm, a norm over all nodes.*Hint: write .*clip_norm=0\.5\)"),
        ({"nothing": 1}, "cannot create the optimizer Adam: .*nothing.*Hint: correct its settings"),
    ],
)
def test_settings_that_only_fit_heeds_are_refused(optimizers: Any, settings: dict[str, Any], message: str) -> None:
    graph = graph_of(sequence(layers.Dense(2)), X, Y, aa.Optimizer(optimizers.Adam, lr=0.01, **settings))
    with pytest.raises(SpecError, match=message):
        train(graph)


def test_clip_norm_is_the_global_norm_of_keras_over_all_nodes(optimizers: Any) -> None:
    own = keras.Sequential([keras.Input(X.shape[1:]), layers.Dense(4), layers.Dense(1)])
    body = keras.Sequential([keras.Input(X.shape[1:]), layers.Dense(4)])
    head = keras.Sequential([keras.Input((4,)), layers.Dense(1)])
    data = aa.FeatureSet.from_dict("data", {"x": X, "y": Y}, ["x"], ["y"])
    nodes = [aa.ModelNode("body", body, data.reference()), aa.ModelNode("net", head, "body")]
    graph = aa.ModelGraph(nodes, aa.Optimizer(optimizers.SGD, lr=0.1, clip_norm=0.2))
    own.compile(optimizers.SGD(0.1, global_clipnorm=0.2), "mse")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Keras itself warns of
        for mine, other in zip([*body.variables, *head.variables], own.variables, strict=True):
            mine.assign(np.array(ops.convert_to_numpy(other.value)))
        train(graph, epochs=2)
        own.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0)
        trained, by_keras = [*values(body), *values(head)], values(own)
    for actual, expected in zip(trained, by_keras, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_an_optimizer_in_another_is_refused(optimizers: Any) -> None:
    scaled = aa.Optimizer(optimizers.LossScaleOptimizer, inner_optimizer=optimizers.Adam())
    with pytest.raises(SpecError, match="LossScaleOptimizer"):
        train(graph_of(sequence(layers.Dense(2)), X, Y, scaled))


def test_an_optimizer_that_changes_what_is_no_variable_of_its_own_is_refused(optimizers: Any) -> None:
    class Counting(optimizers.SGD):  # type: ignore[name-defined,misc]
        seen = None

        def update_step(self, *given: Any) -> None:
            if Counting.seen is None:
                Counting.seen = keras.Variable("zeros", shape=())
            Counting.seen.assign(1.0)
            super().update_step(*given)

    graph = graph_of(sequence(layers.Dense(2)), X, Y, aa.Optimizer(Counting, lr=0.01))
    with pytest.raises(SpecError, match="Counting changes values that are not among its variables"):
        train(graph, compile="off")


# -- targets that a loss of Keras takes --------------------------------------------------------------------------------

CLASSES = np.arange(N) % 3
YES = (np.arange(N) % 2)[:, None].astype("float32")
TARGETS = {
    "BinaryCrossentropy": (keras.losses.BinaryCrossentropy(from_logits=True), 1, 255 * YES, YES, "from 0 to 1"),
    "its function": (keras.losses.binary_crossentropy, 1, 255 * YES, YES, "from 0 to 1"),
    "SparseCategoricalCrossentropy": (
        *(keras.losses.SparseCategoricalCrossentropy(from_logits=True), 3, CLASSES + 1, CLASSES),
        "class index 3",
    ),
    "ignored": (
        *(keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1), 3),
        *(CLASSES - 2, np.where(CLASSES == 0, -1, CLASSES), "class index -2"),
    ),
    "CategoricalCrossentropy": (
        *(keras.losses.CategoricalCrossentropy(from_logits=True), 3, -2 * np.eye(3, dtype="float32")[CLASSES]),
        *(np.eye(3, dtype="float32")[CLASSES], "probabilities of classes from 0 to 1"),
    ),
    "Poisson": (keras.losses.Poisson(), 1, -3 * YES, 3 * YES, "targets of at least 0"),
}


@pytest.mark.shared
@pytest.mark.parametrize("name", TARGETS)
def test_targets_that_a_loss_of_keras_would_take_without_a_word_are_refused(name: str) -> None:
    """And those that it is made for have its own loss; issue 26."""
    loss, width, wrong, right, message = TARGETS[name]
    end = None if name.startswith(("S", "Bin", "Cat", "ign")) else "softplus" if name == "Poisson" else "sigmoid"
    model = keras.Sequential([layers.Input((6,)), layers.Dense(width, activation=end)])
    options: dict[str, Any] = {"target": "y", "loss": loss, "epochs": 1, "batch_size": N, "progress": "none"}
    options |= {"optimizer": aa.Optimizer("sgd", lr=1e-12), "accelerator": "cpu"}
    with pytest.raises(ColumnError, match=message):
        aa.fit(model, {"x": X, "y": wrong}, **options)
    expected = float(ops.mean(loss(ops.convert_to_tensor(right), ops.stop_gradient(model(X)))))
    assert aa.fit(model, {"x": X, "y": right}, **options).results.loss[0] == pytest.approx(expected, rel=1e-5)
