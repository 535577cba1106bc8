"""`anyaccel devices`: list the devices of each framework, in child processes, as a backend may hang or crash."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from anyaccel.cli.child_process import last_answer, run_child
from anyaccel.cli.console import format_size, print_json, print_line, print_table

if TYPE_CHECKING:
    from anyaccel.plugin_loader import Plugin

_PATIENCE = 10.0  # seconds for all backends in one process, before each gets its own


def run(
    framework: str | None, timeout: float, as_json: bool, load: Callable[[], Sequence[Plugin]], *, ask: bool
) -> None:
    """Print the devices of one framework, or of all, and the plugins that are broken.

    Args:
        framework: None for all.
        timeout: seconds for each backend.
        as_json: print JSON instead of a table.
        load: loads the plugins; returns those that could not be imported.
        ask: ask each framework in its own process; otherwise only where it must be, or something fails.

    Raises:
        FrameworkError: no plugin runs the framework.
    """
    expected_devices = None if ask else expected(framework, timeout)
    if expected_devices is None:
        from anyaccel.cli.framework_probes import probe_all  # imports what the fast way does without

        expected_devices = probe_all(framework, timeout, load())
    if as_json:
        print_json(expected_devices)
    else:
        listings = expected_devices["frameworks"]
        frameworks = list(listings)
        rows = [
            (
                device["device"],
                f"{listing['framework']} {device['native']}",
                device["name"],
                device["vendor"],
                format_size(device["total_memory"]),
                device["identity"],
            )
            for listing in frameworks
            for device in listing["devices"]
        ]
        print_table(("device", "native name", "product", "vendor", "memory", "identity"), rows)
        for line in _reasons(frameworks):
            print_line(line, style="dim")
        print_broken(expected_devices["broken"])


def print_broken(broken: Iterable[Mapping[str, str]]) -> None:
    """Print the faults of broken and slow plugins, and how to fix them."""
    for plugin in broken:
        style = "red" if plugin["status"] == "broken" else "yellow"
        print_line(f"{plugin['name']} is {plugin['status']}: {plugin['cause']}", style=style)
        print_line(f"  Hint: {plugin['hint']}")


def expected(framework: str | None, timeout: float) -> dict[str, Any] | None:
    """Return the listing of all backends by one process, which imports frameworks only where a backend cannot tell
    without.

    Returns:
        `frameworks` and `broken`; None if the process fails.
    """
    try:
        child = run_child("anyaccel.cli.device_probe", "all", framework or "", timeout=min(timeout, _PATIENCE))
    except subprocess.TimeoutExpired:
        return None
    return None if child.returncode else last_answer(child.stdout, ("frameworks", "broken"))


def _reasons(listings: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Why each framework has no device of a kind, a line each, if known."""
    for listing in listings:
        for missing in listing["missing"]:
            if missing["reason"] and missing["kind"] != "any":  # of a broken plugin, which is printed by itself
                yield f"no {missing['kind']} for {listing['framework']}: {missing['reason']}"
