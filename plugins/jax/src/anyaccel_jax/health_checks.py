"""Checks of the installed JAX on a machine, without importing it."""

from __future__ import annotations

from collections.abc import Iterator

from anyaccel.machine import Machine
from anyaccel_devtools.doctor import Check, HealthChecks, cuda_driver_checks

_PLUGINS = {"nvidia": ("jax-cuda13-plugin", "jax-cuda12-plugin"), "amd": ("jax-rocm7-plugin", "jax-rocm60-plugin")}
_EXTRAS = {
    "nvidia": 'python -m pip install "jax[cuda13]"',
    "amd": "install JAX for ROCm, as described in JAX's documentation",
}
_CUDA = {"jax-cuda13-plugin": "13", "jax-cuda12-plugin": "12"}
_OFF = ("false", "0")


class JaxHealthChecks(HealthChecks):
    """Check whether the installed packages fit a machine."""

    def health_checks(self, machine: Machine) -> Iterator[Check]:
        """Yield checks of the installed packages."""
        for vendor in _PLUGINS:
            if machine.gpus(vendor):
                yield from _plugin(machine, vendor)
        if machine.gpus("nvidia") and _installed(machine, "nvidia"):
            yield _memory(machine)


def _installed(machine: Machine, vendor: str) -> str:
    """Return the installed package that makes JAX use the GPUs of a vendor, or `""`."""
    return next((name for name in _PLUGINS[vendor] if machine.version_of(name)), "")


def _plugin(machine: Machine, vendor: str) -> Iterator[Check]:
    name, installed = f"jax for {vendor}", _installed(machine, vendor)
    gpu = machine.gpus(vendor)[0].name or f"a GPU of {vendor}"
    if not installed:
        message = f"JAX {machine.version_of('jax')} is installed for CPUs only, but this machine has {gpu}"
        yield Check(name=name, status="FAIL", message=message, fix=_EXTRAS[vendor])
        return
    yield Check(name=name, status="PASS", message=f"{installed} {machine.version_of(installed)}")
    if installed in _CUDA:
        yield from cuda_driver_checks(machine, "jax", _CUDA[installed])


def _memory(machine: Machine) -> Check:
    """Check whether JAX and TensorFlow would both take a GPU's memory; anyaccel prevents it if it starts first."""
    variables = machine.environment
    jax_takes_all = variables.get("XLA_PYTHON_CLIENT_PREALLOCATE", "").lower() not in _OFF
    tensorflow = machine.version_of("tensorflow")
    tensorflow_takes_all = tensorflow and variables.get("TF_FORCE_GPU_ALLOW_GROWTH", "").lower() != "true"
    if jax_takes_all and tensorflow_takes_all:
        return Check(
            name="memory of GPUs",
            status="WARN",
            message="JAX reserves three quarters of a GPU's memory when it starts, and TensorFlow all of it: the "
            "later one fails unless anyaccel is the first to use each",
            fix="export XLA_PYTHON_CLIENT_PREALLOCATE=false TF_FORCE_GPU_ALLOW_GROWTH=true",
        )
    told = (
        "JAX allocates memory as needed"
        if not jax_takes_all
        else "JAX reserves three quarters when it starts; no other framework here does"
    )
    return Check(name="memory of GPUs", status="PASS", message=told)
