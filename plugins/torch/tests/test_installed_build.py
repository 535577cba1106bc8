"""The devices that torch is expected to have, beside machines that are made up, and beside torch itself."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from unittest import mock

import pytest

from anyaccel.backend import DeviceInfo
from anyaccel.device import Device
from anyaccel.machine import ExpectedDevices, Machine, SystemDevice
from anyaccel_torch import TorchBackend, installed_build

KINDS = ("gpu", "xpu", "cpu")
CPU, CUDA = {"__version__": "2.13.0+cpu"}, {"__version__": "2.13.0+cu130", "cuda": "13.0"}
ROCM = {"__version__": "2.13.0+rocm6.4", "hip": "6.4"}
H100 = SystemDevice(kind="gpu", name="NVIDIA H100", vendor="nvidia", nbytes=1 << 36, identity="GPU-1")
MI300 = SystemDevice(kind="gpu", name="MI300X", vendor="amd")
SERVER = Machine(devices=(H100, H100), visible=(H100,), driver_versions={"nvidia": "580.65"})


def expected(build, machine=SERVER, kinds=KINDS):
    with mock.patch.object(installed_build, "build_facts", lambda: build):
        return type("Chip", (TorchBackend,), {"kinds": kinds})().required(ExpectedDevices).expected_devices(machine)


def names(build, machine=SERVER, kinds=KINDS):
    found = expected(build, machine, kinds)
    return None if found is None else list(map(str, found))


def test_visible_gpus_come_first_with_what_the_driver_says() -> None:
    found = expected(CUDA)
    assert found is not None and list(found) == [Device("gpu"), Device("cpu")]
    assert found[Device("gpu")] == DeviceInfo("NVIDIA H100", "nvidia", "GPU-1", "GPU-1", 1 << 36)
    assert found[Device("cpu")].memory_space == "host"


def test_a_build_sees_the_gpus_of_its_vendor_alone() -> None:
    both = replace(SERVER, devices=(H100, MI300), visible=(H100, MI300))
    assert names(CPU, both) == ["cpu:0"]
    assert names(CUDA, both) == names(ROCM, both) == ["gpu:0", "cpu:0"]
    assert names(ROCM) == ["cpu:0"] and names(CUDA, Machine()) == ["cpu:0"]


@pytest.mark.parametrize(
    ("build", "machine", "kinds"),
    [
        (CUDA, replace(SERVER, driver_versions={"nvidia": "470.1"}), KINDS),  # torch may have no device
        ({**CPU, "xpu": "20250301"}, SERVER, KINDS),
        ({}, SERVER, KINDS),  # torch is not there, or not as its wheels are
        (CPU, SERVER, ("npu",)),
    ],
)
def test_what_is_not_certain_is_not_told(build, machine, kinds) -> None:
    assert names(build, machine, kinds) is None


def test_torch_has_the_devices_that_were_expected_of_it() -> None:
    code = (
        "import sys; from anyaccel_torch import TorchBackend; backend = TorchBackend(); before = backend.devices();"
        "reason = backend.unavailable_reason(before[-1].__class__('xpu')); early = 'torch' in sys.modules;"
        "import torch; late = backend.unavailable_reason(before[-1].__class__('xpu'));"
        "print(early, before == backend.devices(), *before, reason == late)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    words = done.stdout.split()
    assert words[:2] == ["False", "True"] and words[-2:] == ["cpu:0", "True"], done.stdout
