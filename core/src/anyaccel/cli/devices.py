"""`anyaccel devices`: list the devices of each framework, each backend asked in a child process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from anyaccel.cli.console import console, format_size, print_json, print_line, print_table
from anyaccel.cli.device_probe import list_devices, served_kinds
from anyaccel.cli.plugin_loading import child_environment
from anyaccel.plugin_loader import BUILT_IN, Plugin
from anyaccel.registry import registry

_MAX_CHILDREN = 8
_ANY = "any"


def run(framework: str | None, timeout: float, as_json: bool, left_out: Sequence[Plugin]) -> None:
    """Print the devices of one framework, or of all, and the plugins that are broken.

    Args:
        framework: None for all.
        timeout: seconds for each backend.
        as_json: print JSON instead of a table.
        left_out: plugins that could not be imported, as `load_plugins` returns them.
    """
    if framework is not None:
        registry().kinds(framework)
    listings = probe(framework, timeout)
    broken = [plugin for plugin in (*registry().plugins, *left_out) if plugin.is_broken]
    if as_json:
        named = [{"name": plugin.name, "cause": plugin.cause, "hint": plugin.hint} for plugin in broken]
        print_json({"frameworks": listings, "broken": named})
    else:
        _print_listings(listings)
        print_broken(broken)


def print_broken(plugins: Iterable[Plugin]) -> None:
    """Print what is wrong with broken plugins, and what to do."""
    for plugin in plugins:
        print_line(f"{plugin.name} is broken: {plugin.cause}", style="red")
        print_line(f"  Hint: {plugin.hint}")


def probe(framework: str | None, timeout: float) -> list[dict[str, Any]]:
    """The devices of each framework, or of one: `framework`, `devices`, `missing`. Faults are added to the plugins.

    Args:
        framework: None for all.
        timeout: seconds for each backend; one that does not answer in time is broken.
    """
    merged: dict[str, dict[str, Any]] = {}
    for plugin, listing in _probe_all(framework, timeout):
        name = listing["framework"]
        whole = merged.setdefault(name, {"framework": name, "devices": [], "missing": []})
        for fault in listing["faults"]:
            plugin.add_fault(fault, "")
            whole["missing"].append({"kind": _ANY, "reason": f"plugin {plugin} is broken: {fault}"})
        whole["devices"] += listing["devices"]
        whole["missing"] += listing["missing"]
    return list(merged.values())


def _probe_all(framework: str | None, timeout: float) -> list[tuple[Plugin, dict[str, Any]]]:
    """What every backend that serves something lists, in the order of the plugins."""
    offers = [(plugin, i) for plugin in registry().plugins for i in range(len(plugin.backends))]
    backends = [(plugin, i, plugin.backends[i]) for plugin, i in offers]
    asked = [(p, i) for p, i, b in backends if framework in (None, b.framework) and served_kinds(b)]
    with ThreadPoolExecutor(_MAX_CHILDREN) as pool, console(stderr=True).status("") as status:
        jobs = {pool.submit(_probe_one, plugin, i, timeout): (plugin, i) for plugin, i in asked}
        waiting = dict.fromkeys(plugin.name for plugin, _ in asked)
        status.update(f"waiting for {', '.join(waiting)} (devices) …")
        for job in as_completed(jobs):
            waiting.pop(jobs[job][0].name, None)
            status.update(f"waiting for {', '.join(waiting)} (devices) …")
    return [(plugin, job.result()) for job, (plugin, _) in jobs.items()]


def _probe_one(plugin: Plugin, index: int, timeout: float) -> dict[str, Any]:
    """The devices of a backend, listed in a child process if it is installed: it may initialize, hang or crash."""
    if not plugin.distribution or plugin.name == BUILT_IN:
        return list_devices(plugin.name, index)
    framework = plugin.backends[index].framework
    # -P: a file of the working directory must not stand in for a module.
    command = [sys.executable, "-P", "-m", "anyaccel.cli.device_probe", plugin.name, str(index)]
    try:
        child = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
            env=child_environment(),
        )
    except subprocess.TimeoutExpired:
        return _failed(framework, f"did not answer within {timeout:g} s")
    if child.returncode:
        lines = child.stderr.strip().splitlines()
        return _failed(framework, f"ended with status {child.returncode}" + (f": {lines[-1]}" if lines else ""))
    listing = next(filter(None, map(_parse_listing, reversed(child.stdout.splitlines()))), None)
    return listing or _failed(framework, f"gave no list: {child.stdout[-200:]!r}")


def _parse_listing(line: str) -> dict[str, Any] | None:
    """A line of `anyaccel.cli.device_probe`; None for what the framework printed before or after it."""
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) and value.keys() >= {"framework", "devices", "missing", "faults"} else None


def _failed(framework: str, how: str) -> dict[str, Any]:
    fault = f"the process that lists the devices of its backend for {framework} {how}"
    return {"framework": framework, "devices": [], "missing": [], "faults": [fault]}


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
            if missing["reason"] and missing["kind"] != _ANY:
                print_line(f"no {missing['kind']} for {listing['framework']}: {missing['reason']}", style="dim")
