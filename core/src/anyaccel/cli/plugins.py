"""`anyaccel plugins`: list the installed plugins, and the faults of broken ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anyaccel.backend import capabilities
from anyaccel.cli.console import print_json, print_table
from anyaccel.cli.device_probe import describe_broken, served_kinds
from anyaccel.cli.devices import print_broken
from anyaccel.cli.framework_probes import probe
from anyaccel.hookspecs import HOOKS
from anyaccel.plugin_loader import Plugin
from anyaccel.registry import registry


def run(timeout: float, as_json: bool, left_out: Sequence[Plugin]) -> int:
    """Print the plugins; returns 1 if one is broken or slow, otherwise 0.

    Every backend is asked for its devices to find that out.

    Args:
        timeout: seconds for each backend.
        as_json: print JSON instead of a table.
        left_out: plugins that could not be imported, as `load_plugins` returns them.
    """
    probe(None, timeout)
    plugins = (*registry().plugins, *left_out)
    if as_json:
        print_json({"plugins": [_describe(plugin) for plugin in plugins]})
    else:
        rows = []
        for plugin in plugins:
            backends = [(backend, kinds) for backend in plugin.backends if (kinds := served_kinds(backend))]
            serves = "; ".join(f"{backend.framework} on {', '.join(kinds)}" for backend, kinds in backends)
            offered = "; ".join(", ".join(capabilities(backend)) for backend, _ in backends)
            hooks, source = ", ".join(hooks_of(plugin)), f"{plugin.distribution} {plugin.version}".strip()
            serves = serves or ("hooks only" if hooks else "")
            rows.append((plugin.name, source, plugin.status, serves, offered, hooks))
        print_table(("plugin", "distribution", "status", "serves", "capabilities", "hooks"), rows)
        print_broken(describe_broken(plugins))
    return int(any(plugin.status != "ok" for plugin in plugins))


def hooks_of(plugin: Plugin) -> tuple[str, ...]:
    """Return the hooks that a plugin implements in addition to `backends`: `policies`, and those of a phase in the
    order of calls.
    """
    hooks = registry().hooks
    module = hooks.get_plugin(plugin.name) if plugin.error is None else None
    names = {caller.name for caller in (hooks.get_hookcallers(module) or ())} if module is not None else set()
    return tuple(name for name in ("capabilities", "policies", *HOOKS) if name in names)


def _describe(plugin: Plugin) -> dict[str, Any]:
    return {
        "name": plugin.name,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "status": plugin.status,
        "backends": [
            {"framework": backend.framework, "kinds": kinds, "capabilities": list(capabilities(backend))}
            for backend in plugin.backends
            if (kinds := served_kinds(backend))
        ],
        "hooks": list(hooks_of(plugin)),
        "cause": plugin.cause,
        "hint": plugin.hint,
    }
