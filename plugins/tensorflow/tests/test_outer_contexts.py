"""Contexts around a phase: scopes of devices are left, recorded functions are refused, the rest is obeyed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import anyaccel as aa
from anyaccel.errors import PhaseError

keras = pytest.importorskip("keras")
if keras.backend.backend() != "tensorflow":
    pytest.skip("Keras runs on another framework", allow_module_level=True)

X = np.random.default_rng(0).normal(size=(64, 6)).astype("float32")
DATA = aa.FeatureSet.from_dict("d", {"x": X, "y": 2 * X[:, :1]}, ["x"], ["y"])


def net() -> Any:
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(1, kernel_initializer="zeros", dtype="float32")])


def run(model: Any) -> tuple[Any, np.ndarray]:
    graph = aa.ModelGraph([aa.ModelNode("net", model, DATA.reference())], aa.Optimizer("sgd", lr=0.1))
    losses, experiment = [aa.AppliedLoss("mse", on="net")], aa.Experiment("e", graph, progress="none")
    phase = aa.TrainPhase("t", data="all", losses=losses, sampler=aa.SimpleSampler(16), epochs=3)
    results = experiment.run_phase(phase)
    return results, experiment.run_phase(aa.EvalPhase("v", data="all", outputs="net")).prediction("net")


def keras_fit() -> tuple[list[float], np.ndarray]:
    model = net()
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model.fit(X, 2 * X[:, :1], 16, 3, shuffle=False, verbose=0).history["loss"], model.predict(X, verbose=0)


@contextmanager
def changed(write: Callable[[Any], object], value: Any, before: Any) -> Iterator[None]:
    write(value)
    try:
        yield
    finally:
        write(before)


CONTEXTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "no context": nullcontext,
    "a device": lambda: tf.device(tf.config.list_logical_devices("CPU")[-1].name),
    "a tape": lambda: tf.GradientTape(persistent=True),
    "functions run eagerly": lambda: changed(tf.config.run_functions_eagerly, True, False),
    "a strategy": lambda: tf.distribute.OneDeviceStrategy("CPU:0").scope(),
    "a policy of Keras": lambda: changed(keras.config.set_dtype_policy, "mixed_bfloat16", "float32"),
    "floats of Keras": lambda: changed(keras.config.set_floatx, "float64", "float32"),
}


@pytest.mark.parametrize("context", CONTEXTS)
def test_a_phase_computes_as_keras_fit_outside_of_the_context(context: str) -> None:
    """In a scope of another device, an evaluation ended with TensorFlow's own error: tensors on conflicting devices."""
    losses, outputs = keras_fit()
    model = net()
    with CONTEXTS[context]():
        results, predicted = run(model)
    assert np.allclose(results.loss, losses, rtol=1e-5) and np.allclose(predicted, outputs, atol=1e-5)


@pytest.mark.parametrize("recorded", ["a graph", "a function"])
def test_a_phase_that_would_be_recorded_is_refused(recorded: str) -> None:
    model = net()

    def inside() -> None:
        with pytest.raises(PhaseError, match=r"inside a tf\.function or a tf\.Graph.*Hint: run it outside"):
            run(model)

    if recorded == "a graph":
        with tf.Graph().as_default():
            inside()
    else:
        tf.function(inside, autograph=False)()
    assert np.allclose(run(model)[0].loss, keras_fit()[0], rtol=1e-5)


def test_a_model_with_variables_on_several_devices_is_refused() -> None:
    devices = [device.name for device in tf.config.list_logical_devices("CPU")]
    if len(devices) < 2:
        pytest.skip("needs two devices")
    with tf.distribute.MirroredStrategy(devices[:2]).scope():
        model = net()
    with pytest.raises(PhaseError, match=r"created its variables on several devices; create it outside"):
        run(model)
