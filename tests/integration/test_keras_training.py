"""Losses, weights and texts as users of Keras know them, in a graph and beside it by Keras's own `fit`."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.errors import ColumnError, SourceError

keras = pytest.importorskip("keras", reason="Keras is not installed")
from keras import layers, losses, ops  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras itself
random = np.random.default_rng(0)
N = 24
X = random.standard_normal((N, 3)).astype("float32")
Y = random.standard_normal((N, 1)).astype("float32")
CLASSES = random.integers(0, 3, N)
WEIGHTS = random.random(N).astype("float32")


@pytest.fixture(autouse=True)
def only_the_framework_of_keras(framework: str) -> None:
    if keras.config.backend() != framework:
        pytest.skip(f"Keras runs on {keras.config.backend()} here")


def logits() -> Any:
    return keras.Sequential([keras.Input((3,)), layers.Dense(3)])


def probabilities() -> Any:
    return keras.Sequential([keras.Input((3,)), layers.Dense(3, activation="softmax")])


def functional() -> Any:
    return keras.Model(x := keras.Input((3,)), layers.Softmax()(layers.Dense(3)(x)))


def sigmoid() -> Any:
    return keras.Sequential([keras.Input((3,)), layers.Dense(1), layers.Activation("sigmoid")])


def linear() -> Any:
    return keras.Sequential([keras.Input((3,)), layers.Dense(1)])


def alike(make: Callable[[], Any]) -> tuple[Any, Any]:
    """Two models of equal weights."""
    own, model = make(), make()
    own.set_weights(model.get_weights())
    return own, model


def train(model: Any, loss: Any, target: Any = CLASSES, x: Any = X, data: Any = "all", **settings: Any) -> Any:
    rows = aa.FeatureSet.from_dict("data", {"x": x, "y": target}, ["x"], ["y"])
    fed = data if isinstance(data, aa.IterableSource) else rows
    graph = aa.ModelGraph([aa.ModelNode("net", model, fed.reference("x"))], aa.Optimizer("sgd", lr=0.1))
    sampler = None if fed is data else aa.SimpleSampler(8, shuffle=False)
    applied = aa.AppliedLoss(loss, on="net", **settings)
    phase = aa.TrainPhase("train", data=data, losses=applied, epochs=2, **({"sampler": sampler} if sampler else {}))
    return aa.Experiment("e", graph, progress="none").run_phase(phase).loss


def check_equal(mine: Any, theirs: Any) -> None:
    for actual, expected in zip(mine.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-6)


# -- losses ------------------------------------------------------------------------------------------------------------


@pytest.mark.shared
@pytest.mark.parametrize(
    ("make", "theirs", "mine"),
    [
        (logits, losses.SparseCategoricalCrossentropy(from_logits=True), "cross_entropy"),
        (probabilities, "sparse_categorical_crossentropy", losses.SparseCategoricalCrossentropy()),
        (linear, "mean_squared_error", "mean_squared_error"),
        (linear, "mean_absolute_error", "mean_absolute_error"),
        (linear, "huber", losses.Huber),
        (linear, "mape", losses.mean_absolute_percentage_error),
    ],
)
def test_losses_train_as_those_that_compile_is_given(make: Callable[[], Any], theirs: Any, mine: Any) -> None:
    own, model = alike(make)
    target = Y if make is linear else CLASSES
    own.compile(keras.optimizers.SGD(0.1), theirs)
    own.fit(X, target, batch_size=8, epochs=2, shuffle=False, verbose=0)
    train(model, mine, target)
    check_equal(model, own)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("make", "loss", "message"),
    [
        (probabilities, "cross_entropy", "cross_entropy takes logits, but the model ends with softmax.*remove softmax"),
        (functional, "cross_entropy", "cross_entropy takes logits, but the model ends with softmax"),
        (sigmoid, "bce", "binary_cross_entropy takes logits, but the model ends with sigmoid"),
        (probabilities, losses.SparseCategoricalCrossentropy(from_logits=True), "takes logits, but .* with softmax"),
        (
            logits,
            losses.SparseCategoricalCrossentropy(),
            "takes probabilities, but the .*Hint: set from_logits=True",
        ),
        (logits, losses.SparseCategoricalCrossentropy, "takes probabilities, but the model ends without an activation"),
        (logits, losses.sparse_categorical_crossentropy, "sparse_categorical_crossentropy takes probabilities"),
    ],
)
def test_logits_taken_for_probabilities_are_warned_of(make: Callable[[], Any], loss: Any, message: str) -> None:
    with pytest.warns(UserWarning, match=rf"loss 'net': .*{message}"):
        train(make(), loss, (CLASSES > 0).astype("float32")[:, None] if make is sigmoid else CLASSES)


def test_a_softmax_is_warned_of_once_also_where_outputs_show_it() -> None:
    rows = aa.FeatureSet.from_dict("data", {"x": X, "y": CLASSES}, ["x"], ["y"])
    rows.add_split("val", range(8))
    graph = aa.ModelGraph([aa.ModelNode("net", probabilities(), rows.reference("x"))], "sgd")
    validation = aa.EvalPhase(data="val", metrics=["accuracy"])
    phase = aa.TrainPhase(data="all", losses=aa.AppliedLoss("cross_entropy"), validation=validation)
    with pytest.warns(UserWarning) as told:
        graph.run(phase, progress="none")
    assert len([each for each in told if "softmax" in str(each.message)]) == 1


@pytest.mark.shared
@pytest.mark.parametrize(
    ("make", "loss"),
    [
        (logits, aa.Loss(losses.SparseCategoricalCrossentropy, loss_kwargs={"from_logits": True})),
        (probabilities, losses.SparseCategoricalCrossentropy),
        (logits, "cross_entropy"),
    ],
)
def test_losses_that_fit_the_end_of_the_model_are_not(make: Callable[[], Any], loss: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert np.isfinite(train(make(), loss)).all()


# -- a loss that the model computes ------------------------------------------------------------------------------------


class WithLoss(keras.Model):
    """Gives its mean squared error beside its output."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(1)

    def call(self, x: Any, y: Any) -> Any:
        z = self.dense(x)
        return {"loss": ops.mean((z - y) ** 2), "z": z}


def test_a_loss_from_the_output_trains_as_fit() -> None:
    model, own = WithLoss(), linear()
    model(X[:2], Y[:2])
    model.set_weights(own.get_weights())
    own.compile(keras.optimizers.SGD(0.1), "mse")
    own.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    data = aa.FeatureSet.from_dict("data", {"x": X, "y": Y}, ["x"], ["y"])
    node = aa.ModelNode("net", model, {"x": data.reference("x"), "y": data.reference("y")})
    graph = aa.ModelGraph([node], aa.Optimizer("sgd", lr=0.1))
    loss, sampler = aa.AppliedLoss.from_output("net", "loss"), aa.SimpleSampler(8, shuffle=False)
    phase = aa.TrainPhase("train", data="all", losses=loss, sampler=sampler, epochs=2)
    aa.Experiment("e", graph, progress="none").run_phase(phase)
    check_equal(model, own)


# -- weights and texts -------------------------------------------------------------------------------------------------


class Batches:
    """(x, y, weight), as `tf.data` and loaders give them."""

    def __iter__(self) -> Any:
        return ((X[i : i + 8], Y[i : i + 8], WEIGHTS[i : i + 8]) for i in range(0, N, 8))


def test_weights_in_third_place_are_refused_and_taken_as_the_hint_says() -> None:
    unnamed = aa.IterableSource("data", Batches(), features=["x"], target=["y"])
    with pytest.raises(SourceError, match=r"3 parts for 2 columns.*tags=\['w'\].*sample_weight='DATA\.w'"):
        train(linear(), "mse", data=unnamed)
    own, model = alike(linear)
    own.compile(keras.optimizers.SGD(0.1), losses.MeanSquaredError(reduction="mean_with_sample_weight"))
    own.fit(X, Y, sample_weight=WEIGHTS, batch_size=8, epochs=2, shuffle=False, verbose=0)
    source = aa.IterableSource("data", Batches(), features=["x"], target=["y"], tags=["w"])
    train(model, "mse", data=source, sample_weight="data.w")
    check_equal(model, own)


def test_texts_are_refused_and_their_token_ids_train_as_fit_does() -> None:
    pytest.importorskip("tensorflow", reason="Keras splits texts with TensorFlow")
    texts = np.array(["a cat", "a dog", "cat dog", "the bird"] * 6)
    vectorize = layers.TextVectorization(max_tokens=10, output_sequence_length=3)
    vectorize.adapt(texts)
    ids = np.asarray(vectorize(texts)).astype("int64")

    def reader() -> Any:
        return keras.Sequential([keras.Input((3,)), layers.Embedding(10, 2), layers.Flatten(), layers.Dense(1)])

    with pytest.raises(ColumnError, match=r"'x' cannot be read as numbers.*for texts, store token ids"):
        train(reader(), "mse", Y, x=texts)
    own, model = alike(reader)
    own.compile(keras.optimizers.SGD(0.1), "mse")
    own.fit(ids, Y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    train(model, "mse", Y, x=ids)
    check_equal(model, own)


def test_lookups_and_normalization_of_numbers_stay_in_the_model() -> None:
    keys = random.integers(0, 5, (N, 1))

    def looked_up() -> Any:
        lookup = layers.IntegerLookup(vocabulary=[1, 2, 3])
        return keras.Sequential([keras.Input((1,), dtype="int64"), lookup, layers.Embedding(4, 2), layers.Dense(1)])

    def normalized() -> Any:
        normal = layers.Normalization()
        normal.adapt(X)
        return keras.Sequential([keras.Input((3,)), normal, layers.Dense(1)])

    makes: list[Any] = [(normalized, X, Y)]
    # A lookup needs TensorFlow beside any backend; on JAX, Keras's own fit fails with one inside.
    if keras.config.backend() != "jax" and importlib.util.find_spec("tensorflow"):
        makes.append((looked_up, keys, Y[:, None]))
    for make, x, y in makes:
        own, model = alike(make)
        own.compile(keras.optimizers.SGD(0.1), "mse")
        own.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
        train(model, "mse", y, x=x)
        check_equal(model, own)


class AddsLosses(keras.Model):  # type: ignore[misc]
    """A model with losses from all sources: `add_loss` of the model and of a layer, and regularizers."""

    def __init__(self) -> None:
        super().__init__()
        decay, small = keras.regularizers.L2(0.05), keras.regularizers.L1(0.02)
        self.first = layers.Dense(6, activation="tanh", kernel_regularizer=decay, bias_regularizer=small)
        self.middle, self.last = LossOfValues(), layers.Dense(3, activity_regularizer=decay)

    def call(self, x: Any) -> Any:
        hidden = self.first(x)
        self.add_loss(0.1 * ops.mean(ops.abs(hidden)))
        return self.last(self.middle(hidden))


class LossOfValues(layers.Layer):  # type: ignore[misc]
    def call(self, x: Any) -> Any:
        self.add_loss(0.3 * ops.mean(ops.square(x)))
        return x


def adds_losses() -> Any:
    model = AddsLosses()
    model(X[:1])
    return model


def adds_losses_in_layers() -> Any:
    decay = keras.regularizers.L2(0.05)
    inputs = keras.Input((3,))
    hidden = LossOfValues()(layers.Dense(6, activation="tanh", kernel_regularizer=decay)(inputs))
    return keras.Model(inputs, layers.Dense(3, activity_regularizer=decay)(hidden))


@pytest.mark.shared
@pytest.mark.parametrize("make", [adds_losses, adds_losses_in_layers])
def test_losses_that_a_model_adds_train_it_in_fit_as_in_keras(make: Callable[[], Any], framework: str) -> None:
    own, model = alike(make)
    before = model.get_weights()
    cross_entropy = losses.SparseCategoricalCrossentropy(from_logits=True)
    metric = keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="named")
    own.compile(optimizer=keras.optimizers.SGD(0.1), loss=cross_entropy, metrics=[metric])
    history = own.fit(X, CLASSES, batch_size=8, epochs=4, shuffle=False, verbose=0).history
    fitted = aa.fit(
        model,
        {"x": X, "y": CLASSES},
        target="y",
        loss="cross_entropy",
        sampler=aa.SimpleSampler(8),
        optimizer=aa.Optimizer("sgd", lr=0.1),
        epochs=4,
        accelerator="cpu",
        progress="none",
    )
    for mine, theirs, start in zip(model.get_weights(), own.get_weights(), before, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-6)
        assert np.abs(theirs - start).max() > 1e-3
    np.testing.assert_allclose(fitted.results.loss, history["named"], rtol=1e-6, atol=1e-6)
    assert min(total - named for total, named in zip(history["loss"], history["named"], strict=True)) > 0.05
