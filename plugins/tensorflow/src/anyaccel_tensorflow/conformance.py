"""The subject of the conformance kit for TensorFlow; imported by `anyaccel conform tensorflow`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

from anyaccel.backend import Backend
from anyaccel_devtools.testing import Subject
from anyaccel_tensorflow.backend import TensorFlowBackend
from anyaccel_tensorflow.ops import TensorFlowOps


class TensorFlowSubject(Subject):
    """TensorFlow on the best device of this machine, with the models that every framework has."""

    @pytest.fixture(autouse=True)
    def compiled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Compile programs from the first step on, not in the middle of a test, when 0.2 seconds have passed."""
        monkeypatch.setattr(TensorFlowOps, "eager_seconds", 0.0)

    @pytest.fixture
    def backend(self) -> Backend:
        """Return the backend, which serves gpu and cpu."""
        return TensorFlowBackend()

    @pytest.fixture
    def new_tensor(self) -> Callable[[], Any]:
        """Create a tensor on the framework's default device."""
        return lambda: tf.zeros(3)

    @pytest.fixture
    def buffered_model(self) -> Callable[[], Any]:
        """Return a Keras model with batch normalization."""
        layers = keras.layers
        return lambda: keras.Sequential([layers.Dense(5), layers.BatchNormalization(), layers.Dense(3)])

    @pytest.fixture
    def tied_model(self) -> Callable[[], Any]:
        """Return a Keras model that calls one layer twice."""

        def make() -> Any:
            inputs, tied = keras.Input((4,)), keras.layers.Dense(4, "tanh")
            return keras.Model(inputs, keras.layers.Dense(3)(tied(tied(inputs))))

        return make

    @pytest.fixture
    def models_that_share(self) -> Callable[[], tuple[Any, Any]]:
        """Return two Keras models with one layer in common."""

        def make() -> tuple[Any, Any]:
            layer, other = keras.layers.Dense(5), keras.layers.Dense(3)
            return keras.Sequential([layer, keras.layers.Dense(3)]), keras.Sequential([layer, other])

        return make

    @pytest.fixture
    def custom_loss(self) -> Callable[[Any, Any], Any]:
        """Return a loss of TensorFlow."""
        return lambda outputs, targets: tf.reduce_mean(tf.square(outputs - targets))

    @pytest.fixture
    def parameter_free_model(self) -> Callable[[], Any]:
        """Return an activation of Keras."""
        return lambda: keras.layers.Activation("tanh")

    @pytest.fixture
    def keyword_model(self) -> Callable[[], Any]:
        """Return a model that takes two tensors and returns a dict of tensors."""
        return Difference

    @pytest.fixture
    def time_first_model(self) -> Callable[[], Any]:
        """Return a module of [time, batch, features]."""
        return RunningTotal

    @pytest.fixture
    def custom_step(self) -> Callable[..., Any]:
        """Return a step with a GradientTape."""
        return train_step

    @pytest.fixture
    def random_state(self) -> Callable[[], Any]:
        """Return the state of TensorFlow's global generator."""
        return lambda: tf.random.get_global_generator().state.numpy()


class Difference(tf.Module):  # type: ignore[misc]
    """The keyword_model."""

    def __call__(self, minuend: tf.Tensor, subtrahend: tf.Tensor) -> dict[str, Any]:
        """Return the difference, as `Subject.keyword_model` requires."""
        return {"difference": minuend - subtrahend, "parts": {"first": minuend}}


class RunningTotal(tf.Module):  # type: ignore[misc]
    """The time_first_model."""

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Return running totals, as `Subject.time_first_model` requires."""
        return tf.cumsum(x, 0)


def train_step(models: Any, batch: Any, optimizers: Any) -> dict[str, Any]:
    """Run a step for `Subject.custom_step`."""
    net = models["node"]
    with tf.GradientTape() as tape:
        outputs = net(batch["x"], training=True) if isinstance(net, keras.layers.Layer) else net(batch["x"])
        loss = tf.reduce_mean((outputs - batch["t"]) ** 2)
    gradients = tape.gradient(loss, net.trainable_variables)
    optimizers["node"].apply_gradients(zip(gradients, net.trainable_variables, strict=True))
    return {"loss": loss}
