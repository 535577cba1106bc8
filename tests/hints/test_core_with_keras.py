"""Hints of core that models and optimizers of Keras meet; Keras computes with TensorFlow here."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.errors import ArgumentError, NoBackendError
from anyaccel.numpy_backend import NumpyBackend
from anyaccel.registry import Registry

pytest.importorskip("tensorflow")
pytest.importorskip("anyaccel_tensorflow")
keras = pytest.importorskip("keras")
layers, ops = keras.layers, keras.ops

X = np.random.default_rng(0).standard_normal((24, 3)).astype("float32")
IDS = np.arange(96).reshape(24, 4) % 5
DATA = aa.FeatureSet.from_dict("data", {"x": X, "y": X[:, :1]}, ["x"], ["y"])
TOKENS = aa.FeatureSet.from_dict("data", {"ids": IDS, "y": X[:, :1]}, ["ids"], ["y"])
ROWS = aa.FeatureSet.from_dict("data", {"x": X[:, :, None], "y": X[:, :1]}, ["x"], ["y"])
LOSS = aa.AppliedLoss("mse", on="net")


def line() -> Any:
    return keras.Sequential([layers.Dense(1)])


def graph(model: Any, data: aa.FeatureSet = DATA, optimizer: Any = "sgd", **settings: Any) -> aa.ModelGraph:
    return aa.ModelGraph([aa.ModelNode("net", model, data.reference(), **settings)], optimizer)


def trained(given: aa.ModelGraph, *losses: Any, **settings: Any) -> Any:
    phase = aa.TrainPhase("train", data="all", losses=list(losses) or [LOSS], accelerator="cpu", **settings)
    return given.run(phase, progress="none")


def test_layers_that_are_not_trained() -> None:
    net = keras.Sequential([layers.Dense(2), layers.Dense(1)])
    net.build((None, 3))
    settings = {"loss": "mse", "epochs": 1, "accelerator": "cpu", "progress": "none"}
    with pytest.raises(ArgumentError, match=r"layer\.trainable = False in Keras; graph\.freeze\('NODE'\)"):
        aa.fit(net, (X, X[:, :1]), **settings, frozen=True)  # the way of torch is in the tests with torch
    layer = net.layers[0]
    layer.trainable = False
    before = [np.array(weight) for weight in net.get_weights()]
    aa.fit(net, (X, X[:, :1]), **settings)
    same = [np.array_equal(a, b) for a, b in zip(before, net.get_weights(), strict=True)]
    assert same == [True, True, False, False]
    assert graph(line()).freeze("net").frozen == ("net",)


def test_settings_of_optimizers(hint: Any) -> None:
    def with_optimizer(phase: dict[str, Any] | None = None, **settings: Any) -> Any:
        optimizer = aa.Optimizer(keras.optimizers.SGD, lr=0.1, **settings)
        return trained(graph(line(), optimizer=optimizer), **(phase or {}))

    with hint(
        "pass averaging = WeightAveraging({}) to TrainPhase(callbacks=[averaging]) instead, and call "
        "averaging.apply(graph) afterwards"
    ):
        with_optimizer(use_ema=True)
    averaging, given = aa.WeightAveraging(0.99), graph(line())
    phase = aa.TrainPhase("train", data="all", losses=[LOSS], callbacks=[averaging])
    assert given.run(phase, progress="none").loss.size
    averaging.apply(given)
    with hint("leave it out: averages do not replace trained weights here"):
        with_optimizer(use_ema=True, ema_overwrite_frequency=5)
    assert with_optimizer()
    with hint("write TrainPhase(accumulate={}) instead"):
        with_optimizer(gradient_accumulation_steps=2)
    phase = aa.TrainPhase("train", data="all", losses=[LOSS], batch_size=6, accumulate=2)
    assert graph(line()).run(phase, progress="none").loss.size
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    with hint("pass the inner optimizer: Optimizer(optimizer.inner_optimizer)"):
        trained(graph(line(), optimizer=aa.Optimizer(optimizer)))
    assert trained(graph(line(), optimizer=aa.Optimizer(optimizer.inner_optimizer)))
    with hint("leave it out: losses are not scaled here"):
        with_optimizer(loss_scale_factor=2.0)
    assert with_optimizer()
    with hint("write Optimizer(..., clip_norm={}) instead"):
        with_optimizer(global_clipnorm=0.5)
    assert trained(graph(line(), optimizer=aa.Optimizer(keras.optimizers.SGD, lr=0.1, clip_norm=0.5)))


def test_optimizer_objects(hint: Any) -> None:
    def with_optimizer(*arguments: Any, **settings: Any) -> Any:
        return trained(graph(line(), optimizer=aa.Optimizer(*arguments, **settings)))

    optimizer = keras.optimizers.SGD(0.1)
    with hint("pass them to {}(...), or pass its class: Optimizer({}, lr=..., {}=...)"):
        with_optimizer(optimizer, momentum=0.9)
    assert with_optimizer(keras.optimizers.SGD(0.1, momentum=0.9))
    assert trained(graph(line(), optimizer=aa.Optimizer(keras.optimizers.SGD, lr=0.1, momentum=0.9)))
    optimizer.build([keras.Variable(np.ones(3, "float32"))])
    with hint("pass a new one: Optimizer(type(optimizer).from_config(optimizer.get_config()))"):
        with_optimizer(optimizer)
    new = aa.Optimizer(type(optimizer).from_config(optimizer.get_config()))
    assert trained(graph(line(), optimizer=new))


def test_batches_come_first(hint: Any) -> None:
    with hint("leave batch_axis out, or wrap the model"):
        graph(layers.SimpleRNN(1), ROWS, batch_axis=1).build()
    assert trained(graph(layers.SimpleRNN(1), ROWS))  # without batch_axis


def test_states_of_layers(hint: Any) -> None:
    with hint("create it with stateful=False, or train the model with its framework's own loop"):
        trained(graph(keras.Sequential([layers.SimpleRNN(1, stateful=True)]), ROWS))
    assert trained(graph(keras.Sequential([layers.SimpleRNN(1, stateful=False)]), ROWS))


@pytest.mark.filterwarnings("ignore:Layer 'lambda':UserWarning")  # Keras says that it drops the mask
def test_masks_of_outputs(hint: Any) -> None:
    def masking(*more: Any) -> Any:
        return graph(keras.Sequential([layers.Embedding(5, 1, mask_zero=True), *more]), TOKENS)

    def mean_of_rest(outputs: Any, targets: Any) -> Any:
        return ops.mean(ops.square(outputs[:, 1:, 0] - targets))

    with hint(
        "end the model with a layer that drops the mask, layers.Lambda(ops.copy), and ignore positions in a custom "
        "loss; or return one vector for each sample"
    ):
        trained(masking(), aa.AppliedLoss(mean_of_rest, on="net"))
    assert trained(masking(layers.Lambda(ops.copy)), aa.AppliedLoss(mean_of_rest, on="net"))
    assert trained(masking(layers.GlobalAveragePooling1D()))


class Plain(keras.Model):
    """A model that Keras trains as any other."""

    def __init__(self) -> None:
        super().__init__()
        self.line = layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.line(x)


class Own(Plain):
    """A model that says itself how it is trained."""

    def train_step(self, data: Any) -> Any:
        return {"loss": ops.mean(self(data[0]))}


def test_models_that_train_themselves(hint: Any) -> None:
    model = Own()
    nodes = [aa.ModelNode(label, own, DATA.reference()) for label, own in (("own", model), ("net", line()))]
    both = aa.ModelGraph(nodes, "sgd")
    losses = [LOSS, aa.AppliedLoss("mse", on="own")]
    with hint("leave it out, or train the model with its framework's own loop and freeze the node: graph.freeze({})"):
        trained(both, *losses)
    both.freeze("own")
    assert trained(both, LOSS)
    assert trained(graph(Plain()))


def test_steps_that_are_compiled(hint: Any) -> None:
    def untraceable(outputs: Any, targets: Any) -> Any:
        squares = ops.mean(ops.square(outputs - targets))
        return squares if float(squares) >= 0 else -squares

    with hint("see the error above this one, or set compile='off'"):
        trained(graph(line()), aa.AppliedLoss(untraceable, on="net"), compile="steps")
    assert trained(graph(line()), aa.AppliedLoss(untraceable, on="net"), compile="off")


@pytest.mark.across
def test_the_framework_of_keras(hint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jax")  # which the NumPy backend of Keras imports
    with hint("KERAS_BACKEND makes Keras compute with {} here") as printed, monkeypatch.context() as patch:
        patch.setattr("anyaccel.registry._registry", [Registry(NumpyBackend, lambda: ())])
        with pytest.raises(NoBackendError) as caught:
            graph(line()).build()
        printed.text = str(caught.value)
    script = "import keras; print('computes with', keras.config.backend())"
    environment = {**os.environ, "KERAS_BACKEND": "numpy"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=True)
    assert "computes with numpy" in done.stdout and keras.config.backend() in str(caught.value)


def test_optimizers_of_several(hint: Any) -> None:
    optimizers = keras.optimizers
    if not hasattr(optimizers, "MultiOptimizer"):
        pytest.skip("this Keras has no MultiOptimizer")
    rates = optimizers.OptimizerMap(optimizers.SGD(0.1))
    rates[".*bias"] = optimizers.SGD(0.01)
    with hint(
        "pass one of the inner optimizers, and set other rates or decays with groups=, or set optimizers on nodes"
    ):
        trained(graph(line(), optimizer=aa.Optimizer(optimizers.MultiOptimizer(rates))))
    groups = {"*bias": {"lr": 0.01}}
    assert trained(graph(line(), optimizer=aa.Optimizer(optimizers.SGD, lr=0.1, groups=groups)))
    assert trained(aa.ModelGraph([aa.ModelNode("net", line(), DATA.reference(), optimizer=optimizers.SGD(0.1))]))


class Bare(keras.optimizers.SGD):
    """An optimizer whose constructor does not take what get_config gives."""

    def __init__(self) -> None:
        super().__init__(0.1)


class Settled(keras.optimizers.SGD):
    def __init__(self, learning_rate: Any = 0.1, **settings: Any) -> None:
        super().__init__(learning_rate, **settings)


def test_optimizers_of_the_users_own(hint: Any) -> None:
    with hint("let its constructor accept the keys of get_config(), such as learning_rate and name, or **settings"):
        trained(graph(line(), optimizer=aa.Optimizer(Bare())))
    assert Settled().get_config() and trained(graph(line(), optimizer=aa.Optimizer(Settled())))


class Demanding(keras.optimizers.SGD):
    """Cannot be made from what its `get_config` gives."""

    def __init__(self, wanted: Any, **settings: Any) -> None:
        super().__init__(**settings)


def test_optimizers_that_are_objects(hint: Any) -> None:
    optimizers = keras.optimizers

    def run(optimizer: Any) -> Any:
        return trained(graph(line(), optimizer=optimizer)).loss.size

    with hint("pass them to {}(...), or pass its class: Optimizer({}, lr=..., {}=...)"):
        run(aa.Optimizer(optimizers.SGD(0.1), momentum=0.9))
    assert run(aa.Optimizer(optimizers.SGD(0.1, momentum=0.9)))
    assert run(aa.Optimizer(optimizers.SGD, lr=0.1, momentum=0.9))
    optimizer, model = optimizers.SGD(0.1), line()
    model.compile(optimizer, "mse")
    model.fit(X, X[:, :1], verbose=0)
    with hint("pass a new one: Optimizer(type(optimizer).from_config(optimizer.get_config()))"):
        run(aa.Optimizer(optimizer))
    assert run(aa.Optimizer(type(optimizer).from_config(optimizer.get_config())))
    with hint("let its constructor accept the keys of get_config(), such as learning_rate and name, or **settings"):
        run(aa.Optimizer(Demanding(3, learning_rate=0.1)))
    assert optimizers.SGD(0.1).get_config()["learning_rate"] and run(aa.Optimizer(optimizers.SGD(0.1)))
    with hint("pass the inner optimizer: Optimizer(optimizer.inner_optimizer)"):
        run(optimizers.LossScaleOptimizer(optimizers.SGD(0.1)))
    optimizer = optimizers.LossScaleOptimizer(optimizers.SGD(0.1))
    assert run(aa.Optimizer(optimizer.inner_optimizer))
