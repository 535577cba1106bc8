"""`anyaccel devices`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from anyaccel.cli.console import print_json, print_line, print_table, size
from anyaccel.cli.device_probe import listing
from anyaccel.plugin_loader import BUILT_IN
from anyaccel.registry import registry

_TIMEOUT = 120.0


def run(framework: str | None, as_json: bool) -> None:
    """List devices, of one framework or of all."""
    if framework is not None:
        registry().kinds(framework)
    found = ask_all([framework] if framework else registry().frameworks)
    if as_json:
        print_json({"frameworks": found})
    else:
        _show(found)


def ask_all(frameworks: Iterable[str]) -> list[dict[str, Any]]:
    """What each of these frameworks lists, and why devices are missing: see `anyaccel.cli.device_probe`."""
    with ThreadPoolExecutor(max_workers=4) as pool:
        return list(pool.map(_ask, frameworks))


def _ask(framework: str) -> dict[str, Any]:
    """What a framework lists, asked in a process of its own but for the embedded one."""
    if framework == BUILT_IN:
        return listing(framework)
    # -P: a file of the working directory must not stand in for a module.
    command = [sys.executable, "-P", "-m", "anyaccel.cli.device_probe", framework]
    try:
        child = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return _failed(framework, f"did not answer within {_TIMEOUT:.0f} s")
    if child.returncode:
        lines = child.stderr.strip().splitlines()
        return _failed(framework, lines[-1] if lines else f"ended with status {child.returncode}")
    answer = next(filter(None, map(_read, reversed(child.stdout.splitlines()))), None)
    return answer or _failed(framework, f"gave no list: {child.stdout[-200:]!r}")


def _read(line: str) -> dict[str, Any] | None:
    """A list that `anyaccel.cli.device_probe` wrote; None for a line that somebody else wrote before or after it."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and found.keys() >= {"framework", "devices", "missing"} else None


def _failed(framework: str, reason: str) -> dict[str, Any]:
    return {"framework": framework, "devices": [], "missing": [{"kind": "any", "reason": reason}]}


def _show(found: list[dict[str, Any]]) -> None:
    rows = [
        (
            one["device"],
            f"{entry['framework']} {one['native']}",
            one["name"],
            one["vendor"],
            size(one["total_memory"]),
            one["identity"],
        )
        for entry in found
        for one in entry["devices"]
    ]
    print_table(("device", "native name", "product", "vendor", "memory", "identity"), rows)
    for entry in found:
        for missing in entry["missing"]:
            if missing["reason"]:
                print_line(f"no {missing['kind']} for {entry['framework']}: {missing['reason']}", style="dim")
