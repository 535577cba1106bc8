"""Groups of parameters and averages of weights beside Keras's: several optimizers, and `use_ema`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import anyaccel as aa

keras: Any = pytest.importorskip("keras", reason="Keras is not installed")
if keras.backend.backend() != "tensorflow":
    pytest.skip("Keras runs on another framework in this process", allow_module_level=True)

X = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
Y = np.tanh(X[:, :1] - X[:, 1:2]).astype("float32")
BATCH, EPOCHS = 8, 3


def mlp() -> Any:
    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])


def by_hand(update: Any) -> tuple[Any, list[Any]]:
    """The model, and its weights after each step."""
    net, weights = mlp(), []
    for i in [*range(0, 32, BATCH)] * EPOCHS:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((net(X[i : i + BATCH]) - Y[i : i + BATCH]) ** 2)
        update(tape.gradient(loss, net.trainable_variables), net.trainable_variables)
        weights.append(net.get_weights())
    return net, weights


def train(optimizer: aa.Optimizer, callbacks: Any = (), compile_mode: str = "auto") -> Any:
    data, net = aa.FeatureSet.from_dict("data", {"x": X, "y": Y}, ["x"], ["y"]), mlp()
    graph = aa.ModelGraph([aa.ModelNode("net", net, data.reference())], optimizer)
    settings: Any = {"sampler": aa.SimpleSampler(BATCH), "epochs": EPOCHS, "callbacks": callbacks}
    losses = [aa.AppliedLoss("mse", on="net")]
    phase = aa.TrainPhase("t", data=data, losses=losses, compile=compile_mode, **settings)
    aa.Experiment("e", graph, progress="none").run_phase(phase)
    return graph, net


def assert_close(actual: Any, expected: Any) -> None:
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("compile_mode", ["auto", "off"])
def test_groups_by_name_and_predicate_are_optimizers_of_their_own(compile_mode: str) -> None:
    groups = {"*bias": {"lr": 0.02}, (lambda name, w: w.shape[-1] == 1): {"lr": 0.2}}
    rates = {(4, 8): 0.1, (8,): 0.02, (8, 1): 0.2, (1,): 0.02}
    optimizers = {shape: keras.optimizers.SGD(rate, momentum=0.9) for shape, rate in rates.items()}

    def update(gradients: Any, variables: Any) -> None:
        for gradient, variable in zip(gradients, variables, strict=True):
            optimizers[tuple(variable.shape)].apply_gradients([(gradient, variable)])

    _, net = train(aa.Optimizer("sgd", lr=0.1, momentum=0.9, groups=groups), compile_mode=compile_mode)
    assert_close(net.get_weights(), by_hand(update)[1][-1])


def test_averages_of_steps_and_of_epochs() -> None:
    moving, mean = aa.WeightAveraging(0.8), aa.WeightAveraging()
    graph, net = train(aa.Optimizer("sgd", lr=0.1), [moving, mean])
    optimizer = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.8)

    def update(gradients: Any, variables: Any) -> None:
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    other, steps = by_hand(update)
    average = steps[0]
    for weights in steps[1:]:
        average = [0.8 * kept + 0.2 * now for kept, now in zip(average, weights, strict=True)]
    with moving.applied(graph):
        assert_close(net.get_weights(), average)
    with mean.applied(graph):
        assert_close(net.get_weights(), [np.mean(values, axis=0) for values in zip(*steps[3::4], strict=True)])
    assert_close(net.get_weights(), steps[-1])
    optimizer.finalize_variable_values(other.trainable_variables)  # Keras's own average, which begins the same way
    assert_close(other.get_weights(), average)
