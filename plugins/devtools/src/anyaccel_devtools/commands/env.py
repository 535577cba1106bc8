"""`anyaccel env`: the facts of a machine for a bug report, as Markdown, without anything private."""

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

from anyaccel.cli.console import format_size, print_json
from anyaccel.cli.framework_probes import probe
from anyaccel.cli.plugin_loading import TIMEOUT
from anyaccel.host_memory import host_memory
from anyaccel.install_hints import HINTS
from anyaccel.plugin_loader import SWITCH, Plugin, own_distribution
from anyaccel.printable import printable
from anyaccel.registry import registry
from anyaccel_devtools.testing.subject_discovery import canonical_name

# Only these variables and those that backends name are read: an environment also holds secrets.
VARIABLES = (
    SWITCH,
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
_MAX_LENGTH = 200
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL", re.IGNORECASE)  # a backend may name any variable
_CREDENTIALS = re.compile(r"://[^/\s@]+@")
# The folders of a path, unless it starts with `~` or is a system folder; neither URLs nor `a/b` in text.
_FOLDERS = re.compile(
    r"(?<![\w/\\.~])(?!(?<=:)//)(?!/(dev|proc|sys|usr|lib|lib64|etc|run)/)"
    r"([A-Za-z]:)?([\\/]+[^\s\\/:;,'\"<>|=()]+)+[\\/]+(?=[^\s\\/])"
)
_NVIDIA = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
_DRIVER_FILES = {"NVIDIA": Path("/proc/driver/nvidia/version"), "amdgpu": Path("/sys/module/amdgpu/version")}
_VERSION = re.compile(r"\b\d+(\.\d+)+\b")


def run(timeout: float, as_json: bool, left_out: Sequence[Plugin]) -> None:
    """Print the facts as Markdown or JSON; see `collect`."""
    facts = collect(timeout, left_out)
    if as_json:
        print_json(facts)
    else:
        sys.stdout.write("\n".join(markdown(facts)) + "\n")


def collect(timeout: float = TIMEOUT, left_out: Sequence[Plugin] = ()) -> dict[str, Any]:
    """Return versions, drivers, variables, plugins and devices as plain data.

    Args:
        timeout: Seconds for listing the devices of each backend, in a child process.
        left_out: Plugins that could not be imported, as `load_plugins` returns them.
    """
    listings = probe(None, timeout)
    plugins = (*registry().plugins, *left_out)
    return {
        "anyaccel": own_distribution()[1],
        "python": f"{platform.python_version()} ({platform.python_implementation()}, {struct.calcsize('P') * 8} bit)",
        "system": platform.platform(),
        "cores": os.cpu_count() or 0,
        "memory": host_memory().total,
        "drivers": drivers(),
        "packages": packages(plugin.distribution for plugin in plugins),
        "variables": variables(name for backend in registry().backends for name in backend.environment),
        "plugins": [
            {
                "name": plugin.name,
                "distribution": f"{plugin.distribution} {plugin.version}".strip(),
                "status": plugin.status,
                "cause": _redact(plugin.cause),
            }
            for plugin in plugins
        ],
        "frameworks": [_redact_listing(listing) for listing in listings],
    }


def drivers() -> dict[str, str]:
    """Return versions of the installed drivers, by name."""
    versions = {name: _version_in(path) for name, path in _DRIVER_FILES.items()}
    versions["NVIDIA"] = _version_from(_NVIDIA) or versions["NVIDIA"]
    return {name: version for name, version in versions.items() if version}


def _version_in(path: Path) -> str:
    try:
        match = _VERSION.search(path.read_text("utf-8", "replace"))
    except OSError:
        return ""
    return match.group() if match else ""


def _version_from(command: Sequence[str]) -> str:
    """Return the version in the output of a tool, `""` if it is not installed or fails."""
    tool = shutil.which(command[0])
    if tool is None:
        return ""
    try:
        child = subprocess.run(
            [tool, *command[1:]], capture_output=True, text=True, errors="replace", timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    match = _VERSION.search(child.stdout) if child.returncode == 0 else None
    return match.group() if match else ""


def packages(distributions: Iterable[str]) -> dict[str, str]:
    """Return versions by name: core, plugins, their requirements, and every installed framework that core knows."""
    of_modules = metadata.packages_distributions()
    names = {"anyaccel", *filter(None, distributions)}
    names |= {requirement for name in tuple(names) for requirement in _requirements(name)}
    names |= {name for module in HINTS for name in of_modules.get(module, ())}
    return dict(sorted((canonical_name(name), _installed_version(name)) for name in names))


def _requirements(distribution: str) -> list[str]:
    try:
        lines = metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:
        return []
    return [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in lines if "extra ==" not in line]


def _installed_version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def variables(further: Iterable[str]) -> dict[str, str]:
    """Return the known variables that are set, by name: paths redacted, long values cut, `(set)` for likely secrets."""
    values = {name: os.environ[name] for name in dict.fromkeys([*VARIABLES, *further]) if name in os.environ}
    return {name: "(set)" if _SECRET.search(name) else _redact(value)[:_MAX_LENGTH] for name, value in values.items()}


def _redact(text: str) -> str:
    """Return text without the user's home folder, other folders, and credentials in URLs."""
    home = os.path.expanduser("~")  # noqa: PTH111 - Path.home raises where there is none
    without_home = text.replace(home, "~") if len(home) > 1 else text
    return _FOLDERS.sub(".../", _CREDENTIALS.sub("://...@", without_home))


def _redact_listing(listing: dict[str, Any]) -> dict[str, Any]:
    """Return the devices of a framework without serial numbers and folders."""
    devices = [
        {k: v for k, v in device.items() if k not in ("identity", "memory_space")} for device in listing["devices"]
    ]
    missing = [{**gap, "reason": _redact(gap["reason"])} for gap in listing["missing"]]
    return {**listing, "devices": devices, "missing": missing}


def markdown(facts: dict[str, Any]) -> list[str]:
    """Return the lines of what `collect` returned, to be pasted into an issue."""
    driver_versions = ", ".join(f"{name} {version}" for name, version in facts["drivers"].items())
    lines = [
        "### anyaccel env",
        "",
        f"- anyaccel {facts['anyaccel']}, Python {facts['python']}",
        f"- {facts['system']}, {facts['cores']} cores, {format_size(facts['memory']) or 'unknown'} memory",
        f"- drivers: {driver_versions or 'none found'}",
        f"- packages: {', '.join(f'{name} {version}' for name, version in facts['packages'].items())}",
        f"- variables: {', '.join(f'`{k}={_escape_code(v)}`' for k, v in facts['variables'].items()) or 'none set'}",
        "",
        *_table(("plugin", "distribution", "status"), map(_plugin_row, facts["plugins"])),
        "",
        *_table(("device", "native name", "product", "vendor", "memory"), _device_rows(facts["frameworks"])),
        "",
    ]
    for listing in facts["frameworks"]:
        missing = [gap for gap in listing["missing"] if gap["reason"]]
        lines += [f"- no {gap['kind']} for {listing['framework']}: {_escape_cell(gap['reason'])}" for gap in missing]
    return lines


def _plugin_row(plugin: dict[str, Any]) -> tuple[str, ...]:
    cause = f": {plugin['cause']}" if plugin["cause"] else ""
    return plugin["name"], plugin["distribution"], plugin["status"] + cause


def _device_rows(listings: Iterable[dict[str, Any]]) -> list[tuple[str, ...]]:
    return [
        (d["device"], f"{listing['framework']} {d['native']}", d["name"], d["vendor"], format_size(d["total_memory"]))
        for listing in listings
        for d in listing["devices"]
    ]


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    cells = [header, ["---"] * len(header), *([_escape_cell(cell) for cell in row] for row in rows)]
    return [f"| {' | '.join(row)} |" for row in cells]


def _escape_cell(text: str) -> str:
    """Return text that neither ends a table cell nor is read as HTML."""
    return printable(" ".join(text.split())).replace("|", "\\|").replace("<", "&lt;")


def _escape_code(text: str) -> str:
    return printable(" ".join(text.split())).replace("`", "'")
