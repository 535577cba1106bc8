"""`anyaccel conform`: the conformance kit over an installed plugin, told as a score card."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from anyaccel.backend import Backend
from anyaccel.cli.console import console, print_json
from anyaccel.cli.plugins import hooks_of
from anyaccel.cli.score import Score, show, told, tried
from anyaccel.device import Device
from anyaccel.errors import CapabilityError, DeviceUnavailableError, PluginError
from anyaccel.install_hints import install_line
from anyaccel.plugin_loader import Plugin
from anyaccel.registry import registry
from anyaccel.testing.subject_discovery import canonical_name, published_subject

NEEDED = ("pytest", "hypothesis")


def run(name: str, device: str | None, timeout: float, as_json: bool) -> int:
    """Test every backend of a plugin; 1 if a test failed, else 0."""
    where = Device.parse(device) if device else None
    plugin = find(name)
    indices = [i for i, backend in enumerate(plugin.backends) if where is None or where.kind in backend.kinds]
    if not indices:
        raise _unserved(plugin, where)
    _need()
    scores = []
    for i in indices:
        backend = plugin.backends[i]
        with console(stderr=True).status(f"testing {backend.framework} on {', '.join(backend.kinds)} …"):
            scores.append(_checked(tried(plugin.name, i, published_subject(plugin, backend), where, timeout), backend, where))
    if as_json:
        print_json(_described(plugin, scores))
    else:
        show(f"{plugin.distribution} {plugin.version}".strip(), scores)
    return int(any(score.failures for score in scores))


def find(name: str) -> Plugin:
    """An installed plugin that works, by its own name or that of its distribution.

    Raises:
        PluginError: it is not there, or broken.
        CapabilityError: it offers no backend, so that there is nothing to test.
    """
    there = registry().plugins
    plugin = next((one for one in there if one.name == name), None)
    plugin = plugin or next((one for one in there if canonical_name(one.distribution) == canonical_name(name)), None)
    if plugin is None:
        raise PluginError(
            f"no plugin called {name!r} is installed, and no distribution of that name has one",
            available=", ".join(one.name for one in there),
            hint="check the spelling, or install it; `anyaccel plugins` lists them",
        )
    if plugin.error is not None:
        raise PluginError(f"plugin {plugin} is broken: {plugin.cause}", hint=plugin.remedy)
    if not plugin.backends:
        raise _without_backend(plugin)
    return plugin


def _without_backend(plugin: Plugin) -> CapabilityError:
    hooks = hooks_of(plugin)
    has = f"hooks only ({', '.join(hooks)})" if hooks else "nothing at all"
    return CapabilityError(
        f"plugin {plugin} has no backend, and backends are what the kit tests; it has {has}",
        available=f"plugins with a backend: {', '.join(one.name for one in registry().plugins if one.backends)}",
        hint="name one of these; a plugin of hooks has tests of its own",
    )


def _unserved(plugin: Plugin, where: Device | None) -> DeviceUnavailableError:
    serves = "; ".join(f"{one.framework} on {', '.join(one.kinds)}" for one in plugin.backends)
    return DeviceUnavailableError(
        f"plugin {plugin} does not serve {where}", available=serves, hint="name one of these kinds"
    )


def _need() -> None:
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise CapabilityError(
            f"the conformance kit needs {' and '.join(NEEDED)}: {' and '.join(missing)} cannot be imported",
            hint=install_line(" ".join(missing)),
        )


def _checked(score: Score, backend: Backend, where: Device | None) -> Score:
    """The score, if it is one of the device that was asked for.

    Raises:
        PluginError: nothing could be tested at all.
        DeviceUnavailableError: the device is not on this machine.
    """
    if score.broken:
        raise PluginError(
            f"the kit cannot be run on {backend.framework}: {score.broken}",
            hint=f"mend {score.subject or 'the plugin'}; `python -m pytest` in its project shows more",
        )
    if where is not None and str(where) not in score.facts.get("devices", [str(where)]):
        reason = backend.unavailable_reason(where)
        raise DeviceUnavailableError(
            f"{where} is not on this machine for {backend.framework}" + (f" ({reason})" if reason else ""),
            available=", ".join(score.facts["devices"]) or "no device",
            hint="leave --device out, or name one of these",
        )
    return score


def _described(plugin: Plugin, scores: list[Score]) -> dict[str, Any]:
    roots = [root for score in scores for root in score.facts.get("import_roots", ())]
    names = dict.fromkeys(("anyaccel", plugin.distribution, *roots, *NEEDED))
    versions = {name: found for name in names if (found := _version(name))}
    return {
        "plugin": plugin.name,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "versions": {"python": platform.python_version(), **versions},
        "platform": platform.platform(),
        "conforms": not any(score.failures for score in scores),
        "backends": [told(score) for score in scores],
    }


def _version(distribution: str) -> str:
    try:
        return version(distribution) if distribution else ""
    except PackageNotFoundError:
        return ""
