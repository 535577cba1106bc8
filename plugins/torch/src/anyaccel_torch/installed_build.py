"""The installed build of torch, read from its files, and the devices that it will have: torch is not imported."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

from anyaccel.adapter.device_description import cpu_info
from anyaccel.backend import DeviceInfo
from anyaccel.machine import ExpectedDevices, Machine, is_older, oldest_driver

_LINE = re.compile(r"^(\w+)(?::[^=\n]+)? = (?:'([^'\n]*)'|None)$", re.MULTILINE)
_VENDORS = {"cuda": "nvidia", "hip": "amd"}


def build_facts() -> dict[str, str]:
    """Return the build facts of torch's file `version.py`: `__version__`, `cuda`, `hip`, `xpu`; it is not imported."""
    spec = find_spec("torch")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    try:
        text = Path(folders[0], "version.py").read_text("utf-8") if folders else ""
    except OSError:
        text = ""
    return {name: value or "" for name, value in _LINE.findall(text)}


class TorchExpectedDevices(ExpectedDevices):
    """The devices that the installed build of torch will see on a machine."""

    def expected_of_kind(self, kind: str, machine: Machine) -> list[DeviceInfo] | None:
        """Return the devices of a kind that torch itself has."""
        build = build_facts()
        if not build.get("__version__"):
            return None
        if kind == "cpu":
            return [cpu_info()]
        if kind == "gpu":
            platform = next((name for name in _VENDORS if build.get(name)), "")
            return _gpus(machine, platform, build[platform]) if platform else []
        return [] if kind == "xpu" and not build.get("xpu") else None


def _gpus(machine: Machine, platform: str, version: str) -> list[DeviceInfo] | None:
    vendor = _VENDORS[platform]
    if not machine.gpus(vendor):
        return []
    driver = machine.driver_versions.get(vendor, "")
    if platform == "cuda" and driver and is_older(driver, oldest_driver(version)):
        return None  # most often torch has no device then
    return [device.info() for device in machine.visible if device.vendor == vendor]
