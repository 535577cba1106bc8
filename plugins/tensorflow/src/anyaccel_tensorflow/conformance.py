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
        """Programs compile from the first step on, not in the middle of a test, when 0.2 seconds have passed."""
        monkeypatch.setattr(TensorFlowOps, "eager_seconds", 0.0)

    @pytest.fixture
    def backend(self) -> Backend:
        """Serves gpu and cpu."""
        return TensorFlowBackend()

    @pytest.fixture
    def new_tensor(self) -> Callable[[], Any]:
        """On the framework's default device."""
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
        """One layer in two Keras models."""

        def make() -> tuple[Any, Any]:
            layer, other = keras.layers.Dense(5), keras.layers.Dense(3)
            return keras.Sequential([layer, keras.layers.Dense(3)]), keras.Sequential([layer, other])

        return make

    @pytest.fixture
    def custom_loss(self) -> Callable[[Any, Any], Any]:
        """Of TensorFlow."""
        return lambda outputs, targets: tf.reduce_mean(tf.square(outputs - targets))

    @pytest.fixture
    def parameter_free_model(self) -> Callable[[], Any]:
        """Return an activation of Keras."""
        return lambda: keras.layers.Activation("tanh")

    @pytest.fixture
    def keyword_model(self) -> Callable[[], Any]:
        """Two tensors in, a dict of tensors out."""
        return Difference

    @pytest.fixture
    def time_first_model(self) -> Callable[[], Any]:
        """Return a module of [time, batch, features]."""
        return RunningTotal

    @pytest.fixture
    def custom_step(self) -> Callable[..., Any]:
        """With a GradientTape."""
        return train_step

    @pytest.fixture
    def random_state(self) -> Callable[[], Any]:
        """Of TensorFlow's global generator."""
        return lambda: tf.random.get_global_generator().state.numpy()


class Difference(tf.Module):  # type: ignore[misc]
    """The keyword_model."""

    def __call__(self, minuend: tf.Tensor, subtrahend: tf.Tensor) -> dict[str, Any]:
        """As Subject.keyword_model."""
        return {"difference": minuend - subtrahend, "parts": {"first": minuend}}


class RunningTotal(tf.Module):  # type: ignore[misc]
    """The time_first_model."""

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """As Subject.time_first_model."""
        return tf.cumsum(x, 0)


def train_step(models: Any, batch: Any, optimizers: Any) -> dict[str, Any]:
    """As Subject.custom_step."""
    net = models["node"]
    with tf.GradientTape() as tape:
        outputs = net(batch["x"], training=True) if isinstance(net, keras.layers.Layer) else net(batch["x"])
        loss = tf.reduce_mean((outputs - batch["t"]) ** 2)
    gradients = tape.gradient(loss, net.trainable_variables)
    optimizers["node"].apply_gradients(zip(gradients, net.trainable_variables, strict=True))
    return {"loss": loss}
