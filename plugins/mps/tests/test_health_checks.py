"""Checks of a Mac, on machines that are made up."""

from __future__ import annotations

from anyaccel.device import Device
from anyaccel.machine import Machine, SystemDevice
from anyaccel_devtools.doctor import HealthChecks
from anyaccel_mps import MpsBackend

APPLE = SystemDevice(kind="mps", name="Apple GPU", vendor="apple")


def checks(**facts):
    return {
        check.name: check
        for check in MpsBackend().required(HealthChecks).health_checks(Machine(system="darwin", **facts))
    }


def test_float64_is_warned_of_on_an_apple_gpu():
    check = checks(devices=(APPLE,))["float64 on mps"]
    assert check.status == "WARN" and "data.cast({'x': 'float32'})" in check.fix
    assert checks(devices=(APPLE,))["operators on mps"].status == "PASS"


def test_falling_back_to_the_cpu_is_warned_of():
    check = checks(devices=(APPLE,), environment={"PYTORCH_ENABLE_MPS_FALLBACK": "1"})["operators on mps"]
    assert check.status == "WARN" and check.fix.startswith("unset PYTORCH_ENABLE_MPS_FALLBACK")


def test_elsewhere_there_is_nothing_to_check():
    assert checks() == {} and list(MpsBackend().required(HealthChecks).device_checks(Device("mps"))) == []
