"""`anyaccel plugins`."""

from __future__ import annotations

from typing import Any

from anyaccel.backend import capabilities
from anyaccel.cli.output import print_json, print_line, print_table
from anyaccel.plugin import Plugin
from anyaccel.registry import registry


def run(as_json: bool) -> int:
    """List plugins; 1 if one is broken, else 0."""
    found = registry().plugins
    if as_json:
        print_json({"plugins": [_described(plugin) for plugin in found]})
    else:
        _show(found)
    return int(any(plugin.error is not None for plugin in found))


def _described(plugin: Plugin) -> dict[str, Any]:
    return {
        "name": plugin.name,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "status": "ok" if plugin.error is None else "broken",
        "backends": [
            {"framework": one.framework, "kinds": list(one.kinds), "capabilities": list(capabilities(one))}
            for one in plugin.backends
        ],
        "cause": plugin.cause,
        "remedy": plugin.remedy,
    }


def _show(found: tuple[Plugin, ...]) -> None:
    rows = []
    for plugin in found:
        serves = "; ".join(f"{one.framework} on {', '.join(one.kinds)}" for one in plugin.backends)
        able = "; ".join(", ".join(capabilities(one)) for one in plugin.backends)
        status = "ok" if plugin.error is None else "broken"
        rows.append((plugin.name, f"{plugin.distribution} {plugin.version}".strip(), status, serves, able))
    print_table(("plugin", "distribution", "status", "serves", "capabilities"), rows)
    for plugin in found:
        if plugin.error is not None:
            print_line(f"{plugin.name} is broken: {plugin.cause}", style="red")
            print_line(f"  to do: {plugin.remedy}")
