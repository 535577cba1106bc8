"""Facts of a machine, read from system files, of this one and of folders that stand for another."""

from __future__ import annotations

from pathlib import Path

from anyaccel.machine import Machine


def card(root: Path, address: str, vendor: str, pci_class: str) -> None:
    folder = root / "sys/bus/pci/devices" / address
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "class").write_text(f"{pci_class}\n")


def test_cards_on_the_bus_are_found_without_a_driver(tmp_path):
    card(tmp_path, "0000:01:00.0", "0x10de", "0x030200")
    card(tmp_path, "0000:02:00.0", "0x1002", "0x038000")
    card(tmp_path, "0000:03:00.0", "0x10de", "0x020700")  # of InfiniBand
    card(tmp_path, "0000:04:00.0", "0x1234", "0x030000")
    machine = Machine.detect(tmp_path)
    assert machine.pci_vendors == ("nvidia", "amd")
    assert machine.devices == () and machine.driver_versions == {}


def test_versions_of_drivers_are_read_from_files(tmp_path):
    for path, text in {
        "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19\n",
        "sys/module/amdgpu/version": "6.12.12\n",
    }.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True)
        file.write_text(text)
    assert Machine.detect(tmp_path).driver_versions == {"nvidia": "535.104.05", "amd": "6.12.12"}


def test_a_mask_hides_devices_from_the_visible_ones_alone(tmp_path, monkeypatch):
    for number in range(2):
        folder = tmp_path / f"proc/driver/nvidia/gpus/0000:0{number}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t NVIDIA L4\nGPU UUID: \t GPU-{number}\n")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    machine = Machine.detect(tmp_path)
    assert [device.identity for device in machine.gpus("nvidia")] == ["GPU-0", "GPU-1"]
    assert [(device.index, device.identity) for device in machine.visible] == [(0, "GPU-1")]


def test_this_machine_has_cores_and_says_what_is_installed(tmp_path):
    machine = Machine.detect()
    assert machine.cores >= 1 and machine.version_of("numpy") and not machine.version_of("no-such-distribution")
    assert Machine.detect(tmp_path).shared_memory == 0
