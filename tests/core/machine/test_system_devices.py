"""Devices as drivers and system files tell them, those that lie or hang among them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from anyaccel.machine import SystemDevice, bounded_process
from anyaccel.machine import system_devices as system
from anyaccel.machine.nvml_probe import nvml_rows
from anyaccel.machine.system_devices import visible

GPUS = [SystemDevice(kind="gpu", index=i, identity=f"GPU-{i}abc") for i in range(3)]


@pytest.mark.parametrize(
    ("mask", "left"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("2,0", [2, 0]),
        ("1,-1,2", [1]),
        ("0,7,1", [0]),
        ("0,0,1", [0]),
        ("GPU-2a, gpu-1ABC", [2, 1]),
        ("GPU-", []),  # of several
        ("99999999", []),
        ("NoDevFiles", []),
    ],
)
def test_masks_of_visible_devices_are_read_as_cuda_does(mask, left):
    assert [device.index for device in visible(GPUS, mask)] == left


def test_devices_in_system_files(tmp_path: Path):
    for number, (model, uuid) in enumerate([("NVIDIA H100 80GB HBM3", "GPU-11"), ("Tesla T4", "GPU-????????")]):
        folder = tmp_path / f"proc/driver/nvidia/gpus/0000:0{number}:00.0"
        folder.mkdir(parents=True)
        lines = f"Model: \t\t {model}\nIRQ:   \t\t 1\nGPU UUID: \t {uuid}\nBus Location: \t 0000:0{number}:00.0\n"
        (folder / "information").write_text(lines)
    card = tmp_path / "sys/class/drm/card0/device"
    card.mkdir(parents=True)
    (card / "vendor").write_text("0x1002\n")
    (card / "mem_info_vram_total").write_text(f"{192 << 30}\n")
    (card / "product_name").write_text("AMD Instinct MI300X OAM\n")
    found = system.system_devices(tmp_path, {})
    assert [(d.kind, d.index, d.name, d.vendor) for d in found[:3]] == [
        ("gpu", 0, "NVIDIA H100 80GB HBM3", "nvidia"),
        ("gpu", 1, "Tesla T4", "nvidia"),
        ("gpu", 2, "AMD Instinct MI300X OAM", "amd"),
    ]
    assert [d.identity for d in found[:2]] == ["GPU-11", "0000:01:00.0"] and found[2].nbytes == 192 << 30
    assert next(d.name for d in system.system_devices(tmp_path, {"CUDA_VISIBLE_DEVICES": "1"})) == "Tesla T4"
    assert [d.kind for d in system.system_devices(tmp_path / "empty", {})] == ["cpu"]


def test_what_nvidia_smi_prints_is_read():
    answer = "0, NVIDIA H100 80GB HBM3, GPU-11, 81559, 00000000:04:00.0\n1, Tesla T4, GPU-22, [N/A], 0:5\nno devices\n"
    found = system.from_smi(answer)
    assert [(d.name, d.nbytes, d.identity) for d in found] == [
        ("NVIDIA H100 80GB HBM3", 81559 << 20, "GPU-11"),
        ("Tesla T4", 0, "GPU-22"),
    ]


@pytest.mark.parametrize("answer", ["", "x", "[1]", '[{"x": 1}]', "{}", "null"])
def test_nonsense_of_a_driver_is_no_device(answer):
    assert system.from_json(answer) == []


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(system, "PATIENCE", 0.3)
    monkeypatch.setattr(system, "hanging", [])
    system.nvidia_driver.cache_clear()
    yield
    system.nvidia_driver.cache_clear()


HANGING = [sys.executable, "-c", "import time; time.sleep(60)"]


def test_a_driver_that_hangs_is_waited_for_only_once(patience: None):
    assert system.output_of([sys.executable, "-c", "print(1)"]) == "1\n"
    assert system.output_of([sys.executable, "-c", "raise SystemExit(3)"]) == ""
    assert system.output_of(["/no/such/tool"]) == ""
    assert system.output_of(HANGING) == ""
    assert system.output_of([sys.executable, "-c", "print(1)"]) == ""


def test_a_process_that_cannot_be_killed_is_left_behind(monkeypatch: pytest.MonkeyPatch):
    """As one that hangs in the kernel: here, `kill` does nothing."""
    left: list[subprocess.Popen[str]] = []
    monkeypatch.setattr(bounded_process, "_left", left)
    monkeypatch.setattr(bounded_process, "_GRACE", 0.05)
    with monkeypatch.context() as patch:
        patch.setattr(subprocess.Popen, "kill", lambda self: None)
        with pytest.raises(subprocess.TimeoutExpired):
            bounded_process.run_bounded(HANGING, 0.1)
    (child,) = left
    child.kill()
    assert child.wait(10) and child.stdout.closed  # type: ignore[union-attr]


@pytest.mark.skipif(sys.platform == "win32", reason="a script stands in for nvidia-smi")
def test_a_machine_whose_driver_hangs_is_told_without_it(patience: None, monkeypatch, tmp_path: Path):
    """The file system of a driver is there, and `nvidia-smi` is asked, but does not answer."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\nexec sleep 60\n")
    smi.chmod(0o755)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/dxg").touch()
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(system, "_ROOT", tmp_path)
    monkeypatch.setattr(system, "find_spec", lambda name: None)
    assert [each.kind for each in system.system_devices(tmp_path, {})] == ["cpu"]
    assert [command[0] for command in system.hanging] == [str(smi)]


class Nvml:
    """A driver with a divided device and a whole one."""

    class NVMLError(Exception):
        pass

    def nvmlDeviceGetCount(self):
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetMigMode(self, handle):
        if handle:
            raise self.NVMLError
        return 1, 1

    def nvmlDeviceGetMaxMigDeviceCount(self, handle):
        return 3

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, index):
        if index == 1:
            raise self.NVMLError
        return f"part {index}"

    def nvmlDeviceGetName(self, handle):
        return b"NVIDIA H100" if handle == 1 else "NVIDIA H100 MIG 1g.10gb"

    def nvmlDeviceGetUUID(self, handle):
        return f"ID-{handle}"

    def nvmlDeviceGetMemoryInfo(self, handle):
        return type("Info", (), {"total": 10})


def test_a_divided_device_is_its_parts():
    rows = nvml_rows(Nvml())
    assert [row["identity"] for row in rows] == ["ID-part 0", "ID-part 2", "ID-1"]
    assert [row["name"] for row in rows][1:] == ["NVIDIA H100 MIG 1g.10gb", "NVIDIA H100"]
    assert system.from_json(json.dumps(rows))[2] == SystemDevice(
        kind="gpu", vendor="nvidia", name="NVIDIA H100", identity="ID-1", nbytes=10
    )
