"""`anyaccel env`: what a bug report should say of a machine, as Markdown, and nothing that is nobody's business."""

from __future__ import annotations

import os
import platform
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from anyaccel.cli.console import print_json, shown, size
from anyaccel.cli.devices import ask_all
from anyaccel.host_memory import host_memory
from anyaccel.install_hints import HINTS
from anyaccel.numpy_backend.sim_device import SWITCH as SIMULATE
from anyaccel.plugin_loader import SWITCH, own_distribution
from anyaccel.registry import registry

# Only these variables, and those that backends name, are ever read: an environment also holds secrets.
VARIABLES = (
    SWITCH,
    SIMULATE,
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "NVIDIA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
    "ONEAPI_DEVICE_SELECTOR",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
)
_LONGEST = 200
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL", re.IGNORECASE)  # a backend names what it likes
_CREDENTIALS = re.compile(r"://[^/\s@]+@")
# A path up to its last part, unless it begins with `~` or names what every system has; no address and no `a/b` in text.
_FOLDERS = re.compile(
    r"(?<![\w/\\.~])(?!(?<=:)//)(?!/(dev|proc|sys|usr|lib|lib64|etc|run)/)"
    r"([A-Za-z]:)?([\\/]+[^\s\\/:;,'\"<>|=()]+)+[\\/]+(?=[^\s\\/])"
)
_NVIDIA = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
_DRIVER_FILES = {"NVIDIA": Path("/proc/driver/nvidia/version"), "amdgpu": Path("/sys/module/amdgpu/version")}
_VERSION = re.compile(r"\b\d+(\.\d+)+\b")


def run(as_json: bool) -> None:
    """Print what there is."""
    found = gathered()
    if as_json:
        print_json(found)
    else:
        sys.stdout.write("\n".join(markdown(found)) + "\n")


def gathered() -> dict[str, Any]:
    """Versions, drivers, variables, plugins and devices as plain data; devices are asked in processes of their own."""
    there = registry()
    return {
        "anyaccel": own_distribution()[1],
        "python": f"{platform.python_version()} ({platform.python_implementation()}, {struct.calcsize('P') * 8} bit)",
        "system": platform.platform(),
        "cores": os.cpu_count() or 0,
        "memory": host_memory().total,
        "drivers": drivers(),
        "packages": packages(plugin.distribution for plugin in there.plugins),
        "variables": variables(name for backend in there.backends for name in backend.environment),
        "plugins": [
            {
                "name": plugin.name,
                "distribution": f"{plugin.distribution} {plugin.version}".strip(),
                "status": "ok" if plugin.error is None else "broken",
                "cause": _private(plugin.cause),
            }
            for plugin in there.plugins
        ],
        "frameworks": [_without_identities(one) for one in ask_all(there.frameworks)],
    }


def drivers() -> dict[str, str]:
    """Versions of the drivers that could be found, by name."""
    files = {name: _version_in(path) for name, path in _DRIVER_FILES.items()}
    files["NVIDIA"] = _answered(_NVIDIA) or files["NVIDIA"]
    return {name: version for name, version in files.items() if version}


def _version_in(path: Path) -> str:
    try:
        found = _VERSION.search(path.read_text("utf-8", "replace"))
    except OSError:
        return ""
    return found.group() if found else ""


def _answered(command: Sequence[str]) -> str:
    """The version in what a tool says, `""` where it is not there or does not answer."""
    tool = shutil.which(command[0])
    if tool is None:
        return ""
    try:
        answer = subprocess.run(
            [tool, *command[1:]], capture_output=True, text=True, errors="replace", timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = _VERSION.search(answer.stdout) if answer.returncode == 0 else None
    return found.group() if found else ""


def packages(distributions: Iterable[str]) -> dict[str, str]:
    """Versions of core, of plugins, of what these require, and of every known framework that is installed, by name."""
    of_modules = metadata.packages_distributions()
    names = {"anyaccel", *filter(None, distributions)}
    names |= {need for name in tuple(names) for need in _required(name)}
    names |= {name for module in HINTS for name in of_modules.get(module, ())}
    found = {_canonical(name): _installed(name) for name in names}
    return dict(sorted(found.items()))


def _required(distribution: str) -> list[str]:
    try:
        lines = metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:
        return []
    return [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in lines if "extra ==" not in line]


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _installed(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def variables(further: Iterable[str]) -> dict[str, str]:
    """The allowed variables that are set, by name: without folders, the user's home as `~`, long values cut.

    Of one whose name speaks of a secret it is only told that it is set.
    """
    found = {name: os.environ[name] for name in dict.fromkeys([*VARIABLES, *further]) if name in os.environ}
    return {name: "(set)" if _SECRET.search(name) else _private(value)[:_LONGEST] for name, value in found.items()}


def _private(text: str) -> str:
    """Text without the user's home folder, other folders and what signs in at an address."""
    home = os.path.expanduser("~")  # noqa: PTH111 - Path.home raises where there is none
    found = text.replace(home, "~") if len(home) > 1 else text
    return _FOLDERS.sub(".../", _CREDENTIALS.sub("://...@", found))


def _without_identities(framework: dict[str, Any]) -> dict[str, Any]:
    """Serial numbers are nobody's business; messages of a process may name folders."""
    devices = [{k: v for k, v in one.items() if k not in ("identity", "memory_space")} for one in framework["devices"]]
    missing = [{**one, "reason": _private(one["reason"])} for one in framework["missing"]]
    return {**framework, "devices": devices, "missing": missing}


def markdown(found: dict[str, Any]) -> list[str]:
    """The same for people and for the form of an issue, as lines."""
    drivers_ = ", ".join(f"{name} {version}" for name, version in found["drivers"].items())
    lines = [
        "### anyaccel env",
        "",
        f"- anyaccel {found['anyaccel']}, Python {found['python']}",
        f"- {found['system']}, {found['cores']} cores, {size(found['memory']) or 'unknown'} memory",
        f"- drivers: {drivers_ or 'none found'}",
        f"- packages: {', '.join(f'{name} {version}' for name, version in found['packages'].items())}",
        f"- variables: {', '.join(f'`{k}={_code(v)}`' for k, v in found['variables'].items()) or 'none set'}",
        "",
        *_table(("plugin", "distribution", "status"), [_plugin(one) for one in found["plugins"]]),
        "",
        *_table(("device", "native name", "product", "vendor", "memory"), _devices(found["frameworks"])),
        "",
    ]
    for framework in found["frameworks"]:
        reasons = [one for one in framework["missing"] if one["reason"]]
        lines += [f"- no {one['kind']} for {framework['framework']}: {_plain(one['reason'])}" for one in reasons]
    return lines


def _plugin(one: dict[str, Any]) -> tuple[str, ...]:
    return one["name"], one["distribution"], one["status"] + (f": {one['cause']}" if one["cause"] else "")


def _devices(frameworks: Iterable[dict[str, Any]]) -> list[tuple[str, ...]]:
    return [
        (one["device"], f"{entry['framework']} {one['native']}", one["name"], one["vendor"], size(one["total_memory"]))
        for entry in frameworks
        for one in entry["devices"]
    ]


def _table(title: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    cells = [title, ["---"] * len(title), *([_plain(cell) for cell in row] for row in rows)]
    return [f"| {' | '.join(row)} |" for row in cells]


def _plain(text: str) -> str:
    """Text that neither ends a cell nor is taken for HTML."""
    return shown(" ".join(text.split())).replace("|", "\\|").replace("<", "&lt;")


def _code(text: str) -> str:
    return shown(" ".join(text.split())).replace("`", "'")
