"""Rates of plans: measured on this machine within bounds, stated for what is not here, and said either way."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from anyaccel_offload.torch import infer_auto_device_map, init_empty_weights, load_checkpoint_in_model
from anyaccel_offload.torch.copy_rates import copy_rate, disk_rate, weight_rate

CPU = torch.device("cpu")


def resting(folder: Path, width: int) -> tuple[nn.Module, Path]:
    """A model whose weights rest in a file."""
    path = folder / f"{width}.safetensors"
    save_file({"0.weight": torch.ones(width, width)}, path)
    with init_empty_weights():
        model = nn.Sequential(nn.Linear(width, width, bias=False))
    load_checkpoint_in_model(model, path, {"": "disk"})
    return model, path


def test_what_is_here_is_measured_once_and_what_is_not_is_stated() -> None:
    found = weight_rate(CPU)
    assert found.is_measured and 1e8 < found.value < 1e12
    assert weight_rate(CPU) == found  # a second measurement would differ
    absent = torch.device("cuda", 99)
    assert not weight_rate(absent).is_measured and not copy_rate(absent).is_measured
    assert str(copy_rate(absent)) == "12 GB/s (stated)"


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the system cannot be told to drop a file")
def test_a_disk_is_measured_by_a_file_of_the_model_which_does_not_change(tmp_path: Path) -> None:
    model, path = resting(tmp_path, 2300)  # 20 MiB
    before = path.stat()
    found = disk_rate(model)
    assert found.is_measured and 1e6 < found.value < 1e12
    assert disk_rate(model) == found
    after = path.stat()
    assert (after.st_mtime_ns, after.st_size) == (before.st_mtime_ns, before.st_size)
    assert str(disk_rate(resting(tmp_path, 8)[0])) == "2 GB/s (stated)"  # too small to say anything
    assert not disk_rate(nn.Linear(2, 2)).is_measured


def test_devices_of_one_model_have_one_rate_however_they_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two measurements differ, and devices that differ are planned otherwise."""
    measured: list[tuple[Any, ...]] = []

    class Here:
        @staticmethod
        def device_count() -> int:
            return 3

        @staticmethod
        def get_device_name(index: int) -> str:
            return ("small", "large", "large")[index]

        @staticmethod
        def synchronize(device: torch.device) -> None:
            measured.append((device.type, device.index))
            raise RuntimeError("no such device")

    def empty(*shape: int, **settings: Any) -> torch.Tensor:
        device = torch.device(settings.get("device", CPU))
        measured.append((device.type, device.index))
        return torch.zeros(1)

    monkeypatch.setattr(torch, "get_device_module", lambda _: Here)
    monkeypatch.setattr(torch, "ones", empty)
    for index in range(3):
        weight_rate(torch.device("xpu", index))
    assert {index for kind, index in measured if kind == "xpu"} == {0, 1}


def test_a_plan_counts_with_the_rates_and_says_them(tmp_path: Path) -> None:
    model = nn.Sequential(*[nn.Linear(64, 64, bias=False) for _ in range(4)])
    found = infer_auto_device_map(model, {"cpu": "1GB"})
    nbytes = 4 * 4 * 64 * 64
    assert found.plan.seconds == pytest.approx(nbytes / weight_rate(CPU).value)
    assert found.plan.notes[-1] == f"rates: cpu computes with weights at {weight_rate(CPU)}"
    spilled = infer_auto_device_map(model, {7: 3 * 4 * 64 * 64, "cpu": 0, "disk": "1GB"}, headroom=0)
    assert "disk" in spilled.values()
    assert spilled.plan.notes[-1].endswith("copies to cuda:7 12 GB/s (stated), disk 2 GB/s (stated)")
