"""NVIDIA GPUs, as a module that answers like `pynvml` has them."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from anyaccel.adapter.device_description import start_nvml
from anyaccel_jax.nvidia_gpus import NvidiaGpu, visible_nvidia_gpus

A, B = NvidiaGpu("Card", "GPU-aaaa-1", 8000), NvidiaGpu("Card", "GPU-bbbb-2", 9000)


class FakeNvml(ModuleType):
    class NVMLError(Exception):
        pass

    def __init__(self):
        super().__init__("pynvml")
        self.users, self.broken = 0, ()
        self.cards = [A, B]

    def _count(self, name, change):
        if name in self.broken:
            raise self.NVMLError(name)
        self.users += change

    def nvmlInit(self):
        self._count("nvmlInit", 1)

    def nvmlShutdown(self):
        self._count("nvmlShutdown", -1)

    def nvmlDeviceGetCount(self):
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index):
        self._count(index, 0)
        return self.cards[index]

    def nvmlDeviceGetName(self, handle):
        return handle.name

    def nvmlDeviceGetUUID(self, handle):
        return handle.uuid

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(total=handle.total_memory)


@pytest.fixture
def nvml(monkeypatch):
    module = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return module


def test_gpus_are_read_from_the_driver_and_nvml_is_stopped(nvml):
    assert visible_nvidia_gpus() == [A, B] and nvml.users == 0
    nvml.broken = (0, "nvmlShutdown")
    assert visible_nvidia_gpus() == [B], "neither a broken card nor an NVML that is stopped already is an error"


@pytest.mark.parametrize(
    ("visible", "expected"),
    [("1", [B]), ("1,0", [B, A]), ("", []), ("-1", []), ("0,9,1", [A]), ("GPU-bbbb", [B]), ("GPU-", []), ("0,0", [A])],
)
def test_cuda_visible_devices_selects_and_orders_them(nvml, monkeypatch, visible, expected):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert visible_nvidia_gpus() == expected


def test_without_a_driver_or_the_package_there_is_no_gpu(nvml, monkeypatch):
    nvml.broken = ("nvmlInit",)
    assert start_nvml() is None and visible_nvidia_gpus() == []
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert start_nvml() is None and visible_nvidia_gpus() == []
