"""Checks of the installed torch, beside machines that are made up."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from anyaccel.device import Device
from anyaccel.machine import Machine, SystemDevice
from anyaccel_devtools.doctor import HealthChecks, worst
from anyaccel_torch import TorchBackend
from anyaccel_torch.health_checks import architecture_check, machine_checks
from anyaccel_torch.installed_build import build_facts

CUDA = {"__version__": "2.13.0+cu130", "cuda": "13.0", "hip": "", "xpu": ""}
CPU = {**CUDA, "__version__": "2.13.0+cpu", "cuda": ""}
GPU = SystemDevice(kind="gpu", name="NVIDIA H100", vendor="nvidia")
SERVER = Machine(system="linux", devices=(GPU,), driver_versions={"nvidia": "580.65"}, cxx="/usr/bin/g++")


def status(machine, build):
    return {check.name: check.status for check in machine_checks(machine, build)}


def test_the_build_is_read_without_importing_torch():
    facts = build_facts()
    assert facts["__version__"] == torch.__version__
    assert facts["cuda"] == (torch.version.cuda or "") and facts["hip"] == (torch.version.hip or "")
    code = "import sys; from anyaccel_torch.installed_build import *; build_facts(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_cuda_build_beside_a_gpu_passes():
    assert worst(machine_checks(SERVER, CUDA)) == "PASS"
    assert set(status(SERVER, CUDA)) == {"torch for nvidia", "torch and the driver", "torch's compiled steps"}


def test_a_build_for_cpus_beside_a_gpu_fails():
    check = next(iter(machine_checks(SERVER, CPU)))
    assert check.message == "torch 2.13.0+cpu is built for CPUs alone, but this machine has NVIDIA H100"
    assert check.status == "FAIL" and "install a build for CUDA" in check.fix


def test_a_build_for_another_vendor_fails():
    machine = replace(SERVER, devices=(replace(GPU, vendor="amd", name="MI300X"),))
    check = next(iter(machine_checks(machine, CUDA)))
    assert (check.status, check.name) == (
        "FAIL",
        "torch for amd",
    ) and "is built for CUDA, but this machine has MI300X" in check.message
    assert status(machine, {**CPU, "hip": "6.4"})["torch for amd"] == "PASS"


def test_a_driver_that_is_too_old_fails():
    machine = replace(SERVER, driver_versions={"nvidia": "535.104.05"})
    assert status(machine, CUDA)["torch and the driver"] == "FAIL"
    assert status(machine, {**CUDA, "cuda": "12.8"})["torch and the driver"] == "PASS"


@pytest.mark.parametrize(("system", "fix"), [("linux", "g++"), ("darwin", "xcode-select"), ("win32", "Visual Studio")])
def test_compiled_steps_need_a_compiler(system, fix):
    check = next(iter(machine_checks(Machine(system=system), CPU)))
    assert (check.name, check.status) == ("torch's compiled steps", "WARN") and fix in check.fix


@pytest.mark.parametrize(
    ("needed", "built", "expected"),
    [
        ("sm_90", ["sm_80", "sm_90"], "PASS"),
        ("sm_89", ["sm_80"], "PASS"),  # a later minor version
        ("sm_120", ["sm_90", "compute_90"], "PASS"),  # made of intermediate code
        ("sm_120", ["sm_80", "sm_90"], "FAIL"),
        ("sm_70", ["sm_75", "sm_80"], "FAIL"),
    ],
)
def test_kernels_for_an_architecture(needed, built, expected):
    check = architecture_check(Device("gpu"), needed, built)
    assert check.status == expected
    if expected == "FAIL":
        assert check.message == f"gpu:0 needs {needed}, but this torch is built for {', '.join(built)}"


def test_the_backend_offers_these_checks():
    assert "torch's compiled steps" in {
        check.name for check in TorchBackend().required(HealthChecks).health_checks(SERVER)
    }
    assert list(TorchBackend().required(HealthChecks).device_checks(Device("cpu"))) == []
