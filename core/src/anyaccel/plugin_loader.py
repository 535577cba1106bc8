"""Plugins as they are found: entry points, what a module offers, and what went wrong with one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pluggy

from anyaccel import hookspecs
from anyaccel.backend import Backend
from anyaccel.device import Device
from anyaccel.errors import AnyaccelError, PluginError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "anyaccel"
SWITCH = "ANYACCEL_PLUGINS"


@dataclass(frozen=True, slots=True)
class Plugin:
    """A plugin as it was found: `error` is None if it works, else what went wrong when it was loaded."""

    name: str
    distribution: str
    version: str
    error: BaseException | None = None
    backends: tuple[Backend, ...] = ()

    @property
    def cause(self) -> str:
        """What went wrong, in one line; `""` if nothing did."""
        if self.error is None:
            return ""
        if isinstance(self.error, AnyaccelError):
            return " ".join(str(self.error).split())
        return f"{type(self.error).__name__}: {' '.join(str(self.error).split())}"

    @property
    def remedy(self) -> str:
        """What to do about it; `""` if it works."""
        if self.error is None:
            return ""
        if isinstance(self.error, AnyaccelError) and self.error.hint:
            return self.error.hint
        if isinstance(self.error, ModuleNotFoundError) and self.error.name:
            return f"install the module {self.error.name!r}, or uninstall {self.distribution or self.name}"
        return f"update or uninstall {self.distribution or self.name}, or leave it out with {SWITCH}"

    def __str__(self) -> str:
        return f"{self.name} ({self.distribution or 'not a distribution'} {self.version})".replace(" )", ")")


def new_manager() -> pluggy.PluginManager:
    """A plugin manager that knows the moments, with nobody in it."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    return manager


def check_hooks(name: str, module: Any) -> None:
    """Make sure that a module's hooks are known ones, with known arguments.

    In a manager of its own, because older pluggy leaves a plugin that it refused half registered.

    Raises:
        pluggy.PluginValidationError: a hook or an argument that there is not.
    """
    trial = new_manager()
    trial.register(module, name)
    trial.check_pending()


def check_kinds(found: Plugin, kinds: Any) -> None:
    """Make sure that a backend's kinds are words by which somebody could ask for them.

    Raises:
        PluginError: they are none, or one is not in its canonical form.
    """
    strange = [kind for kind in kinds if not _is_canonical(kind)] if isinstance(kinds, tuple) else [kinds]
    if strange or not kinds:
        raise PluginError(
            f"plugin {found.name} offers a backend whose kinds are {kinds!r}",
            available="a tuple of canonical lower-case words, such as ('cpu', 'gpu')",
            hint=f"write them so, or update {found.distribution or found.name}",
        )


def _is_canonical(kind: Any) -> bool:
    try:
        return bool(Device(kind).kind == kind)
    except AnyaccelError:
        return False


def offered(found: Plugin, module: Any, hook: str, shape: type, default: Any) -> Any:
    """What a module's hook gives, as a list or dict; `default` if it has no such hook.

    Raises:
        PluginError: it gives something else.
    """
    function = getattr(module, hook, None)
    if function is None:
        return default
    if not hasattr(function, f"{hookspecs.PROJECT}_impl"):
        raise PluginError(
            f"plugin {found.name} has {hook}() without @hookimpl, so that it is no hook",
            hint=f"decorate it with anyaccel.hookimpl, or update {found.distribution or found.name}",
        )
    given = function()
    if not isinstance(given, Mapping if shape is dict else Iterable) or isinstance(given, (str, bytes)):
        raise PluginError(
            f"{hook}() of plugin {found.name} gave {type(given).__name__}, not a {shape.__name__}",
            hint=f"return a {shape.__name__}, or update {found.distribution or found.name}",
        )
    return shape(given)


def installed() -> Iterable[EntryPoint]:
    """The entry points of installed distributions; the only place that scans for them."""
    from importlib.metadata import entry_points

    return entry_points(group=GROUP)


def own_distribution() -> tuple[str, str]:
    """Name and version of core's own distribution; no version where it runs without being installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return GROUP, version(GROUP)
    except PackageNotFoundError:
        return GROUP, ""


def wanted() -> set[str] | None:
    """Names that the environment variable allows; None where it is not set and all are allowed."""
    text = os.environ.get(SWITCH)
    return None if text is None else {name.strip() for name in text.split(",") if name.strip()}
