"""Keras models on several devices: copies, what they share, which parameters are switched off; and what is refused."""

from __future__ import annotations

import keras
import pytest

from anyaccel.device import Device
from anyaccel.errors import CapabilityError
from anyaccel_distributed.device_replicas import DeviceReplicas
from anyaccel_torch import TorchBackend


def test_models_that_share_a_layer_are_refused() -> None:
    shared = keras.layers.Dense(3)
    models = [keras.Sequential([keras.layers.Input((3,)), shared]) for _ in range(2)]
    with pytest.raises(CapabilityError, match=r"models that share parameters cannot be copied.*combine the models"):
        TorchBackend().required(DeviceReplicas).copy_models(models, Device("cpu"))


def test_parameters_that_are_switched_off_stay_so() -> None:
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(3)])
    next(model.parameters()).requires_grad_(False)
    (copied,) = TorchBackend().required(DeviceReplicas).copy_models([model], Device("cpu"))
    assert (
        [p.requires_grad for p in copied.parameters()] == [p.requires_grad for p in model.parameters()] == [False, True]
    )
