"""Checks of the installed JAX, beside machines that are made up."""

from __future__ import annotations

from dataclasses import replace

from anyaccel.machine import Machine, SystemDevice
from anyaccel_devtools.doctor import HealthChecks
from anyaccel_jax import JaxBackend

GPU = SystemDevice(kind="gpu", name="NVIDIA H100", vendor="nvidia")
CUDA = {"jax": "0.10.2", "jax-cuda13-plugin": "0.10.2"}


def machine(packages, **facts):
    return Machine(system="linux", devices=(GPU,), version_of=lambda name: packages.get(name, ""), **facts)


def checks(given):
    return {check.name: check for check in JaxBackend().required(HealthChecks).health_checks(given)}


def test_jax_for_cpus_beside_a_gpu_fails_with_what_to_install():
    check = checks(machine({"jax": "0.10.2"}))["jax for nvidia"]
    assert check.status == "FAIL" and check.message == (
        "JAX 0.10.2 is installed for CPUs only, but this machine has NVIDIA H100"
    )
    assert check.fix == 'python -m pip install "jax[cuda13]"'
    assert checks(machine(CUDA))["jax for nvidia"].status == "PASS"


def test_no_gpu_is_nothing_to_check():
    assert checks(replace(machine({}), devices=())) == {}


def test_a_driver_that_is_too_old_fails():
    assert checks(machine(CUDA, driver_versions={"nvidia": "535.1"}))["jax and the driver"].status == "FAIL"
    older = {"jax": "0.10.2", "jax-cuda12-plugin": "0.10.2"}
    assert checks(machine(older, driver_versions={"nvidia": "535.1"}))["jax and the driver"].status == "PASS"


def test_two_frameworks_that_take_all_memory():
    both = {**CUDA, "tensorflow": "2.21.0"}
    check = checks(machine(both))["memory of GPUs"]
    assert check.status == "WARN" and check.fix.startswith("export XLA_PYTHON_CLIENT_PREALLOCATE=false")
    mended = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    assert checks(machine(both, environment=mended))["memory of GPUs"].status == "PASS"
    for name, value in mended.items():  # one that takes what it needs leaves the other room
        assert checks(machine(both, environment={name: value}))["memory of GPUs"].status == "PASS"
    assert checks(machine(CUDA))["memory of GPUs"].status == "PASS"


def test_amd():
    amd = replace(machine({"jax": "0.10.2"}), devices=(replace(GPU, vendor="amd", name="MI300X"),))
    assert checks(amd)["jax for amd"].status == "FAIL"
    assert checks(replace(amd, version_of={"jax-rocm7-plugin": "0.10"}.get))["jax for amd"].status == "PASS"
