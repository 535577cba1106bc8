"""The installed build of TensorFlow, read from its files, and the devices that it will have; it is not imported."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from anyaccel.adapter.device_description import cpu_info
from anyaccel.backend import DeviceInfo
from anyaccel.machine import ExpectedDevices, Machine, installed_version

CUDA_LIBRARIES = ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12")
"""Packages of which one has the libraries for NVIDIA GPUs, where the system itself has none."""
CPU_BUILDS = ("tensorflow-cpu", "tensorflow-cpu-aws", "intel-tensorflow")
"""Packages that hold TensorFlow built for CPUs alone."""
_VENDORS = {"is_cuda_build": "nvidia", "is_rocm_build": "amd"}


def build_flags() -> dict[str, bool]:
    """Return `is_cuda_build`, `is_rocm_build` and others, as in `tf.sysconfig.get_build_info`; empty if not found."""
    try:
        spec = find_spec("tensorflow")
        folders = list(spec.submodule_search_locations or ()) if spec is not None else []
        text = Path(folders[0], "python/platform/build_info.py").read_text("utf-8") if folders else ""
    except (ImportError, OSError):
        return {}
    return {name: value == "True" for name, value in re.findall(r"'(is_\w+)', (True|False)", text)}


def is_for_gpus(flags: Mapping[str, bool]) -> bool:
    """Whether a build uses GPUs."""
    return any(map(flags.get, _VENDORS))


def build_name(flags: Mapping[str, bool]) -> str:
    """Return name and version of the installed package, if it is a known one."""
    names = ("tensorflow", "tensorflow-rocm") if is_for_gpus(flags) else (*CPU_BUILDS, "tensorflow")
    version = next(filter(None, map(installed_version, names)), "")
    return f"TensorFlow, {version}," if version else "TensorFlow"


class TensorFlowExpectedDevices(ExpectedDevices):
    """The devices that the installed build of TensorFlow will see on a machine."""

    def expected_of_kind(self, kind: str, machine: Machine) -> list[DeviceInfo] | None:
        """Return the expected devices of a kind, None for those that a PluggableDevice adds."""
        flags = build_flags()
        if not flags or kind not in ("cpu", "gpu"):
            return None
        if kind == "cpu":
            return [cpu_info()]
        vendor = next((vendor for flag, vendor in _VENDORS.items() if flags.get(flag)), "")
        if not machine.gpus(vendor):
            return []
        if vendor != "nvidia" or not any(map(machine.version_of, CUDA_LIBRARIES)):
            return None  # whether the system has the libraries, TensorFlow alone finds out
        return [DeviceInfo(device.name, vendor) for device in machine.visible if device.vendor == vendor]
