"""Facts of a machine, read without a framework, and the devices that a framework will have there."""

from __future__ import annotations

import os
import re
import shutil
import sys
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from anyaccel.backend import DeviceInfo
from anyaccel.capability import Capability
from anyaccel.device import Device
from anyaccel.machine.system_devices import SystemDevice, output_of, system_devices, system_host, text_of

_ROOT = Path("/")
_VENDORS = {"0x10de": "nvidia", "0x1002": "amd"}
_DISPLAYS = ("0x0300", "0x0302", "0x0380", "0x1200")  # PCI classes of graphics cards and accelerators
_VERSION = re.compile(r"\b\d+(?:\.\d+)+\b")
_SMI = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
# NVIDIA, "Minor Version Compatibility" (docs.nvidia.com/deploy/cuda-compatibility), read on 2026-11-25.
_OLDEST_DRIVERS = {"13": "580", "12": "525", "11": "450"}
_COMPILERS = {"darwin": "clang++", "win32": "cl"}
_DRIVER_FILES = {"nvidia": "proc/driver/nvidia/version", "amd": "sys/module/amdgpu/version"}


def installed_version(distribution: str) -> str:
    """Return the version of an installed distribution, `""` if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Facts of a machine.

    Attributes:
        system: The same as `sys.platform`.
        devices: Accelerators, whether or not a mask hides them.
        visible: Accelerators that the masks of the environment leave, numbered as frameworks will see them.
        pci_vendors: Vendors of graphics cards and accelerators on the PCI bus, with or without a driver.
        driver_versions: Driver versions by vendor.
        environment: Environment variables.
        cores: Cores that this process may use, 0 if unknown.
        locked_memory: Bytes that the process may lock; None for no limit, or unknown.
        shared_memory: Size of the file system for shared memory in bytes; 0 if there is no such file system, or if its
            size is unknown.
        cxx: Path of a C++ compiler, or `""`.
        version_of: Function that returns the version of an installed distribution, `""` if it is not installed.
    """

    system: str = sys.platform
    devices: tuple[SystemDevice, ...] = ()
    visible: tuple[SystemDevice, ...] = ()
    pci_vendors: tuple[str, ...] = ()
    driver_versions: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    cores: int = 0
    locked_memory: int | None = None
    shared_memory: int = 0
    cxx: str = ""
    version_of: Callable[[str], str] = installed_version

    @classmethod
    def detect(cls, root: Path = _ROOT) -> Machine:
        """Return the facts of this machine; `root` is the directory of `proc`, `sys` and `dev`."""
        devices = tuple(device for device in system_devices(root, {}) if device.kind != "cpu")
        visible = tuple(device for device in system_devices(root) if device.kind != "cpu")
        return cls(
            devices=devices,
            visible=visible,
            pci_vendors=_pci_vendors(root),
            driver_versions=_driver_versions(root),
            environment=dict(os.environ),
            cores=system_host()[1],
            locked_memory=_locked_memory(),
            shared_memory=_size_of(root / "dev/shm"),
            cxx=shutil.which(os.environ.get("CXX") or _COMPILERS.get(sys.platform, "g++")) or "",
        )

    def gpus(self, vendor: str) -> list[SystemDevice]:
        """Return the GPUs of a vendor, whether or not a mask hides them."""
        return [device for device in self.devices if device.vendor == vendor]


class ExpectedDevices(Capability):
    """Capability `expected_devices`: tells the devices that the framework will have, without importing it.

    The backend's `devices` gives these until the framework (`import_roots[0]`) is imported.
    """

    def expected_devices(self, machine: Machine) -> dict[Device, DeviceInfo] | None:
        """Return the expected `devices` and `device_info` before the framework is imported; None if uncertain."""
        devices: dict[Device, DeviceInfo] = {}
        for kind in self.backend.kinds:
            infos = self.expected_of_kind(kind, machine)
            if infos is None:
                return None
            devices.update((Device(kind, index), info) for index, info in enumerate(infos))
        return devices

    @abstractmethod
    def expected_of_kind(self, kind: str, machine: Machine) -> Sequence[DeviceInfo] | None:
        """Return the devices of a kind that the framework will have; imports nothing.

        By how the installed framework was built, its settings, and the facts of the machine. None where these do not
        tell, as with a driver too old or a library that may be missing: then the framework itself is asked.
        """


def oldest_driver(cuda: str) -> str:
    """Return the oldest driver of NVIDIA that runs a CUDA, given as `"13.0"` or its first number; `""` if it is
    unknown.
    """
    return _OLDEST_DRIVERS.get(cuda.partition(".")[0], "")


def _pci_vendors(root: Path) -> tuple[str, ...]:
    folders = sorted(root.glob("sys/bus/pci/devices/*"))
    displays = [folder for folder in folders if text_of(folder / "class").startswith(_DISPLAYS)]
    names = (_VENDORS.get(text_of(folder / "vendor").strip(), "") for folder in displays)
    return tuple(filter(None, names))


def _driver_versions(root: Path) -> dict[str, str]:
    """Return versions from the files of Linux, or from `nvidia-smi` if these do not exist."""
    matches = {vendor: _VERSION.search(text_of(root / path)) for vendor, path in _DRIVER_FILES.items()}
    versions = {vendor: match.group() for vendor, match in matches.items() if match}
    smi = shutil.which(_SMI[0])
    if smi and root == _ROOT and "nvidia" not in versions and (match := _VERSION.search(output_of([smi, *_SMI[1:]]))):
        versions["nvidia"] = match.group()
    return versions


def _locked_memory() -> int | None:
    with suppress(ImportError, AttributeError, OSError):  # not on every system
        resource: Any = import_module("resource")
        soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        return None if soft == resource.RLIM_INFINITY else int(soft)
    return None


def _size_of(folder: Path) -> int:
    try:
        return shutil.disk_usage(folder).total
    except OSError:
        return 0
