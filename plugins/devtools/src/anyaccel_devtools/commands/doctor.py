"""`anyaccel doctor`: problems that keep this machine from being used, each with the command that fixes it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from anyaccel.cli.child_process import run_child
from anyaccel.cli.console import print_json, print_line, print_table
from anyaccel.cli.plugin_loading import child_environment
from anyaccel.machine import Machine
from anyaccel.plugin_loader import Plugin
from anyaccel.registry import registry
from anyaccel_devtools.doctor import Check, check_machine, worst
from anyaccel_devtools.doctor.check import STATUSES

MARK = "anyaccel-checks "
"""Begins the line of a process that computes which has its checks."""
_MAX_CHILDREN = 4


def run(probe: bool, timeout: float, as_json: bool, left_out: Sequence[Plugin]) -> int:
    """Print all checks; returns the exit status: 0, 1 if there are warnings, 2 if something does not work.

    Args:
        probe: Also compute on every device, each backend in its own process.
        timeout: Seconds for each of these processes.
        as_json: Print JSON instead of a table.
        left_out: Plugins that could not be imported, as `load_plugins` returns them.
    """
    plugins = [*registry().plugins, *left_out]
    checks = check_machine(Machine.detect(), plugins)
    if probe:
        checks += probe_checks(plugins, timeout)
    status = worst(checks)
    if as_json:
        print_json({"status": status, "checks": [check.to_dict() for check in checks]})
    else:
        print_checks(checks)
    return STATUSES.index(status)


def print_checks(checks: Iterable[Check]) -> None:
    """Print a table of all checks, and below it what mends those that do not pass."""
    findings = list(checks)
    print_table(("", "check", "found"), [(check.status, check.name, check.message) for check in findings])
    for check in findings:
        if check.status != "PASS":
            style = "red" if check.status == "FAIL" else "yellow"
            print_line(f"{check.name}: {check.fix}", style=style)


def probe_checks(plugins: Sequence[Plugin], timeout: float) -> list[Check]:
    """Return the checks of the devices of all backends when they compute; a backend that hangs or crashes fails."""
    backends = [(plugin, index) for plugin in plugins for index in range(len(plugin.backends))]
    with ThreadPoolExecutor(_MAX_CHILDREN) as pool:
        answers = pool.map(lambda pair: list(_probe(pair[0], pair[1], timeout)), backends)
        return [check for checks in answers for check in checks]


def _probe(plugin: Plugin, index: int, timeout: float) -> Iterator[Check]:
    name = plugin.backends[index].framework
    try:
        words = (plugin.name, str(index))
        child = run_child(
            "anyaccel_devtools.commands.compute_probe", *words, timeout=timeout, environment=child_environment()
        )
    except subprocess.TimeoutExpired:
        yield _failed(name, f"did not end within {timeout:g} s", "try it again with a larger --timeout")
        return
    lines = [line for line in child.stdout.splitlines() if line.startswith(MARK)]
    if child.returncode or not lines:
        told = (child.stderr.strip().splitlines() or [""])[-1]
        yield _failed(name, f"ended with status {child.returncode}: {told}", f"update or uninstall {plugin.source}")
        return
    answer: list[dict[str, Any]] = json.loads(lines[-1].removeprefix(MARK))
    yield from (Check(**check) for check in answer)


def _failed(framework: str, how: str, fix: str) -> Check:
    message = f"the process that computes on its devices {how}"
    return Check(name=f"{framework} computes", status="FAIL", message=message, fix=fix)
