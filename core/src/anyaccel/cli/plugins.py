"""`anyaccel plugins`: list the installed plugins and what is wrong with broken ones."""

from __future__ import annotations

from typing import Any

from anyaccel.backend import capabilities
from anyaccel.cli.console import print_json, print_line, print_table
from anyaccel.hookspecs import HOOKS
from anyaccel.plugin_loader import Plugin
from anyaccel.registry import registry


def run(as_json: bool) -> int:
    """Print the plugins; returns 1 if one is broken, else 0."""
    plugins = registry().plugins
    if as_json:
        print_json({"plugins": [_describe(plugin) for plugin in plugins]})
    else:
        _print_plugins(plugins)
    return int(any(plugin.error is not None for plugin in plugins))


def hooks_of(plugin: Plugin) -> tuple[str, ...]:
    """The hooks that a plugin implements beside `backends`: `policies`, and those of a phase in the order of calls."""
    hooks = registry().hooks
    module = hooks.get_plugin(plugin.name) if plugin.error is None else None
    names = {caller.name for caller in (hooks.get_hookcallers(module) or ())} if module is not None else set()
    return tuple(name for name in ("policies", *HOOKS) if name in names)


def _describe(plugin: Plugin) -> dict[str, Any]:
    return {
        "name": plugin.name,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "status": "ok" if plugin.error is None else "broken",
        "backends": [
            {"framework": backend.framework, "kinds": list(backend.kinds), "capabilities": list(capabilities(backend))}
            for backend in plugin.backends
        ],
        "hooks": list(hooks_of(plugin)),
        "cause": plugin.cause,
        "hint": plugin.hint,
    }


def _print_plugins(plugins: tuple[Plugin, ...]) -> None:
    rows = []
    for plugin in plugins:
        serves = "; ".join(f"{backend.framework} on {', '.join(backend.kinds)}" for backend in plugin.backends)
        offered = "; ".join(", ".join(capabilities(backend)) for backend in plugin.backends)
        status, hooks = "ok" if plugin.error is None else "broken", ", ".join(hooks_of(plugin))
        serves = serves or ("hooks only" if hooks else "")
        rows.append((plugin.name, f"{plugin.distribution} {plugin.version}".strip(), status, serves, offered, hooks))
    print_table(("plugin", "distribution", "status", "serves", "capabilities", "hooks"), rows)
    for plugin in plugins:
        if plugin.error is not None:
            print_line(f"{plugin.name} is broken: {plugin.cause}", style="red")
            print_line(f"  Hint: {plugin.hint}")
