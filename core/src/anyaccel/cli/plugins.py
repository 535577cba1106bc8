"""`anyaccel plugins`."""

from __future__ import annotations

from typing import Any

from anyaccel.backend import capabilities
from anyaccel.cli.console import print_json, print_line, print_table
from anyaccel.hookspecs import HOOKS
from anyaccel.plugin_loader import Plugin
from anyaccel.registry import registry


def run(as_json: bool) -> int:
    """List plugins; 1 if one is broken, else 0."""
    found = registry().plugins
    if as_json:
        print_json({"plugins": [_described(plugin) for plugin in found]})
    else:
        _show(found)
    return int(any(plugin.error is not None for plugin in found))


def hooks_of(plugin: Plugin) -> tuple[str, ...]:
    """What a plugin has beside backends: `policies`, and the hooks of a phase in the order of their calls."""
    hooks = registry().hooks
    module = hooks.get_plugin(plugin.name) if plugin.error is None else None
    names = {caller.name for caller in (hooks.get_hookcallers(module) or ())} if module is not None else set()
    return tuple(name for name in ("policies", *HOOKS) if name in names)


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
        "hooks": list(hooks_of(plugin)),
        "cause": plugin.cause,
        "remedy": plugin.remedy,
    }


def _show(found: tuple[Plugin, ...]) -> None:
    rows = []
    for plugin in found:
        serves = "; ".join(f"{one.framework} on {', '.join(one.kinds)}" for one in plugin.backends)
        able = "; ".join(", ".join(capabilities(one)) for one in plugin.backends)
        status, hooks = "ok" if plugin.error is None else "broken", ", ".join(hooks_of(plugin))
        serves = serves or ("hooks only" if hooks else "")
        rows.append((plugin.name, f"{plugin.distribution} {plugin.version}".strip(), status, serves, able, hooks))
    print_table(("plugin", "distribution", "status", "serves", "capabilities", "hooks"), rows)
    for plugin in found:
        if plugin.error is not None:
            print_line(f"{plugin.name} is broken: {plugin.cause}", style="red")
            print_line(f"  to do: {plugin.remedy}")
