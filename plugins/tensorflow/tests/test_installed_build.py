"""The devices that TensorFlow is expected to have, beside machines that are made up, and beside TensorFlow itself."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import tensorflow as tf

from anyaccel.backend import DeviceInfo
from anyaccel.machine import Machine, SystemDevice
from anyaccel_tensorflow import installed_build
from anyaccel_tensorflow.installed_build import TensorFlowExpectedDevices, build_flags, build_name, is_for_gpus

CUDA = {"is_cuda_build": True, "is_rocm_build": False}
ROCM = {"is_cuda_build": False, "is_rocm_build": True}
CPU = {"is_cuda_build": False, "is_rocm_build": False}
T4 = SystemDevice(kind="gpu", name="Tesla T4", vendor="nvidia")
LIBRARIES = {"nvidia-cudnn-cu12": "9.3"}
SERVER = Machine(devices=(T4, T4), visible=(T4,), version_of=lambda name: LIBRARIES.get(name, ""))


def expected_of_kind(kind: str, machine: Machine, flags: dict[str, bool]) -> list[DeviceInfo] | None:
    """The devices that a build with these flags is expected to have."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(installed_build, "build_flags", lambda: flags)
        return TensorFlowExpectedDevices(None).expected_of_kind(kind, machine)


def test_the_build_is_read_from_its_file() -> None:
    flags = build_flags()
    known = tf.sysconfig.get_build_info()
    assert {name: bool(known[name]) for name in flags} == flags and {"is_cuda_build", "is_rocm_build"} <= set(flags)
    assert is_for_gpus(flags) == tf.test.is_built_with_gpu_support()
    assert build_name(flags) in (f"TensorFlow, {tf.__version__},", "TensorFlow")


def test_a_build_that_cannot_be_read_is_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(installed_build, "find_spec", lambda name: None)
    assert build_flags() == {}
    monkeypatch.setattr(installed_build, "installed_version", lambda name: "")
    assert build_name({}) == "TensorFlow"


def test_gpus_are_expected_where_build_drivers_and_libraries_are_there() -> None:
    assert expected_of_kind("gpu", SERVER, CUDA) == [DeviceInfo("Tesla T4", "nvidia")]
    for build, machine in ((CPU, SERVER), (CUDA, Machine()), (ROCM, SERVER)):
        assert expected_of_kind("gpu", machine, build) == []
        assert [info.memory_space for info in expected_of_kind("cpu", machine, build) or ()] == ["host"]


def test_what_is_not_certain_is_not_told() -> None:
    assert expected_of_kind("gpu", replace(SERVER, version_of=lambda name: ""), CUDA) is None
    assert expected_of_kind("gpu", replace(SERVER, devices=(replace(T4, vendor="amd"),)), ROCM) is None
    assert expected_of_kind("cpu", SERVER, {}) is None
    assert expected_of_kind("npu", SERVER, CUDA) is None


def test_tensorflow_has_the_devices_that_were_expected_of_it() -> None:
    code = (
        "import sys; from anyaccel_tensorflow import TensorFlowBackend as B; from anyaccel import Device; b = B();"
        "before = b.devices(), b.unavailable_reason(Device('gpu')); early = 'tensorflow' in sys.modules;"
        "import tensorflow; print(early, before == (b.devices(), b.unavailable_reason(Device('gpu'))), *before[0])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    words = done.stdout.split()
    assert words[:2] == ["False", "True"] and words[-1] == "cpu:0", done.stdout
