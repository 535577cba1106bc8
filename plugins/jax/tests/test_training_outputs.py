"""Outputs that a model gives in training only: named, trained as a loop by hand does, and refused where unnamed."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import anyaccel as aa
from anyaccel.errors import PhaseError
from anyaccel_jax import Function, Linen

WEIGHT = 0.4
LOSSES = [
    aa.AppliedLoss("mse", on="net", inputs=["outputs.main", "targets"]),
    aa.AppliedLoss("mse", on="net", inputs=["outputs.aux", "targets"], weight=WEIGHT, label="aux"),
]


@pytest.fixture
def source() -> aa.FeatureSet:
    draw = np.random.default_rng(0)
    x = draw.standard_normal((24, 3)).astype("float32")
    source = aa.FeatureSet.from_dict("data", {"x": x, "y": x[:, :1] * 2}, ["x"], ["y"])
    source.split_random({"train": 2 / 3, "val": 1 / 3})
    return source


def linen_model(linen: ModuleType) -> Any:
    class Net(linen.Module):
        @linen.compact
        def __call__(self, x: Any, train: bool) -> Any:
            features = jnp.tanh(linen.Dense(5)(x))
            main, aux = linen.Dense(1)(features), linen.Dense(1)(features)
            return {"main": main, "aux": aux} if train else main

    return Net()


def keras_model(keras: ModuleType) -> Any:
    class Net(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.body = keras.layers.Dense(5, "tanh", kernel_initializer=keras.initializers.GlorotUniform(3))
            self.main = keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(4))
            self.aux = keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(5))

        def call(self, x: Any, training: bool = False) -> Any:
            features = self.body(x)
            main, aux = self.main(features), self.aux(features)
            return (main, aux) if training else main

    model = Net()
    model(np.zeros((2, 3), "float32"), training=True)
    return model


def graph(source: aa.FeatureSet, model: Any, **settings: Any) -> aa.ModelGraph:
    return aa.ModelGraph([aa.ModelNode("net", model, source.reference(), **settings)], aa.Optimizer("sgd", lr=0.1))


def train(model_graph: aa.ModelGraph, losses: Any = LOSSES, **settings: Any) -> Any:
    phase = aa.TrainPhase(
        "train", data="train", losses=losses, sampler=aa.SimpleSampler(8), epochs=2, validation="val", **settings
    )
    return aa.Experiment("test", model_graph, progress="none").run_phase(phase)


def by_hand(source: aa.FeatureSet, parameters: Any, heads: Any) -> tuple[Any, list[float]]:
    """Plain gradient descent; `heads(parameters, x)` gives both outputs."""
    x, y = (source.split("train").array(name) for name in "xy")

    def loss(parameters: Any, x: Any, y: Any) -> Any:
        main, aux = heads(parameters, x)
        return jnp.mean((main - y) ** 2) + WEIGHT * jnp.mean((aux - y) ** 2)

    means = []
    for _ in range(2):
        losses = []
        for rows in (slice(0, 8), slice(8, 16)):
            value, gradients = jax.value_and_grad(loss)(parameters, x[rows], y[rows])
            parameters = jax.tree.map(lambda p, g: p - 0.1 * g, parameters, gradients)
            losses.append(float(value))
        means.append(float(np.mean(losses)))
    return parameters, means


@pytest.mark.parametrize("compile", ["off", "auto"])
def test_named_outputs_of_training_are_trained_as_by_hand(
    source: aa.FeatureSet, linen: ModuleType, compile: str
) -> None:
    module = linen_model(linen)
    variables = module.init(jax.random.key(1), jnp.zeros((1, 3)), train=True)
    given = Linen(module, variables)
    result = train(graph(source, given, outputs=["main", "aux"]), compile=compile)

    def heads(parameters: Any, x: Any) -> tuple[Any, Any]:
        outputs = module.apply(parameters, x, train=True)
        return outputs["main"], outputs["aux"]

    expected, losses = by_hand(source, variables, heads)
    np.testing.assert_allclose(result.loss, losses, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), given.variables, expected)
    x, y = (source.split("val").array(name) for name in "xy")
    main = np.asarray(module.apply(expected, x, train=False))
    np.testing.assert_allclose(result.figure("val_loss")[-1], np.mean((main - y) ** 2), rtol=1e-4)


def test_named_outputs_of_a_keras_model_are_trained_as_by_hand(source: aa.FeatureSet, keras: ModuleType) -> None:
    model, own = keras_model(keras), keras_model(keras)
    result = train(graph(source, model, outputs=["main", "aux"]))

    def heads(parameters: Any, x: Any) -> Any:
        return own.stateless_call(parameters, [v.value for v in own.non_trainable_variables], x, training=True)[0]

    expected, losses = by_hand(source, [v.value for v in own.trainable_variables], heads)
    np.testing.assert_allclose(result.loss, losses, rtol=1e-5)
    for variable, value in zip(model.trainable_variables, expected, strict=True):
        np.testing.assert_allclose(variable.value, value, rtol=1e-4, atol=1e-6)


def test_outputs_of_training_without_names_are_refused(
    source: aa.FeatureSet, linen: ModuleType, keras: ModuleType
) -> None:
    for model, names in ((Linen(linen_model(linen)), "['main', 'aux']"), (keras_model(keras), "['out0', 'out1']")):
        with pytest.raises(PhaseError) as caught:
            train(graph(source, model), [aa.AppliedLoss("mse", on="net")])
        assert "its model returns 2 outputs (float32[1], float32[1] per sample) in training, but 1 output" in str(
            caught.value
        )
        assert f"outputs={names}" in caught.value.hint


@pytest.mark.parametrize("mode", ["auto", "off"])
def test_an_output_that_is_none_in_training(mode: str) -> None:
    def apply(params: Any, x: Any, train: bool) -> Any:
        return {"cache": None if train else x, "y": x @ params["w"]}

    x = np.arange(12, dtype="float32").reshape(4, 3) / 10
    data = aa.FeatureSet.from_dict("data", {"x": x, "y": x[:, :1]}, ["x"], ["y"])
    model = Function(apply, {"w": np.ones((3, 1), "float32")})
    graph = aa.ModelGraph([aa.ModelNode("net", model, data.reference())], aa.Optimizer("sgd", lr=0.1))
    losses = [aa.AppliedLoss("mse", on="net", inputs=["outputs.y", "targets"])]
    phase = aa.TrainPhase("t", data=data, losses=losses, sampler=aa.SimpleSampler(4), compile=mode)
    aa.Experiment("e", graph, progress="none").run_phase(phase)
    w = np.ones((3, 1), "float32")
    w -= 0.1 * 2 * x.T @ (x @ w - x[:, :1]) / 4
    np.testing.assert_allclose(model.tree["w"], w, rtol=1e-6)
