"""What a request gets of invented machines, and why not the rest."""

from __future__ import annotations

import pytest

from anyaccel import DeviceRequest, Inventory
from anyaccel.errors import ConfigError, DeviceUnavailableError


def got(request: object, on: str, **settings: bool) -> list[str]:
    allocation = DeviceRequest.parse(request).resolve(on, **settings)
    return list(map(str, allocation.chosen.devices)) if allocation.chosen else []


@pytest.mark.parametrize(
    ("request_", "on", "devices"),
    [
        ("any", "cpu", ["cpu:0"]),
        ("any", "T4, H100-80GB, L4", ["gpu:1"]),  # the newest generation
        ("any", "2x A100-40GB, A100-80GB", ["gpu:2"]),  # the most memory
        ("any:2", "2x A100-40GB, A100-80GB", ["gpu:0", "gpu:1"]),  # several are of one product
        ("any:2", "cpu", []),
        ("gpu", "2x T4", ["gpu:0"]),
        ("gpu:1", "T4, L4", ["gpu:1"]),
        ("gpu:2", "T4, L4", []),
        ("gpu", "cpu", []),
        ("cpu", "8x H100-80GB", ["cpu:0"]),
        ("cuda:1", "2x T4", ["gpu:1"]),
        ("rocm", "2x T4", []),
        ("rocm", "MI300X", ["gpu:0"]),
        ("mps", "mps", ["mps:0"]),
        ("any", "mps", ["mps:0"]),
        ("H100:8", "8x H100-80GB", [f"gpu:{i}" for i in range(8)]),
        ("H100:8", "4x H100-80GB", []),
        ("H100", "A100-80GB", []),
        ("H100", "T4, H100-94GB", ["gpu:1"]),
        ("H100", "H200, H100-80GB", ["gpu:1"]),  # itself before its upgrade
        ("H100", "2x H200", ["gpu:0"]),
        ("H100!", "2x H200", []),
        ("A10", "2x A10G", []),
        ("L40", "L4, L40S", []),
        ("L40", "L4, L40S, L40", ["gpu:2"]),
        ("H100-SXM:2", "2x H100-PCIe, 2x H100-SXM", ["gpu:2", "gpu:3"]),
        ("H100-NVL", "2x H100-PCIe, H100-NVL", ["gpu:2"]),
        ("H100-SXM", "2x H100-80GB", []),  # it may be
        ("H100-SXM", "2x H200", []),
        ("H100-80GB:4", "2x H100-PCIe, 2x H100-SXM", [f"gpu:{i}" for i in range(4)]),
        ("sm>=80", "4x T4, A10G", ["gpu:4"]),
        ("sm>=90:2", "2x L4", []),
        ("sm>=80", "8x MI300X", []),
        ("24GB+ sm>=89", "A10G, L4", ["gpu:1"]),
        ("nvidia:40GB+:2", "8x MI300X, 2x A100-40GB", ["gpu:8", "gpu:9"]),
        ("amd:any:2", "8x MI300X, 2x A100-40GB", ["gpu:0", "gpu:1"]),
        ("gpu:any:2", "4x TPU-V6E, 2x T4", ["gpu:0", "gpu:1"]),
        ("tpu:any:2", "4x TPU-V6E, 2x T4", ["tpu:0", "tpu:1"]),
        ("TPU-V6E:4", "4x TPU-V6E", [f"tpu:{i}" for i in range(4)]),
        ("TPU-V5E", "4x TPU-V6E", []),
        ("H100:8 nodes=2", "8x H100-80GB", []),
        ("T4 price<=0.01", "T4", ["gpu:0"]),  # it is there already
        ("H100-80GB", "H200, H100-94GB", []),
        ("A100-80GB", "A100-40GB, A100-80GB", ["gpu:1"]),
        ("A100-40GB+", "A100-80GB", ["gpu:0"]),
        ("B200+", "B300", ["gpu:0"]),
        ("B200+", "H200", []),
        ("H100+", "H200", ["gpu:0"]),
        ("H100+", "MI355X", []),
        ("A10+", "L4, RTX-4090", ["gpu:0"]),
        ("40GB+", "L4, A100-40GB", ["gpu:1"]),
        ("40GB+:2", "A100-40GB, L40S", []),
        ("40GB+:2", "A100-40GB, 2x L40S", ["gpu:1", "gpu:2"]),
        ("40GB+", "cpu", []),
        ("gpu[bf16]", "T4, A10", ["gpu:1"]),
        ("gpu[fp8]", "A100-80GB", []),
        ("any[bf16]", "T4", []),
        ("any[fp8,bf16]", "MI300X", ["gpu:0"]),
        ("T4 mem=64GB cores=8", "T4 mem=64GB cores=8", ["gpu:0"]),
        ("T4 mem=65GB", "T4 mem=64GB", []),
        ("T4 cores=9", "T4 cores=8", []),
        ("T4 cores=9", "T4", []),
        ("H100:2, A100-80GB, any", "A100-80GB, H100-80GB", ["gpu:0"]),
        ("H100:2, A100-80GB, any", "T4", ["gpu:0"]),
        ("H100:2, A100-80GB, any", "cpu", ["cpu:0"]),
        ({"T4", "L4"}, "T4, L4", ["gpu:1"]),
        ({"H100:2", "A100-80GB"}, "H100-80GB, A100-80GB", ["gpu:1"]),
        ({"T4", "cpu"}, "T4", ["gpu:0"]),
    ],
)
def test_a_request_gets_what_is_documented(request_, on, devices):
    assert got(request_, on) == devices


def test_strict_takes_the_first_wish_or_nothing():
    assert got("H100, any", "T4, L4", strict=True) == []
    assert got("H100, any", "T4, H100-80GB", strict=True) == ["gpu:1"]
    rows = DeviceRequest.parse("H100, T4").resolve("T4", strict=True).candidates
    assert "the request is strict: only its first alternative is used" in [row.reason for row in rows]


def test_every_candidate_has_a_reason():
    allocation = DeviceRequest.parse("H100:2, A100-80GB, any").resolve("8x A100-80GB, H200")
    assert [(row.wish, row.label, row.chosen, row.reason) for row in allocation.candidates] == [
        ("H100:2", "8x A100-80GB", False, "it is not H100"),
        ("H100:2", "H200", False, "there is 1"),
        ("H100:2", "cpu", False, "it is another product"),
        ("A100-80GB", "8x A100-80GB", True, "chosen"),
        ("A100-80GB", "H200", False, "it is not A100"),
        ("A100-80GB", "cpu", False, "it is another product"),
        ("any", "8x A100-80GB", False, "fits, but A100-80GB is preferred"),
        ("any", "H200", False, "fits, but A100-80GB is preferred"),
        ("any", "cpu", False, "fits, but A100-80GB is preferred"),
    ]
    assert allocation.to_dict()["devices"] == ["gpu:0"] and allocation.to_dict()["on"] == "in words"


@pytest.mark.parametrize(
    ("request_", "on", "reason"),
    [
        ("H100", "H200", "chosen: H200 is an upgrade of H100"),
        ("B200+", "B300", "chosen: B300 is newer than B200"),
        ("any", "T4, L4", "fits, but L4 is better"),
        ("gpu", "mps", "its kind is mps"),
        ("rocm", "T4", "it is a device of nvidia, not of amd"),
        ("H100!", "H200", "it is not exactly H100"),
        ("B200+", "H200", "it is neither B200 nor newer with as much memory"),
        ("H100", "mps", "its product is unknown"),
        ("40GB+", "mps", "its memory is unknown"),
        ("40GB+", "L4", "it has 24 GB"),
        ("40GB+", "cpu", "it is not an accelerator"),
        ("H100-80GB", "H100-94GB", "it has 94 GB, not 80"),
        ("gpu[fp8]", "A100-80GB", "it does not support fp8"),
        ("mps[bf16]", "mps", "its product is not in the table, so its support of bf16 is unknown"),
        ("gpu:3", "2x T4", "it does not have the index 3"),
        ("T4:3", "2x T4", "there are 2"),
        ("T4 mem=64GB", "T4 mem=32GB", "the host has 32 GB of memory"),
        ("T4 mem=64GB", "T4", "the host's memory is unknown"),
        ("T4 cores=64", "T4 cores=32", "the host has 32 cores"),
        ("T4 cores=64", "T4", "the host's cores are unknown"),
    ],
)
def test_reasons(request_, on, reason):
    assert reason in [row.reason for row in DeviceRequest.parse(request_).resolve(on).candidates]


def test_nothing_that_fits_is_an_error_with_the_reasons():
    allocation = DeviceRequest.parse("H100:2").resolve("H100-80GB")
    with pytest.raises(DeviceUnavailableError) as caught:
        _ = allocation.devices
    assert "no device fits 'H100:2' (H100:2 on H100-80GB: there is 1;" in caught.value.problem
    assert "H100-80GB, cpu" in caught.value.available and "any" in caught.value.hint


def test_simulated_devices_are_asked_for_by_name():
    from anyaccel.device import Device
    from anyaccel_resources import InventoryDevice

    machine = Inventory(devices=(InventoryDevice(device=Device("sim")), InventoryDevice(device=Device("cpu"))))
    chosen = DeviceRequest.parse("any").resolve(machine).chosen
    assert chosen is not None and chosen.devices == (Device("cpu"),)
    assert DeviceRequest.parse("sim").resolve(machine).devices == (Device("sim"),)


def test_a_wrong_inventory_or_flag_is_refused():
    with pytest.raises(ConfigError, match="3 is not an inventory"):
        DeviceRequest.parse("any").resolve(3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="strict='no' is not True or False"):
        DeviceRequest.parse("any").resolve("cpu", strict="no")  # type: ignore[arg-type]
