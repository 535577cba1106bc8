"""`anyaccel devices`: list the devices of each framework, asked in a child process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from anyaccel.cli.console import format_size, print_json, print_line, print_table
from anyaccel.cli.device_probe import list_devices
from anyaccel.plugin_loader import BUILT_IN
from anyaccel.registry import registry

_TIMEOUT = 120.0  # seconds


def run(framework: str | None, as_json: bool) -> None:
    """Print the devices of one framework, or of all."""
    if framework is not None:
        registry().kinds(framework)
    listings = probe([framework] if framework else registry().frameworks)
    if as_json:
        print_json({"frameworks": listings})
    else:
        _print_listings(listings)


def probe(frameworks: Iterable[str]) -> list[dict[str, Any]]:
    """The devices of each framework, as `anyaccel.cli.device_probe` lists them."""
    with ThreadPoolExecutor(max_workers=4) as pool:
        return list(pool.map(_probe_one, frameworks))


def _probe_one(framework: str) -> dict[str, Any]:
    """The devices of a framework, listed in a child process unless it is NumPy: others may initialize or crash."""
    if framework == BUILT_IN:
        return list_devices(framework)
    # -P: a file of the working directory must not stand in for a module.
    command = [sys.executable, "-P", "-m", "anyaccel.cli.device_probe", framework]
    try:
        child = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return _failed(framework, f"did not answer within {_TIMEOUT:.0f} s")
    if child.returncode:
        lines = child.stderr.strip().splitlines()
        return _failed(framework, lines[-1] if lines else f"ended with status {child.returncode}")
    listing = next(filter(None, map(_parse_listing, reversed(child.stdout.splitlines()))), None)
    return listing or _failed(framework, f"gave no list: {child.stdout[-200:]!r}")


def _parse_listing(line: str) -> dict[str, Any] | None:
    """A line of `anyaccel.cli.device_probe`; None for what the framework printed before or after it."""
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) and value.keys() >= {"framework", "devices", "missing"} else None


def _failed(framework: str, reason: str) -> dict[str, Any]:
    return {"framework": framework, "devices": [], "missing": [{"kind": "any", "reason": reason}]}


def _print_listings(listings: Iterable[dict[str, Any]]) -> None:
    rows = [
        (
            device["device"],
            f"{listing['framework']} {device['native']}",
            device["name"],
            device["vendor"],
            format_size(device["total_memory"]),
            device["identity"],
        )
        for listing in listings
        for device in listing["devices"]
    ]
    print_table(("device", "native name", "product", "vendor", "memory", "identity"), rows)
    for listing in listings:
        for missing in listing["missing"]:
            if missing["reason"]:
                print_line(f"no {missing['kind']} for {listing['framework']}: {missing['reason']}", style="dim")
