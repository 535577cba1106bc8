"""Checks of the installed TensorFlow on a machine, without importing it."""

from __future__ import annotations

from collections.abc import Iterator

from anyaccel.machine import Machine
from anyaccel_devtools.doctor import Check, HealthChecks
from anyaccel_tensorflow.installed_build import CPU_BUILDS, CUDA_LIBRARIES


class TensorFlowHealthChecks(HealthChecks):
    """Check whether the installed packages fit a machine."""

    def health_checks(self, machine: Machine) -> Iterator[Check]:
        """Yield checks of the installed packages."""
        for vendor in ("nvidia", "amd"):
            if machine.gpus(vendor):
                yield _build(machine, vendor)


def _build(machine: Machine, vendor: str) -> Check:
    name, gpu = f"tensorflow for {vendor}", machine.gpus(vendor)[0].name or f"a GPU of {vendor}"
    wanted = "tensorflow" if vendor == "nvidia" else "tensorflow-rocm"
    found = next(
        (package for package in (wanted, *CPU_BUILDS, "tensorflow") if machine.version_of(package)), "tensorflow"
    )
    if found != wanted:
        return Check(
            name=name,
            status="FAIL",
            message=f"{found} {machine.version_of(found)} is built without support for {gpu}",
            fix=f"python -m pip uninstall {found}; python -m pip install "
            + ('"tensorflow[and-cuda]"' if vendor == "nvidia" else wanted),
        )
    if vendor == "nvidia" and machine.system == "win32":
        return Check(
            name=name,
            status="FAIL",
            message="since version 2.11, TensorFlow uses no GPU on Windows",
            fix="run it in the Windows Subsystem for Linux (WSL 2)",
        )
    libraries = [package for package in CUDA_LIBRARIES if machine.version_of(package)]
    if vendor == "nvidia" and not libraries:
        return Check(
            name=name,
            status="WARN",
            message="CUDA's packages are not installed; TensorFlow uses the GPU if the system has CUDA and cuDNN",
            fix='python -m pip install "tensorflow[and-cuda]"',
        )
    with_libraries = "".join(
        f", {package} {machine.version_of(package)}" for package in libraries[:1] if vendor == "nvidia"
    )
    return Check(name=name, status="PASS", message=f"{found} {machine.version_of(found)}{with_libraries}")
