"""Shared by the tests of Keras models; importing it skips the module unless Keras runs on torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from anyaccel.device import Device
from anyaccel.segment import Segment, TensorSpec
from anyaccel_torch.backend import TorchBackend

keras = pytest.importorskip("keras", reason="Keras is not installed")
if keras.config.backend() != "torch":
    pytest.skip(f"Keras runs on {keras.config.backend()} here", allow_module_level=True)

CPU = Device("cpu")
X = TensorSpec((3,), "float32")
Make = Callable[..., Segment]
ON_CPU = pytest.mark.usefixtures("keras_on_cpu")
Data = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
layers = keras.layers


def dropout_layers() -> list[Any]:
    """Dropout that draws from torch's generator, and, with a seed, from a state of its own."""
    return [layers.Dropout(0.3), layers.Dropout(0.3, seed=3)]


class Net(keras.Model):
    """Layers in attributes, lists and dicts, and a call without a training argument."""

    def __init__(self) -> None:
        super().__init__()
        self.first = layers.Dense(4, "tanh")
        self.hidden = [layers.Dense(4, "tanh"), *dropout_layers()]
        self.named = {"last": layers.Dense(1)}

    def call(self, x: Any) -> Any:
        x = self.first(x)
        for layer in self.hidden:
            x = layer(x)
        return self.named["last"](x)


def initialized(backend: TorchBackend, model: Any, *inputs: TensorSpec, seed: int = 0) -> Any:
    backend.infer(model, inputs or [X], seed)
    return model


def mixed_model() -> Any:
    return keras.Sequential([layers.Dense(4), layers.BatchNormalization(), *dropout_layers(), layers.Dense(1)])


def equal_states(a: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> bool:
    return a.keys() == second.keys() and all(np.array_equal(value, second[name]) for name, value in a.items())
