"""What the distribution adds to the backend of torch: models that it divides, and hints that name its tools."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from anyaccel.device import Device
from anyaccel.errors import CapabilityError, MoveError
from anyaccel_offload import OffloadModels, OffloadRequest
from anyaccel_offload.torch import cpu_offload, load_checkpoint_and_dispatch, remove_offload
from anyaccel_torch import TorchBackend, big_models

CPU = Device("cpu")


def test_a_device_map_of_a_keras_model_is_refused() -> None:
    """Its blocks would have no parameters: Keras keeps all of them in one place."""
    keras = pytest.importorskip("keras")
    if keras.backend.backend() != "torch":
        pytest.skip(f"Keras runs on {keras.backend.backend()} in this process")
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(3)])
    request = OffloadRequest(device_map={"": "cpu"}, offload="cpu")
    with pytest.raises(CapabilityError, match=r"this Sequential is a Keras model.*Hint: leave device_map"):
        TorchBackend().required(OffloadModels).plan_offload(model, CPU, request)


def test_placing_a_meta_model_says_how_to_load_it(tmp_path: Path) -> None:
    backend, model, saved = TorchBackend(), nn.Linear(1, 1, device="meta"), nn.Linear(1, 1)
    with pytest.raises(MoveError, match=r"load_checkpoint_and_dispatch.* of anyaccel_torch\.big_models"):
        backend.place(model, CPU)
    save_file(saved.state_dict(), tmp_path / "model.safetensors")
    load = big_models.load_checkpoint_and_dispatch  # as the hint says
    assert load is load_checkpoint_and_dispatch
    loaded = load(model, tmp_path / "model.safetensors", device_map={"": "cpu"})
    assert backend.device_of(backend.place(loaded, CPU)) == CPU
    assert torch.equal(loaded.weight, saved.weight)


def test_the_backend_knows_an_offloaded_module_until_it_is_an_ordinary_one_again() -> None:
    backend, model = TorchBackend(), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    offloaded = cpu_offload(model, "cpu")
    assert backend.device_of(offloaded) == CPU and backend.place(offloaded, CPU) is offloaded
    with pytest.raises(CapabilityError, match=r"is offloaded and computes on cpu:0, not on meta.*remove_offload"):
        backend.place(offloaded, Device("meta"))
    assert remove_offload(offloaded) is model
    assert next(backend.place(model, Device("meta")).parameters()).is_meta
