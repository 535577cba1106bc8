"""Inputs by keyword, outputs at any depth and losses of the model, for tf.Modules and Keras models."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import anyaccel as aa
from anyaccel.errors import GraphError, ShapeError

ROWS = 12


@pytest.fixture
def data() -> aa.FeatureSet:
    random = np.random.default_rng(0)
    columns = {name: random.standard_normal((ROWS, 3)).astype("float32") for name in ("a", "b")}
    data = aa.FeatureSet.from_dict(
        "data", {**columns, "y": columns["a"] - 2 * columns["b"][:, ::-1]}, ["a", "b"], ["y"]
    )
    data.add_splits({"train": np.arange(ROWS)})
    return data


def reading(data: aa.FeatureSet, *, labels: bool = True) -> dict[str, Any]:
    """In another order than the model's."""
    named = {"right": data.reference("b"), "left": data.reference("a")}
    return {**named, "labels": data.reference("y")} if labels else named


def train(model: Any, upstream: Any, loss: aa.AppliedLoss, **settings: Any) -> Any:
    graph = aa.ModelGraph([aa.ModelNode("net", model, upstream)], aa.Optimizer("sgd", lr=0.1))
    phase = aa.TrainPhase("t", data="train", losses=loss, sampler=aa.SimpleSampler(8), epochs=2, **settings)
    return aa.Experiment("e", graph, progress="none").run_phase(phase), graph


def answers(weight: Any, left: Any, right: Any, labels: Any) -> Any:
    answer = left @ weight + right
    loss = None if labels is None else tf.reduce_mean((answer - labels) ** 2)
    return {"loss": loss, "answer": answer, "parts": (tf.transpose(answer), {"sum": tf.reduce_sum(answer, -1)})}


class Module(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = tf.Variable(tf.fill((3, 3), 0.1))

    def __call__(self, left: Any, right: Any, labels: Any = None) -> Any:
        return answers(self.weight, left, right, labels)


class Model(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.weight = self.add_weight(shape=(3, 3), initializer=keras.initializers.Constant(0.1))

    def call(self, left: Any, right: Any, labels: Any = None) -> Any:
        return answers(self.weight, left, right, labels)


def by_hand(data: aa.FeatureSet, model: Any) -> list[float]:
    means, columns = [], [tf.constant(data.array(name)) for name in ("a", "b", "y")]
    for _ in range(2):
        total = 0.0
        for start in range(0, ROWS, 8):
            left, right, labels = (column[start : start + 8] for column in columns)
            with tf.GradientTape() as tape:
                loss = model(left, right, labels)["loss"]
            (variable,) = model.trainable_variables
            variable.assign_sub(0.1 * tape.gradient(loss, variable))
            total += float(loss) * len(left)
        means.append(total / ROWS)
    return means


@pytest.mark.parametrize("kind", [Module, Model])
@pytest.mark.parametrize("own", [True, False], ids=["loss of the model", "named loss"])
@pytest.mark.parametrize("compile", ["off", "steps"])
def test_models_train_as_by_hand(data: aa.FeatureSet, kind: type, own: bool, compile: str) -> None:
    named = aa.AppliedLoss("mse", on="net", inputs=["outputs.answer", "data.y"])
    loss, model, other = aa.AppliedLoss.from_output("net") if own else named, kind(), kind()
    result, graph = train(model, reading(data, labels=own), loss, compile=compile)
    np.testing.assert_allclose(result.loss, by_hand(data, other), rtol=1e-5)
    np.testing.assert_allclose(model.trainable_variables[0].numpy(), other.trainable_variables[0].numpy(), rtol=1e-5)
    assert graph.shapes.outputs["net"] == ("net.answer", "net.parts.0", "net.parts.1.sum")
    values = aa.Experiment("e", graph, progress="none").run_phase(aa.EvalPhase("p", data="train", outputs="net"))
    np.testing.assert_allclose(values.prediction("net.parts.0"), values.prediction("net.answer"), rtol=1e-6)


def functional(names: tuple[str, str]) -> keras.Model:
    inputs = {name: keras.Input((3,), name=name) for name in names}
    answer = layers.Dense(3, kernel_initializer="ones")(inputs["left"]) - inputs["right"]
    return keras.Model(inputs, {"answer": answer, "twice": 2 * answer})


@pytest.mark.parametrize("names", [("left", "right"), ("right", "left")])
def test_a_functional_model_gets_its_inputs_by_name(data: aa.FeatureSet, names: tuple[str, str]) -> None:
    """Before, inputs were given in the order of the names, whatever they were."""
    model = functional(names)
    graph = aa.ModelGraph([aa.ModelNode("net", model, reading(data, labels=False))])
    values = aa.Experiment("e", graph, progress="none").run_phase(aa.EvalPhase("p", data="train", outputs="net"))
    expected = model.predict({"left": data.array("a"), "right": data.array("b")}, verbose=0)
    for name, array in expected.items():
        np.testing.assert_allclose(values.prediction(f"net.{name}"), array, rtol=1e-5, atol=1e-6)
    with pytest.raises(GraphError, match=r"takes its inputs by name.*Available: left, right\. Hint: pass a dict"):
        aa.ModelGraph([aa.ModelNode("net", model, [data.reference("a"), data.reference("b")])]).build()


class TimeFirst(tf.Module):
    """Over x [time, batch, 3]."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = tf.Variable(tf.fill((3, 3), 0.1))

    def __call__(self, x: Any) -> Any:
        return tf.reduce_sum(x, 0) @ self.weight, tf.cumsum(x)


def test_inputs_may_have_the_batch_on_another_axis() -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(ROWS, 5, 3)).astype("float32"), random.normal(size=(ROWS, 3)).astype("float32")
    data = aa.FeatureSet.from_dict("data", {"x": x, "y": y}, ["x"], ["y"])
    net, expected = TimeFirst(), TimeFirst()
    graph = aa.ModelGraph([aa.ModelNode("net", net, data.reference(), batch_axis=1)], aa.Optimizer("sgd", lr=0.1))
    loss = aa.AppliedLoss("mse", on="net", inputs=["outputs.0", "targets"])
    phase = aa.TrainPhase("t", data="all", losses=loss, sampler=aa.SimpleSampler(8), epochs=2)
    aa.Experiment("e", graph, progress="none").run_phase(phase)
    for _ in range(2):
        for start in range(0, ROWS, 8):
            with tf.GradientTape() as tape:
                output, _ = expected(tf.transpose(x[start : start + 8], [1, 0, 2]))
                mean = tf.reduce_mean((output - y[start : start + 8]) ** 2)
            expected.weight.assign_sub(0.1 * tape.gradient(mean, expected.weight))
    np.testing.assert_allclose(net.weight.numpy(), expected.weight.numpy(), rtol=1e-5)
    assert graph.shapes.specs["net.1"].shape == (5, 3)


def test_keras_models_have_the_batch_first() -> None:
    data = aa.FeatureSet.from_dict("data", {"x": np.zeros((4, 5, 3), "float32")}, ["x"])
    node = aa.ModelNode("net", keras.Sequential([layers.Dense(1)]), data.reference(), batch_axis=1)
    with pytest.raises(
        ShapeError, match=r"models of this kind have the batch on the first axis. Hint: leave batch_axis"
    ):
        aa.ModelGraph([node]).build()


class WithCache(tf.Module):
    """Gives something that is no tensor beside its answer."""

    def __init__(self, extra: object) -> None:
        super().__init__()
        self.weight, self.extra = tf.Variable(tf.eye(3)), extra

    def __call__(self, left: Any) -> Any:
        return {"cache": self.extra, "answer": left @ self.weight}


@pytest.mark.parametrize("extra", [object(), "text", 3, None, True, len], ids=lambda value: type(value).__name__)
def test_what_is_no_tensor_among_the_outputs_is_left_out(data: aa.FeatureSet, extra: object) -> None:
    model = WithCache(extra)
    _, graph = train(model, {"left": data.reference("a")}, aa.AppliedLoss("mse", on="net"))
    assert graph.shapes.outputs["net"] == ("net",) and graph.shapes.aliases == {"net.answer": "net"}
    w = np.eye(3)
    for _ in range(2):
        for start in range(0, ROWS, 8):
            a, y = (data.array(name)[start : start + 8] for name in ("a", "y"))
            w = w - 0.1 * a.T @ (2 * (a @ w - y) / y.size)
    np.testing.assert_allclose(model.weight.numpy(), w, rtol=1e-5, atol=1e-6)


class Recurrent(keras.Model):
    """An LSTM with its states, in a tuple and a list."""

    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = layers.LSTM(4, return_sequences=True, return_state=True), layers.Dense(3)

    def call(self, x: Any) -> Any:
        hidden, h, c = self.cells(x)
        return hidden, (h, [c]), {"answer": self.head(hidden[:, -1])}


def test_a_recurrent_layer_gives_its_states_too_and_trains_as_by_hand() -> None:
    random = np.random.default_rng(0)
    x, y = (random.normal(size=(ROWS, *shape)).astype("float32") for shape in ((5, 3), (3,)))
    data = aa.FeatureSet.from_dict("data", {"x": x, "y": y}, ["x"], ["y"])
    data.add_splits({"train": np.arange(ROWS)})
    model, own = Recurrent(), Recurrent()
    for each in (model, own):
        each(x[:2])
    own.set_weights(model.get_weights())
    loss = aa.AppliedLoss("mse", on="net", inputs=["outputs.2.answer", "targets"])
    _, graph = train(model, data.reference(), loss)
    assert graph.shapes.outputs["net"] == ("net.0", "net.1.0", "net.1.1.0", "net.2.answer")
    for _ in range(2):
        for start in range(0, ROWS, 8):
            with tf.GradientTape() as tape:
                mean = tf.reduce_mean((own(x[start : start + 8])[2]["answer"] - y[start : start + 8]) ** 2)
            variables = own.trainable_variables
            for variable, gradient in zip(variables, tape.gradient(mean, variables), strict=True):
                variable.assign_sub(0.1 * gradient)
    for value, other in zip(model.get_weights(), own.get_weights(), strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-5, atol=1e-6)
