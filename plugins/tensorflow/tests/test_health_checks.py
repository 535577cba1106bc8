"""Checks of the installed TensorFlow, beside machines that are made up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anyaccel.machine import Machine, SystemDevice
from anyaccel_devtools.doctor import HealthChecks
from anyaccel_tensorflow import TensorFlowBackend

NVIDIA = SystemDevice(kind="gpu", name="NVIDIA H100", vendor="nvidia")
AMD = SystemDevice(kind="gpu", name="MI300X", vendor="amd")
CUDA = {"tensorflow": "2.21.0", "nvidia-cudnn-cu12": "9.3"}


def machine(packages, device=NVIDIA, system="linux"):
    return Machine(system=system, devices=(device,), version_of=lambda name: packages.get(name, ""))


def check(given):
    (found,) = TensorFlowBackend().required(HealthChecks).health_checks(given)
    return found


@pytest.mark.parametrize(
    ("given", "status", "message", "fix"),
    [
        (machine(CUDA), "PASS", "tensorflow 2.21.0, nvidia-cudnn-cu12 9.3", ""),
        (
            machine({"tensorflow-cpu": "2.21.0"}),
            *("FAIL", "tensorflow-cpu 2.21.0 is built without support for NVIDIA H100", '"tensorflow[and-cuda]"'),
        ),
        (machine({"tensorflow": "2.21.0"}), "WARN", "CUDA's packages are not installed", '"tensorflow[and-cuda]"'),
        (machine(CUDA, system="win32"), "FAIL", "no GPU on Windows", "WSL 2"),
        (machine({"tensorflow": "2.21.0"}, AMD), "FAIL", "without support for MI300X", "tensorflow-rocm"),
        (machine({"tensorflow-rocm": "2.18"}, AMD), "PASS", "tensorflow-rocm 2.18", ""),
    ],
)
def test_builds(given, status, message, fix):
    found = check(given)
    assert (found.status, message in found.message, fix in found.fix) == (status, True, True), found


def test_no_gpu_is_nothing_to_check():
    assert list(TensorFlowBackend().required(HealthChecks).health_checks(replace(machine(CUDA), devices=()))) == []
