"""Asks each framework for its devices, in its own process: it may initialize, hang or crash."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from anyaccel.cli.child_process import last_answer, run_child
from anyaccel.cli.console import console
from anyaccel.cli.device_probe import describe_broken, list_devices, merged, served_backends
from anyaccel.cli.plugin_loading import child_environment
from anyaccel.plugin_loader import BUILT_IN, Plugin
from anyaccel.registry import registry

_MAX_CHILDREN = 8
_PROBE = "the process that lists the devices of its backend for"


def probe_all(framework: str | None, timeout: float, left_out: Sequence[Plugin]) -> dict[str, Any]:
    """Return the listings of `probe`, and the plugins that are `broken`, as plain data.

    Args:
        framework: None for all.
        timeout: seconds for each backend.
        left_out: plugins that could not be imported, as `load_plugins` returns them.

    Raises:
        FrameworkError: no plugin runs the framework.
    """
    if framework is not None:
        registry().kinds(framework)
    listings = probe(framework, timeout)
    return {"frameworks": listings, "broken": describe_broken((*registry().plugins, *left_out))}


def probe(framework: str | None, timeout: float) -> list[dict[str, Any]]:
    """Return the devices of each framework, or of one: `framework`, `devices`, `missing`. Plugins get faults and
    delays.

    Args:
        framework: None for all.
        timeout: seconds for each backend; one that does not answer in time is slow.
    """
    asked = served_backends(framework)
    with ThreadPoolExecutor(_MAX_CHILDREN) as pool, console(stderr=True).status("") as status:
        jobs = {pool.submit(_probe_one, plugin, i, timeout): plugin for plugin, i in asked}
        waiting = dict.fromkeys(plugin.name for plugin, _ in asked)
        status.update(f"waiting for {', '.join(waiting)} (devices) …")
        for job in as_completed(jobs):
            waiting.pop(jobs[job].name, None)
            status.update(f"waiting for {', '.join(waiting)} (devices) …")
    return merged((plugin, job.result()) for job, plugin in jobs.items())


def _probe_one(plugin: Plugin, index: int, timeout: float) -> dict[str, Any]:
    """Return the devices of a backend, listed in a child process if it is installed: it may initialize, hang or
    crash.
    """
    if not plugin.distribution or plugin.name == BUILT_IN:
        return list_devices(plugin.name, index)
    framework = plugin.backends[index].framework
    try:
        words = (plugin.name, str(index))
        child = run_child("anyaccel.cli.device_probe", *words, timeout=timeout, environment=child_environment())
    except subprocess.TimeoutExpired:
        delay = f"{_PROBE} {framework} did not answer within {timeout:g} s"
        return {"framework": framework, "devices": [], "missing": [], "faults": [], "delays": [delay]}
    if child.returncode:
        lines = child.stderr.strip().splitlines()
        return _failed(framework, f"ended with status {child.returncode}" + (f": {lines[-1]}" if lines else ""))
    listing = last_answer(child.stdout, ("framework", "devices", "missing", "faults"))
    return listing or _failed(framework, f"returned no list: {child.stdout[-200:]!r}")


def _failed(framework: str, how: str) -> dict[str, Any]:
    return {"framework": framework, "devices": [], "missing": [], "faults": [f"{_PROBE} {framework} {how}"]}
