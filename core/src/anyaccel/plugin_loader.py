"""Plugin loader: finds plugins through entry points, and checks what a plugin module offers.

An entry point of the group `anyaccel` names a plugin module. Core's own plugin, NumPy, is named by `BUILT_IN_MODULE`
instead, so that it is there without installed metadata too and cannot be switched off.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pluggy

from anyaccel import hookspecs
from anyaccel.backend import Backend
from anyaccel.contract_names import renamed_class
from anyaccel.device import Device
from anyaccel.errors import AnyaccelError, PluginError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "anyaccel"
SWITCH = "ANYACCEL_PLUGINS"
BUILT_IN = "numpy"
BUILT_IN_MODULE = "anyaccel.numpy_backend.plugin"


@dataclass(frozen=True, slots=True)
class Plugin:
    """A plugin: `error` is None if it works, else the exception that loading it raised."""

    name: str
    distribution: str
    version: str
    error: BaseException | None = None
    backends: tuple[Backend, ...] = ()

    @property
    def source(self) -> str:
        """Its distribution, or its name where it is registered by hand."""
        return self.distribution or self.name

    @property
    def cause(self) -> str:
        """Why loading failed, in one line; `""` if it works."""
        if self.error is None:
            return ""
        message = " ".join(str(self.error).split())
        return message if isinstance(self.error, AnyaccelError) else f"{type(self.error).__name__}: {message}"

    @property
    def hint(self) -> str:
        """What to do about it; `""` if it works."""
        if self.error is None:
            return ""
        if isinstance(self.error, AnyaccelError) and self.error.hint:
            return self.error.hint
        if isinstance(self.error, ModuleNotFoundError) and self.error.name:
            return f"install the module {self.error.name!r}, or uninstall {self.source}"
        return f"update or uninstall {self.source}, or leave it out with {SWITCH}"

    def __str__(self) -> str:
        return f"{self.name} ({self.distribution or 'not a distribution'} {self.version})".replace(" )", ")")


def built_in_backend() -> Backend:
    """Core's own backend, from the `backends()` hook of `BUILT_IN_MODULE`."""
    return next(iter(import_module(BUILT_IN_MODULE).backends()))  # type: ignore[no-any-return]


def new_hooks() -> pluggy.PluginManager:
    """A pluggy plugin manager with the hook specifications and no plugin."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    return manager


def check_hooks(name: str, module: Any) -> None:
    """Raise pluggy.PluginValidationError if a module has an unknown hook, or a hook with an unknown argument."""
    manager = new_hooks()  # one of its own, because older pluggy leaves a refused plugin half registered
    manager.register(module, name)
    manager.check_pending()


def check_backends(plugin: Plugin) -> None:
    """Check what a plugin offers as backends, each on its own.

    Raises:
        PluginError: an object that is not a Backend, core's own framework, or kinds that are not canonical words.
    """
    for backend in plugin.backends:
        if not isinstance(backend, Backend):
            raise PluginError(
                f"plugin {plugin.name} offers {type(backend).__name__}, which is not a Backend",
                hint=f"derive it from anyaccel.Backend, or update {plugin.source}",
            )
        if backend.framework == BUILT_IN:
            raise PluginError(
                f"plugin {plugin.name} offers the framework {BUILT_IN!r}, which is core's own", hint="rename it"
            )
        _check_kinds(plugin, backend.kinds)


def _check_kinds(plugin: Plugin, kinds: Any) -> None:
    if not isinstance(kinds, tuple) or not kinds or not all(map(_is_canonical, kinds)):
        raise PluginError(
            f"plugin {plugin.name} offers a backend with kinds={kinds!r}",
            available="a tuple of canonical lower-case words, such as ('cpu', 'gpu')",
            hint=f"write kinds so, or update {plugin.source}",
        )


def _is_canonical(kind: Any) -> bool:
    try:
        return bool(Device(kind).kind == kind)
    except AnyaccelError:
        return False


def offered(plugin: Plugin, module: Any, hook: str, kind: type, default: Any) -> Any:
    """What a module's hook returns, as a `kind` (list or dict); `default` if it does not have the hook.

    Raises:
        PluginError: the hook lacks `@hookimpl`, or returns something else.
    """
    function = getattr(module, hook, None)
    if function is None:
        return default
    if not hasattr(function, f"{hookspecs.PROJECT}_impl"):
        raise PluginError(
            f"{hook}() of plugin {plugin.name} has no @hookimpl and would be ignored",
            hint=f"decorate it with anyaccel.hookimpl, or update {plugin.source}",
        )
    value = function()
    if not isinstance(value, Mapping if kind is dict else Iterable) or isinstance(value, (str, bytes)):
        raise PluginError(
            f"{hook}() of plugin {plugin.name} returned {type(value).__name__}, not {kind.__name__}",
            hint=f"return a {kind.__name__}, or update {plugin.source}",
        )
    return kind(value)


def load_error(plugin: Plugin, error: BaseException) -> BaseException:
    """`error` as it is told: an import of a renamed class of the contract becomes a PluginError."""
    renamed = renamed_class(error) if isinstance(error, ImportError) else ""
    if not renamed:
        return error
    return PluginError(
        f"plugin {plugin.name} imports a renamed class of the plugin contract: {renamed}",
        hint=f"rename it, or update {plugin.source}",
    )


def installed() -> Iterable[EntryPoint]:
    """The entry points of installed distributions; the only place that scans for them."""
    from importlib.metadata import entry_points

    return entry_points(group=GROUP)


def own_distribution() -> tuple[str, str]:
    """Name and version of core's distribution; the version is `""` if core is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return GROUP, version(GROUP)
    except PackageNotFoundError:
        return GROUP, ""


def wanted() -> set[str] | None:
    """The plugins that the environment variable `ANYACCEL_PLUGINS` allows; None if it is not set."""
    text = os.environ.get(SWITCH)
    return None if text is None else {name.strip() for name in text.split(",") if name.strip()}
