"""Checkup: all checks of a machine: of the system, of the plugins, and those that backends add."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec

from anyaccel.backend import Backend
from anyaccel.doctor.capability import HealthChecks
from anyaccel.doctor.check import Check
from anyaccel.doctor.machine import Machine
from anyaccel.doctor.system_checks import system_checks
from anyaccel.install_hints import install_line
from anyaccel.plugin_loader import BUILT_IN, Plugin
from anyaccel.suggestions import did_you_mean

_PREFIX = "ANYACCEL_"
VARIABLES = ("ANYACCEL_DEVICE", "ANYACCEL_PLUGINS", "ANYACCEL_REPLICA_TIMEOUT", "ANYACCEL_SIMULATE")
"""What core reads; a variable of a plugin has the plugin's name, or that of its framework, after the prefix."""


def check_machine(machine: Machine, plugins: Sequence[Plugin]) -> list[Check]:
    """All checks that need no framework, for these facts and these loaded plugins."""
    own = [check for plugin in plugins for check in plugin_checks(machine, plugin)]
    return [*system_checks(machine), *_variables(machine, plugins), *own]


def _variables(machine: Machine, plugins: Sequence[Plugin]) -> Iterator[Check]:
    """Variables of the environment that begin like anyaccel's, and that nothing reads: a slip has no effect."""
    names = {plugin.name for plugin in plugins} | {it.framework for plugin in plugins for it in plugin.backends}
    of_plugins = tuple(f"{_PREFIX}{re.sub('[^A-Z0-9]', '_', name.upper())}" for name in names - {BUILT_IN})
    for name, value in machine.environment.items():
        if name.startswith(_PREFIX) and name not in VARIABLES and not name.startswith(of_plugins):
            fix = f"unset {name}; {did_you_mean(name, VARIABLES, 'anyaccel reads ' + ', '.join(VARIABLES), cutoff=0.8)}"
            yield Check(name=name, status="WARN", message=f"{name}={value} is read by nothing", fix=fix)
    allowed = machine.environment.get("ANYACCEL_PLUGINS", "")
    for name in {word.strip() for word in allowed.split(",")} - {plugin.name for plugin in plugins} - {""}:
        yield Check(
            name="ANYACCEL_PLUGINS",
            status="WARN",
            message=f"ANYACCEL_PLUGINS={allowed} names {name!r}, and no plugin of this name is installed",
            fix=did_you_mean(name, [plugin.name for plugin in plugins], "`anyaccel plugins` lists those installed"),
        )


def plugin_checks(machine: Machine, plugin: Plugin) -> Iterator[Check]:
    """Whether a plugin works, whether its frameworks are installed, and what its backends say."""
    if plugin.is_broken:
        yield Check(name=f"plugin {plugin.name}", status="FAIL", message=plugin.cause, fix=plugin.hint)
    elif plugin.delays:
        yield Check(name=f"plugin {plugin.name}", status="WARN", message=plugin.cause, fix=plugin.hint)
    elif plugin.name != BUILT_IN:
        yield Check(
            name=f"plugin {plugin.name}", status="PASS", message=f"{plugin.distribution} {plugin.version}".strip()
        )
    for backend in plugin.backends:
        yield from _backend_checks(machine, plugin, backend)


def _backend_checks(machine: Machine, plugin: Plugin, backend: Backend) -> Iterator[Check]:
    missing = [] if plugin.name == BUILT_IN else _missing(backend.import_roots)
    if missing:
        yield Check(
            name=backend.framework,
            status="WARN",
            message=f"plugin {plugin.name} is installed, and {missing[0]} is not",
            fix=install_line(missing[0]),
        )
    elif (checks := backend.capability(HealthChecks)) is not None:
        yield from _asked(checks, machine, plugin)


def _missing(roots: Iterable[str]) -> list[str]:
    """The first root, if it cannot be found; the others are of packages that need not be there."""
    return [root for root in list(roots)[:1] if root not in sys.modules and find_spec(root) is None]


def _asked(checks: HealthChecks, machine: Machine, plugin: Plugin) -> list[Check]:
    try:
        return list(checks.health_checks(machine))
    except Exception as error:
        problem = f"its checks of the machine fail: {type(error).__name__}: {error}"
        return [Check(name=f"plugin {plugin.name}", status="FAIL", message=problem, fix=f"update {plugin.source}")]
