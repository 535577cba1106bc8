"""Checks of the system, on machines that are made up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anyaccel.machine import Machine, is_older
from anyaccel.machine.system_devices import SystemDevice, visible
from anyaccel_devtools.doctor import Check, worst
from anyaccel_devtools.doctor.checkup import system_checks

GPUS = tuple(
    SystemDevice(kind="gpu", index=index, name="NVIDIA H100", vendor="nvidia", identity=f"GPU-{index}")
    for index in range(3)
)
SOUND = Machine(
    system="linux",
    devices=GPUS,
    visible=GPUS,
    pci_vendors=("nvidia",) * 3,
    driver_versions={"nvidia": "580.65"},
    cores=8,
    shared_memory=8 << 30,
)


def masked(mask: str, name: str = "CUDA_VISIBLE_DEVICES") -> Machine:
    left = tuple(replace(device, index=index) for index, device in enumerate(visible(GPUS, mask)))
    return replace(SOUND, visible=left, environment={name: mask})


def check(machine: Machine, name: str) -> Check:
    (found,) = [each for each in system_checks(machine) if each.name == name]
    return found


def test_a_sound_machine_passes_every_check():
    checks = list(system_checks(replace(SOUND, environment={"CUDA_VISIBLE_DEVICES": "0,1,2"})))
    assert [each.name for each in checks] == [
        "nvidia driver",
        "CUDA_VISIBLE_DEVICES",
        "threads",
        "shared memory",
        "locked memory",
    ]
    assert worst(checks) == "PASS" and not any(each.fix for each in checks)
    assert checks[0].message == "3x NVIDIA H100, driver 580.65"


def test_a_machine_without_accelerators_passes_too():
    checks = list(system_checks(Machine(system="linux", cores=2)))
    assert [(each.name, each.status) for each in checks] == [("accelerators", "PASS"), ("threads", "PASS")]


@pytest.mark.parametrize(
    ("machine", "name", "status", "message", "fix"),
    [
        (
            replace(SOUND, devices=(), visible=()),
            *("nvidia driver", "FAIL", "a card of nvidia is on the PCI bus, but its driver does not answer"),
            "nvidia-smi",
        ),
        (
            replace(SOUND, devices=(), visible=(), pci_vendors=("amd",)),
            "amd driver",
            "FAIL",
            "a card of amd",
            "rocminfo",
        ),
        (
            masked("2,0"),
            *("CUDA_VISIBLE_DEVICES", "WARN"),
            "CUDA_VISIBLE_DEVICES=2,0 hides 1 of 3 GPUs; gpu:0 is number 2, gpu:1 is number 0",
            "unset CUDA_VISIBLE_DEVICES",
        ),
        (masked("1,0,2"), "CUDA_VISIBLE_DEVICES", "WARN", "reorders the GPUs; gpu:0 is number 1", "unset"),
        (masked(""), "CUDA_VISIBLE_DEVICES", "WARN", "CUDA_VISIBLE_DEVICES= hides 3 of 3 GPUs", "unset"),
        (
            replace(SOUND, environment={"OMP_NUM_THREADS": "64"}),
            *("threads", "WARN", "OMP_NUM_THREADS=64 is more than the 8 cores", "export OMP_NUM_THREADS=8"),
        ),
        (
            replace(SOUND, environment={"OMP_NUM_THREADS": "$(nproc)"}),
            *("threads", "WARN", "OMP_NUM_THREADS=$(nproc) is not a number of threads", "export OMP_NUM_THREADS=8"),
        ),
        (
            replace(SOUND, environment={"OMP_NUM_THREADS": "64,2"}),
            *("threads", "WARN", "OMP_NUM_THREADS=64,2 is more than the 8 cores", "export OMP_NUM_THREADS=8"),
        ),
        (replace(SOUND, shared_memory=64 << 20), "shared memory", "WARN", "/dev/shm has 64 MiB", "--shm-size=8g"),
        (replace(SOUND, locked_memory=64 << 10), "locked memory", "WARN", "is 64 KiB", "ulimit -l unlimited"),
    ],
)
def test_what_is_wrong_is_named_with_what_mends_it(machine, name, status, message, fix):
    found = check(machine, name)
    assert (found.status, message in found.message, fix in found.fix) == (status, True, True), found


def test_obeying_the_fix_of_a_mask_or_of_threads_makes_the_check_pass():
    machine = replace(masked("2"), visible=GPUS, environment={})
    assert "CUDA_VISIBLE_DEVICES" not in {each.name for each in system_checks(machine)}
    for threads in ("8", "4, 2", ""):
        assert check(replace(SOUND, environment={"OMP_NUM_THREADS": threads}), "threads").status == "PASS"
    assert check(replace(SOUND, locked_memory=None), "locked memory").status == "PASS"


def test_masks_of_another_vendor_do_not_matter():
    machine = replace(SOUND, environment={"HIP_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": "0"})
    assert worst(system_checks(machine)) == "PASS"


def test_versions_compare_by_number():
    assert is_older("535.104.05", "580") and is_older("99.1", "580.1")
    assert not is_older("580.65.06", "580") and not is_older("580", "580") and not is_older("1000", "580")
    assert is_older("unknown", "580")


def test_the_worst_status_is_that_of_all():
    assert worst([]) == "PASS"
    warning, failure = (Check(name="a", status=status, message="") for status in ("WARN", "FAIL"))
    assert worst([warning]) == "WARN" and worst([failure, warning]) == "FAIL"
