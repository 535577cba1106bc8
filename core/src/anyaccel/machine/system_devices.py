"""Devices of this machine as its drivers and system files tell: no framework is imported, and nothing is initialized.

NVIDIA's are asked of NVML where the package `nvidia-ml-py` is installed, otherwise of `nvidia-smi`, each in its own
process that may take a few seconds and no longer, otherwise read from /proc. AMD's are read from /sys.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from anyaccel.backend import DeviceInfo
from anyaccel.host_memory import host_memory
from anyaccel.machine.bounded_process import run_bounded

PATIENCE = 5.0  # seconds for a driver; one that hangs must not stop who asks
_ROOT = Path("/")
_SMI = "index,name,uuid,memory.total,pci.bus_id"
_MIB = 1 << 20
_MOST_REPORTED, _MOST_BYTES, _LONGEST_NAME = 1024, 1 << 50, 200


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemDevice:
    """A device as the system tells; `identity` is its UUID or PCI address, `nbytes` its memory, 0 if unknown."""

    kind: str
    index: int = 0
    name: str = ""
    vendor: str = ""
    nbytes: int = 0
    identity: str = ""

    def info(self) -> DeviceInfo:
        """Return the same as a backend's `device_info`; devices share memory only with themselves."""
        return DeviceInfo(self.name, self.vendor, self.identity, self.identity, self.nbytes)


def system_host() -> tuple[float, int]:
    """Return the memory of this machine in GB (0 if unknown), and the number of cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0
    return round(host_memory().total / 1e9, 1), cores


def system_devices(root: Path = _ROOT, environment: Mapping[str, str] | None = None) -> tuple[SystemDevice, ...]:
    """Return accelerators, numbered as frameworks will see them, and the CPU.

    Args:
        root: Folder of system files; for another folder, no driver is asked.
        environment: Variables with the masks of visible devices; by default those of this process.
    """
    variables = os.environ if environment is None else environment
    nvidia = visible(_nvidia(root), variables.get("CUDA_VISIBLE_DEVICES"))
    amd = visible(_amd(root), variables.get("HIP_VISIBLE_DEVICES", variables.get("ROCR_VISIBLE_DEVICES")))
    apple = root == _ROOT and (sys.platform, platform.machine()) == ("darwin", "arm64")
    mps = [SystemDevice(kind="mps", name="Apple GPU", vendor="apple")] if apple else []
    gpus = [replace(device, index=index) for index, device in enumerate([*nvidia, *amd])]
    return (*gpus, *mps, SystemDevice(kind="cpu", name=platform.machine()))


def visible(devices: Sequence[SystemDevice], mask: str | None) -> list[SystemDevice]:
    """Return the devices that a mask leaves, in its order: indices or UUIDs; nothing after one that is not there.

    As CUDA reads `CUDA_VISIBLE_DEVICES`: a UUID may be shortened, and `-1` or an empty mask hides all.
    """
    if mask is None:
        return list(devices)
    chosen: list[SystemDevice] = []
    for word in map(str.strip, mask.split(",")):
        if word.isascii() and word.isdigit():
            match = [devices[int(word)]] if len(word) < 6 and int(word) < len(devices) else []
        else:
            match = [device for device in devices if word and device.identity.lower().startswith(word.lower())]
        if len(match) != 1 or match[0] in chosen:
            break
        chosen += match
    return chosen


def _nvidia(root: Path) -> list[SystemDevice]:
    folder = root / "proc/driver/nvidia"
    has_driver = folder.exists() or sys.platform == "win32" or (root / "dev/dxg").exists()
    driver = nvidia_driver() if root == _ROOT and has_driver else None
    files = sorted(folder.glob("gpus/*/information"))
    return [_from_proc(text) for text in map(text_of, files) if text] if driver is None else list(driver)


@cache
def nvidia_driver() -> tuple[SystemDevice, ...] | None:
    """Return the devices that the driver reports, None if it does not respond; asked once, because it starts a
    process.
    """
    command = [sys.executable, "-P", "-m", "anyaccel.machine.nvml_probe"]
    if find_spec("pynvml") is not None and (answer := output_of(command)):
        return tuple(from_json(answer))
    smi = shutil.which("nvidia-smi")
    if smi and (answer := output_of([smi, f"--query-gpu={_SMI}", "--format=csv,noheader,nounits"])):
        return tuple(from_smi(answer))
    return None


hanging: list[Sequence[str]] = []
"""Commands that did not answer in this process."""


def output_of(command: Sequence[str]) -> str:
    """Return the output of a command that asks a driver, `""` if it fails or does not end in time.

    After one that did not end, none is asked in this process: it would hang as well.
    """
    if hanging:
        return ""
    try:
        child = run_bounded(command, PATIENCE)
    except subprocess.TimeoutExpired:
        hanging.append(command)
        return ""
    except (OSError, subprocess.SubprocessError):
        return ""
    return child.stdout if child.returncode == 0 else ""


def from_json(answer: str) -> list[SystemDevice]:
    """Return the devices that `nvml_probe` printed; none if it printed something else. Figures that cannot be are
    unknown.
    """
    try:
        rows = json.loads(answer.strip().splitlines()[-1])
        return [_reported(row["name"], row["identity"], row["nbytes"]) for row in rows[:_MOST_REPORTED]]
    except (ValueError, TypeError, LookupError, RecursionError):
        return []


def from_smi(answer: str) -> list[SystemDevice]:
    """Return the devices that `nvidia-smi` printed as CSV. Figures that cannot be are unknown."""
    rows = [[cell.strip() for cell in line.split(",")] for line in answer.splitlines()[:_MOST_REPORTED]]
    return [
        _reported(
            row[1], row[2], int(row[3]) * _MIB if row[3].isascii() and row[3].isdigit() and len(row[3]) < 10 else 0
        )
        for row in rows
        if len(row) == 5
    ]


def _reported(name: object, identity: object, nbytes: object) -> SystemDevice:
    """Return a device as a driver reports it; the report may be wrong or malformed."""
    size = nbytes if isinstance(nbytes, int) and 0 <= nbytes <= _MOST_BYTES else 0
    texts = [text[:_LONGEST_NAME] if isinstance(text, str) else "" for text in (name, identity)]
    return SystemDevice(kind="gpu", vendor="nvidia", name=texts[0], identity=texts[1], nbytes=size)


def _from_proc(text: str) -> SystemDevice:
    fields = dict(re.findall(r"^([\w ]+):\s*(.*\S)", text, re.MULTILINE))
    identity = fields.get("GPU UUID", "")
    is_known = identity and "?" not in identity  # question marks until the driver has read it
    return SystemDevice(
        kind="gpu",
        vendor="nvidia",
        name=fields.get("Model", ""),
        identity=identity if is_known else fields.get("Bus Location", ""),
    )


def _amd(root: Path) -> list[SystemDevice]:
    cards: Iterable[Path] = sorted(root.glob("sys/class/drm/card*/device/vendor"))
    folders = [file.parent for file in cards if re.fullmatch(r"card\d+", file.parent.parent.name)]
    devices = []
    for folder in folders:
        size = text_of(folder / "mem_info_vram_total").strip()
        if text_of(folder / "vendor").strip() == "0x1002" and size.isdigit():
            name = text_of(folder / "product_name").strip()
            address = folder.resolve().name
            devices.append(SystemDevice(kind="gpu", vendor="amd", name=name, nbytes=int(size), identity=address))
    return sorted(devices, key=lambda device: device.identity)


def text_of(path: Path) -> str:
    """Return the beginning of a system file; `""` if it cannot be read."""
    try:
        return path.read_text("utf-8", "replace")[:100_000]
    except OSError:
        return ""
