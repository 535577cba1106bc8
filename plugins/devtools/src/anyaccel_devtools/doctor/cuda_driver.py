"""Check that NVIDIA's driver is new enough for the CUDA that a framework was built with."""

from __future__ import annotations

from collections.abc import Iterator

from anyaccel.machine import Machine, is_older, oldest_driver
from anyaccel_devtools.doctor.check import Check


def cuda_driver_checks(machine: Machine, framework: str, cuda: str) -> Iterator[Check]:
    """Yield one check if the driver's version and the requirement of this CUDA are known, otherwise none.

    Args:
        machine: A machine with a GPU of NVIDIA.
        framework: Name of the framework.
        cuda: Version of CUDA that it was built with, such as `"13.0"`, or its first number.
    """
    driver, oldest = machine.driver_versions.get("nvidia", ""), oldest_driver(cuda)
    if not driver or not oldest:
        return
    name = f"{framework} and the driver"
    if not is_older(driver, oldest):
        yield Check(name=name, status="PASS", message=f"CUDA {cuda} with driver {driver}")
        return
    yield Check(
        name=name,
        status="FAIL",
        message=f"{framework} is built with CUDA {cuda}, which needs driver {oldest} or newer, but the driver is "
        f"{driver}",
        fix=f"install driver {oldest} or newer, or a {framework} for an older CUDA",
    )
