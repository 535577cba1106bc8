"""Checks of the installed torch on a machine, without importing it; and of a device, with torch imported."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from anyaccel.device import Device
from anyaccel.machine import Machine
from anyaccel_devtools.doctor import Check, HealthChecks, cuda_driver_checks
from anyaccel_torch.installed_build import build_facts

_NAMES = {"cuda": "CUDA", "hip": "ROCm", "xpu": "XPU"}
_BUILDS = {"nvidia": "cuda", "amd": "hip"}


class TorchHealthChecks(HealthChecks):
    """Check the build of torch, its kernels for a GPU, and whether steps can be compiled."""

    def health_checks(self, machine: Machine) -> Iterator[Check]:
        """Yield checks by the files of the installed torch."""
        return machine_checks(machine, build_facts())

    def device_checks(self, device: Device) -> Iterator[Check]:
        """Whether this torch has kernels for a GPU; imports torch, and initializes the GPU."""
        import torch

        if device.kind != "gpu" or not torch.version.cuda:
            return
        major, minor = torch.cuda.get_device_capability(device.index)
        yield architecture_check(device, f"sm_{major}{minor}", torch.cuda.get_arch_list())


def machine_checks(machine: Machine, build: Mapping[str, str]) -> Iterator[Check]:
    """Yield checks of a build of torch on a machine with these facts."""
    yield from (_build(machine, vendor, build) for vendor in _BUILDS if machine.gpus(vendor))
    if build.get("cuda") and machine.gpus("nvidia"):
        yield from cuda_driver_checks(machine, "torch", build["cuda"])
    yield _compiler(machine)


def _build(machine: Machine, vendor: str, build: Mapping[str, str]) -> Check:
    version, wanted = build.get("__version__", "unknown"), _BUILDS[vendor]
    name = f"torch for {vendor}"
    if build.get(wanted):
        return Check(name=name, status="PASS", message=f"torch {version}, {_NAMES[wanted]} {build[wanted]}")
    first = machine.gpus(vendor)[0].name or f"a GPU of {vendor}"
    others = " and ".join(_NAMES[key] for key in _NAMES if build.get(key)) or "CPUs alone"
    return Check(
        name=name,
        status="FAIL",
        message=f"torch {version} is built for {others}, but this machine has {first}",
        fix=f"python -m pip uninstall torch, and install a build for {_NAMES[wanted]}, as described on pytorch.org",
    )


def _compiler(machine: Machine) -> Check:
    """Check for a C++ compiler, which compiled steps need; otherwise steps run uncompiled, and a phase reports it."""
    if machine.cxx:
        return Check(name="torch's compiled steps", status="PASS", message=f"C++ compiler {machine.cxx}")
    fixes = {"darwin": "xcode-select --install", "win32": "install the Build Tools for Visual Studio"}
    return Check(
        name="torch's compiled steps",
        status="WARN",
        message="there is no C++ compiler, so steps run uncompiled",
        fix=fixes.get(machine.system, "apt-get install g++, or set CXX to the path of one"),
    )


def architecture_check(device: Device, needed: str, built: list[str]) -> Check:
    """Check for kernels of an architecture such as `"sm_90"` among the built ones or those that can be created from
    them.
    """
    name = f"torch's kernels for {device}"
    if needed in built or any(_runs(architecture, needed) for architecture in built):
        return Check(name=name, status="PASS", message=f"{needed}, of {', '.join(built)}")
    return Check(
        name=name,
        status="FAIL",
        message=f"{device} needs {needed}, but this torch is built for {', '.join(built)}",
        fix=f"install a torch that is built for {needed}",
    )


def _runs(built: str, needed: str) -> bool:
    """Kernels run on later minor versions of their architecture; intermediate code (PTX) on all later ones."""
    kind, _, number = built.partition("_")
    of_built, of_needed = _number(number), _number(needed.partition("_")[2])
    if kind == "compute":
        return of_built <= of_needed
    return of_built <= of_needed and of_built // 10 == of_needed // 10


def _number(text: str) -> int:
    return int(re.match(r"\d*", text).group() or "0")  # type: ignore[union-attr]
