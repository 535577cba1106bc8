"""Mistakes of a first day with a model of Keras on TensorFlow: what is said, and that obeying its hint works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import anyaccel as aa

if keras.backend.backend() != "tensorflow":
    pytest.skip(f"Keras runs on {keras.backend.backend()} in this process", allow_module_level=True)

RNG = np.random.default_rng(0)
X, CLASSES = RNG.standard_normal((60, 4)).astype("float32"), np.arange(60) % 3


def net(size: int = 4) -> Any:
    return keras.Sequential([keras.Input((size,)), layers.Dense(3)])


class Net(keras.Model):
    """A layer, called by `call`, which subclasses write wrongly."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = layers.Dense(3)

    def call(self, x: Any) -> Any:
        return self.layer(x)


def net_with(call: Callable[..., Any]) -> Any:
    return type("Mine", (Net,), {"call": call})()


def frozen() -> Any:
    model = net()
    model.trainable = False
    return model


def data(*features: str) -> aa.FeatureSet:
    names = list(features or ("x",))
    return aa.FeatureSet.from_dict("data", {**dict.fromkeys(names, X), "y": CLASSES}, names, ["y"])


def run(model: Any, optimizer: Any = "adam", features: Any = None, **settings: Any) -> Any:
    feed = data().reference() if features is None else features
    losses = [aa.AppliedLoss("cross_entropy", on="net")]
    graph = aa.ModelGraph([aa.ModelNode("net", model, feed)], optimizer)
    phase = aa.TrainPhase("t", data="all", losses=losses, **settings)
    return aa.Experiment("e", graph, progress="none").run_phase(phase)


def with_two_inputs() -> Any:
    two = data("a", "b")
    return run(net_with(lambda self, u, v: self.layer(u + v)), features=[two.reference("a"), two.reference("b")])


ROWS: dict[str, tuple[Callable[[], Any], str, Callable[[], Any]]] = {
    "the class of a model": (lambda: run(Net), r"is the class Net\. Hint: create one: Net\(", lambda: run(Net())),
    "no return": (
        lambda: run(net_with(lambda self, x: None)),
        r"the model returned None.*Hint: end its forward, call or __call__ with `return",
        lambda: run(net_with(lambda self, x: self.layer(x))),
    ),
    "an attribute misspelt in call": (
        lambda: run(net_with(lambda self, x: self.layr(x))),
        r"node 'net': Mine raised AttributeError in <lambda>.*'layr'\. Hint: fix the model's code",
        lambda: run(net_with(lambda self, x: self.layer(x))),
    ),
    "an input too few": (
        lambda: run(net_with(lambda self, u, v: self.layer(u))),
        r"missing a required argument: 'v'\. Hint: pass every argument of its call: ModelNode\(label, model, \[",
        with_two_inputs,
    ),
    "a layer of another size": (
        lambda: run(net(5)),
        r"node 'net' does not accept float32\[4\] from data\.x.*Hint: correct the sizes of the model",
        lambda: run(net(4)),
    ),
    "the mean out of call": (
        lambda: run(net_with(lambda self, x: tf.reduce_mean(self.layer(x)))),
        r"returns \[\] for a batch of 2.*Hint: keep the batch as the first axis",
        lambda: run(net_with(lambda self, x: self.layer(x))),
    ),
    "a model that is not trainable": (
        lambda: run(frozen()),
        r"nothing to train: net \(no parameters\)\. Hint: use a model with trainable parameters",
        lambda: run(net()),
    ),
    "an optimizer of Keras that scales losses": (
        lambda: run(net(), keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())),
        r"has inner_optimizer.*Hint: pass the inner optimizer: Optimizer\(optimizer\.inner_optimizer\)",
        lambda: run(net(), keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()).inner_optimizer),
    ),
    "a callback of Keras": (
        lambda: run(net(), callbacks=[keras.callbacks.EarlyStopping()]),
        r"is not a Callback\. Hint: write anyaccel\.EarlyStopping\(\)",
        lambda: run(net(), validation="all", callbacks=[aa.EarlyStopping()]),
    ),
    "the class of a metric": (
        lambda: aa.Metric(keras.metrics.SparseCategoricalAccuracy),
        r"is not a metric.*Hint: create one: SparseCategoricalAccuracy\(\)",
        lambda: aa.Metric(keras.metrics.SparseCategoricalAccuracy()),
    ),
    "a dataset feeds a node": (
        lambda: aa.ModelNode("net", net(), tf.data.Dataset.from_tensor_slices((X, CLASSES))),
        r"an upstream of type \w+\. Hint: pass feature_set\.reference",
        lambda: aa.ModelNode("net", net(), data().reference()),
    ),
    "another name of TensorFlow": (
        lambda: aa.devices(framework="keras"),
        r"Hint: did you mean 'tensorflow'\?",
        lambda: aa.devices(framework="tensorflow"),
    ),
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.filterwarnings("ignore:.build:UserWarning")  # of Keras, for a call that returns None
def test_a_mistake_is_told_with_a_hint_that_helps(name: str) -> None:
    wrong, message, right = ROWS[name]
    with pytest.raises(aa.errors.AnyaccelError, match=f"(?s){message}"):
        wrong()
    right()
