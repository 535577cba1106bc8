"""Listing, naming and describing devices; accelerators are replaced by recorded calls."""

from __future__ import annotations

import builtins
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from anyaccel.backend import Memory
from anyaccel.device import Device
from anyaccel_torch.backend import TorchBackend

CPU, GPU, META = Device("cpu"), Device("gpu"), Device("meta")


class OnMeta(TorchBackend):
    """torch's meta device stands in for another chip: its tensors have a device and no values."""

    kinds = ("meta",)


def fake_cuda(monkeypatch: pytest.MonkeyPatch, count: int = 2, hip: str | None = None) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.version, "cuda", None if hip else "13.0")
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: pytest.fail("CUDA was initialised"))


# -- devices ---------------------------------------------------------------------------------------------------------


def test_gpus_come_first_and_nothing_is_initialized(backend: TorchBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cuda(monkeypatch)
    assert list(backend.devices()) == [Device("gpu", 0), Device("gpu", 1), CPU]
    assert backend.unavailable_reason(Device("gpu", 1)) == ""
    assert backend.unavailable_reason(Device("gpu", 2)) == "torch sees 2 of this kind"


def test_listing_never_raises(backend: TorchBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1 / 0)
    monkeypatch.setattr(torch.xpu, "device_count", lambda: 1)
    assert list(backend.devices()) == [Device("xpu", 0), CPU]


def test_broken_torch_has_no_devices(backend: TorchBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def broken(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "torch":
            raise OSError("libtorch.so: undefined symbol\nmore")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", broken)
    assert list(backend.devices()) == []
    assert backend.unavailable_reason(CPU) == "torch cannot be imported: libtorch.so: undefined symbol"


@pytest.mark.parametrize(
    ("cuda", "device", "expected"),
    [
        (None, GPU, "is built without CUDA and ROCm"),
        ("13.0", GPU, "torch finds no driver, or the driver finds no device"),
        (None, Device("xpu"), "is built without XPU"),
        (None, Device("cpu", 1), "torch sees 1 of this kind"),
    ],
)
def test_unavailable_reason_says_why(
    backend: TorchBackend, monkeypatch: pytest.MonkeyPatch, cuda: str | None, device: Device, expected: str
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    assert expected in backend.unavailable_reason(device)


@pytest.mark.parametrize(("hip", "vendor", "identity"), [(None, "nvidia", "GPU-ab-12"), ("7.0", "amd", "ab-12")])
def test_device_info_of_a_gpu(
    backend: TorchBackend, monkeypatch: pytest.MonkeyPatch, hip: str | None, vendor: str, identity: str
) -> None:
    fake_cuda(monkeypatch, hip=hip)
    result = SimpleNamespace(name="H200", uuid="AB-12", total_memory=150)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: result)
    info = backend.device_info(GPU)
    assert (info.name, info.vendor, info.identity, info.memory_space) == ("H200", vendor, identity, identity)
    assert info.total_memory == 150


def test_device_info_of_the_cpu(backend: TorchBackend) -> None:
    info = backend.device_info(CPU)
    assert info.name and (info.vendor, info.memory_space) == ("", "host")
    assert info.total_memory == backend.required(Memory).memory(CPU).total > 2**20


# -- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "name"), [(CPU, "cpu"), (GPU, "cuda:0"), (Device("gpu", 1), "cuda:1"), (Device("xpu"), "xpu:0")]
)
def test_device_string_is_torchs(backend: TorchBackend, device: Device, name: str) -> None:
    assert backend.device_string(device) == name
    assert Device.parse(backend.native_device(device)) == device


def test_subclass_supports_another_chip() -> None:
    class Mps(TorchBackend):
        kinds = ("mps",)

    assert Mps().device_string(Device("mps")) == "mps:0"
    assert list(Mps().devices()) == []
    assert OnMeta().place(nn.Linear(2, 1), META).weight.is_meta


class Elsewhere(torch.Tensor):
    """Claims to be on another device."""

    where: ClassVar = torch.device("cuda")

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.where


def test_device_without_index_has_index_0(backend: TorchBackend) -> None:
    tensor = torch.zeros(1).as_subclass(Elsewhere)
    assert backend.device_of(tensor) == Device.parse("cuda") == Device.parse("gpu:0") == GPU


def test_model_on_mps_has_a_device(backend: TorchBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    for spelt in ("mps", "mps:0"):
        monkeypatch.setattr(Elsewhere, "where", torch.device(spelt))
        assert backend.device_of(torch.zeros(1).as_subclass(Elsewhere)) == Device("mps", 0)


def test_device_of_is_that_of_the_first_tensor(backend: TorchBackend) -> None:
    linear = nn.Linear(2, 1)
    assert backend.device_of(torch.zeros(1)) == CPU
    assert backend.device_of(linear) == CPU
    assert backend.device_of(nn.BatchNorm1d(2, affine=False)) == CPU
    assert backend.device_of(nn.ReLU()) is None
    assert backend.device_of(torch.optim.Adam(linear.parameters())) == CPU
    assert backend.device_of({"a": [nn.ReLU(), torch.zeros(1, device="meta")]}) == META
    assert backend.device_of("text") is None
