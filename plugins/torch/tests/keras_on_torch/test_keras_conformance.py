"""The conformance kit over Keras models that run on torch: all of it for sequential models, a sample for others."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from sampling import sampled

from anyaccel_devtools.testing import suite
from anyaccel_torch.conformance import TorchSubject, train_step

keras = pytest.importorskip("keras", reason="Keras is not installed")
if keras.config.backend() != "torch":
    pytest.skip(f"Keras runs on {keras.config.backend()} here", allow_module_level=True)

Make = Callable[[], Any]
layers = keras.layers


class Residual(keras.Model):
    """Layers in attributes and in a list, a call without a training argument, and lazy weights."""

    def __init__(self, rate: float = 0.5) -> None:
        super().__init__()
        self.first = layers.Dense(5, "tanh")
        self.others = [layers.Dense(5, "tanh"), layers.Dropout(rate), layers.BatchNormalization()]
        self.last = layers.Dense(3)

    def call(self, x: Any) -> Any:
        hidden = self.first(x)
        for layer in self.others:
            hidden = hidden + layer(hidden)
        return self.last(hidden)


class Keras(TorchSubject):
    """Sequential models with lazy weights."""

    @pytest.fixture
    def model(self) -> Make:
        return lambda: keras.Sequential([layers.Dense(5, "tanh"), layers.Dense(3)])

    @pytest.fixture
    def float64_model(self, model: Make) -> Make:
        """Less exact: on torch, Keras multiplies float64 matrices in float32."""
        return model

    @pytest.fixture
    def random_model(self) -> Make:
        return lambda: keras.Sequential([layers.Dense(8), layers.Dropout(0.5, seed=1), layers.Dense(3)])

    @pytest.fixture
    def dropout_free_model(self) -> Make:
        return lambda: keras.Sequential([layers.Dense(8), layers.Dropout(0.0), layers.Dense(3)])

    @pytest.fixture
    def buffered_model(self) -> Make:
        return lambda: keras.Sequential([layers.Dense(5), layers.BatchNormalization(), layers.Dense(3)])

    @pytest.fixture
    def tied_model(self) -> Make:
        """One layer in two places."""

        def make() -> Any:
            inputs, tied = keras.Input((4,)), layers.Dense(4, "tanh")
            return keras.Model(inputs, layers.Dense(3)(tied(tied(inputs))))

        return make

    @pytest.fixture
    def parameter_free_model(self) -> Make:
        return lambda: layers.Activation("tanh")

    @pytest.fixture
    def mutating_model(self) -> Make:
        """Keras itself never writes to inputs; a torch module inside may."""
        from torch import nn

        return lambda: keras.Sequential([layers.TorchModuleWrapper(nn.ELU(inplace=True)), layers.Dense(3)])


class Subclassed(Keras):
    """Subclassed models with everything in them."""

    random_model = pytest.fixture(lambda self: Residual)
    dropout_free_model = pytest.fixture(lambda self: lambda: Residual(rate=0.0))
    buffered_model = pytest.fixture(lambda self: lambda: Residual(rate=0.0))  # devices draw other numbers


class Holding(Keras):
    """torch modules that hold Keras layers."""

    @pytest.fixture
    def model(self) -> Make:
        from torch import nn

        return lambda: nn.Sequential(keras.Sequential([layers.Dense(5)]), nn.Tanh(), layers.Dense(3))

    @pytest.fixture
    def random_model(self) -> Make:
        from torch import nn

        return lambda: nn.Sequential(layers.Dense(8), layers.Dropout(0.5), layers.Dense(3))

    @pytest.fixture
    def dropout_free_model(self) -> Make:
        from torch import nn

        return lambda: nn.Sequential(layers.Dense(8), layers.Dropout(0.0), layers.Dense(3))

    buffered_model = pytest.fixture(lambda self: lambda: _holding(Residual(rate=0.0)))

    @pytest.fixture
    def custom_step(self) -> Callable[..., Any]:
        """Layer by layer: a torch module does not tell the Keras layers in it that this is training."""

        def step(models: Any, batch: Any, optimizers: Any) -> Any:
            return train_step({"node": partial(_in_training, models["node"])}, batch, optimizers)

        return step


def _in_training(net: Any, x: Any) -> Any:
    for layer in net:
        x = layer(x, training=True) if isinstance(layer, keras.Layer) else layer(x)
    return x


def _holding(model: Any) -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), model)


FURTHER = suite(Subclassed, "Subclassed") | suite(Holding, "Holding")
globals().update(sampled(suite(Keras, "Keras"), 9, 1) | sampled(FURTHER, 24))
