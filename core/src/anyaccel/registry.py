"""Registry: plugins, loaded on first need into one table of backends by (framework, kind)."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, cast

import pluggy

from anyaccel import plugin_loader as loader
from anyaccel.backend import Backend, Compute, ComputingBackend, Exchange
from anyaccel.device import Device
from anyaccel.errors import (
    AmbiguousOwnerError,
    CapabilityError,
    DeviceUnavailableError,
    FrameworkError,
    NoBackendError,
    PluginError,
)
from anyaccel.install_hints import distribution_for, hint_of, install_line
from anyaccel.plugin_loader import BUILT_IN as BUILT_IN
from anyaccel.plugin_loader import Plugin

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


class Registry:
    """The table of backends; thread-safe, and filled once, on first need.

    Args:
        built_in: creates core's own backend.
        entry_points: gives the entry points to load; by default those of installed distributions.
    """

    def __init__(
        self,
        built_in: Callable[[], Backend] = loader.built_in_backend,
        entry_points: Callable[[], Iterable[EntryPoint]] = loader.installed,
    ) -> None:
        self._built_in = built_in
        self._entry_points = entry_points
        self._lock = threading.RLock()
        self._loaded = False
        self._loading = False
        self._clear()

    def load(self) -> None:
        """Load the built-in backend and every plugin, once. Never raises: `plugins` has what failed."""
        if self._loaded:
            return
        with self._lock:
            if self._loaded or self._loading:  # a plugin that asks while it is loaded sees what is loaded so far
                return
            self._loading = True
            try:
                self._load()
                self._loaded = True
            finally:
                self._loading = False

    def _load(self) -> None:
        self._clear()  # a load that Ctrl-C ended starts again
        self._enter(Plugin(BUILT_IN, *loader.own_distribution(), backends=(self._built_in(),)))
        allowed = loader.wanted()
        for entry in sorted(self._entry_points(), key=lambda entry: (entry.name, entry.value)):
            if allowed is None or entry.name in allowed:
                self._load_entry(entry)

    def _clear(self) -> None:
        self._plugins: dict[str, Plugin] = {}
        self._table: dict[tuple[str, str], Backend] = {}
        self._policies: dict[str, Callable[..., Any]] = {}
        self._owners: dict[type, tuple[str, ...]] = {}
        self._hooks = loader.new_hooks()

    def register(self, module: Any, name: str) -> None:
        """Register a plugin module by hand, as an entry point of that name would. For tests and notebooks.

        Raises:
            PluginError: it is broken, or offers what another plugin has.
        """
        self.load()
        with self._lock:
            plugin = self._try(Plugin(name, "", ""), lambda: module)
            if isinstance(plugin.error, PluginError):
                raise plugin.error
            if plugin.error is not None:
                raise PluginError(f"plugin {name} is broken: {plugin.cause}", hint=plugin.hint) from plugin.error
            self._plugins[name] = plugin

    def _load_entry(self, entry: EntryPoint) -> None:
        dist = entry.dist
        plugin = self._try(Plugin(entry.name, dist.name if dist else "", dist.version if dist else ""), entry.load)
        if plugin.error is not None:
            self._plugins[entry.name if entry.name not in self._plugins else f"{entry.name} ({entry.value})"] = plugin

    def _try(self, plugin: Plugin, load: Callable[[], Any]) -> Plugin:
        try:
            return self._add(plugin, load())
        except (Exception, SystemExit) as error:  # a broken plugin must break no other: kept, and told when needed
            return Plugin(plugin.name, plugin.distribution, plugin.version, loader.load_error(plugin, error))

    def _add(self, plugin: Plugin, module: Any) -> Plugin:
        if plugin.name in self._plugins:
            raise PluginError(
                f"two plugins are called {plugin.name!r}",
                available=f"{self._plugins[plugin.name]} is loaded",
                hint=f"uninstall one of them, or rename the entry point of {plugin.source}",
            )
        loader.check_hooks(plugin.name, module)
        backends = loader.offered(plugin, module, "backends", list, [])
        policies = loader.offered(plugin, module, "policies", dict, {})
        plugin = Plugin(plugin.name, plugin.distribution, plugin.version, backends=tuple(backends))
        loader.check_backends(plugin)
        self._check_free(plugin)
        self._hooks.register(module, plugin.name)
        self._enter(plugin)
        self._policies.update(policies)
        return plugin

    def _check_free(self, plugin: Plugin) -> None:
        offered: set[tuple[str, str]] = set()
        for pair in ((backend.framework, kind) for backend in plugin.backends for kind in backend.kinds):
            shown = " on ".join(pair)
            if pair in offered:
                raise PluginError(f"plugin {plugin.name} offers {shown} twice", hint="offer it once")
            offered.add(pair)
            if pair in self._table:
                holder = next(other for other in self._plugins.values() if self._table[pair] in other.backends)
                raise PluginError(
                    f"plugin {plugin.name} offers {shown}, which another plugin has",
                    available=f"{shown} by {holder}",
                    hint=f"uninstall {plugin.source} or {holder.source}",
                )

    def _enter(self, plugin: Plugin) -> None:
        self._plugins[plugin.name] = plugin
        for backend in plugin.backends:
            for kind in backend.kinds:
                self._table[backend.framework, kind] = backend
        self._owners.clear()

    @property
    def plugins(self) -> tuple[Plugin, ...]:
        """Every plugin in the order of loading, broken ones included."""
        self.load()
        return tuple(self._plugins.values())

    @property
    def backends(self) -> tuple[Backend, ...]:
        """Every backend, each once."""
        self.load()
        return tuple(dict.fromkeys(self._table.values()))

    @property
    def frameworks(self) -> tuple[str, ...]:
        """The frameworks that have a backend."""
        return tuple(dict.fromkeys(backend.framework for backend in self.backends))

    @property
    def hooks(self) -> pluggy.PluginManager:
        """The plugins' hook implementations."""
        self.load()
        return self._hooks

    def policy(self, name: str) -> Callable[..., Any]:
        """A placement policy by name.

        Raises:
            PluginError: no plugin offers it.
        """
        self.load()
        if name not in self._policies:
            raise PluginError(
                f"no plugin offers the placement policy {name!r}",
                available=", ".join(sorted(self._policies)) or "none",
                hint="install the plugin that offers it, or leave policy= out",
            )
        return self._policies[name]

    def kinds(self, framework: str) -> tuple[str, ...]:
        """Kinds of device that a framework runs on.

        Raises:
            FrameworkError: no plugin runs the framework.
        """
        self.load()
        kinds = tuple(kind for name, kind in self._table if name == framework)
        if not kinds:
            raise self._no_plugin(framework)
        return kinds

    def serves(self, framework: str, kind: str) -> bool:
        """Whether a plugin runs a framework on a kind of device."""
        self.load()
        return (framework, kind) in self._table

    def find(self, framework: str, kind: str | None = None) -> Backend:
        """The backend of a framework on a kind of device; without a kind, on the CPU, or else on its first kind.

        Raises:
            FrameworkError: no plugin runs the framework, or not on this kind.
        """
        kinds = self.kinds(framework)
        if kind is None:
            return self._table[framework, "cpu" if "cpu" in kinds else kinds[0]]
        if kind not in kinds:
            raise FrameworkError(
                f"no installed plugin runs {framework} on {kind!r}",
                available=f"{framework} on {', '.join(kinds)}",
                hint="choose one of these, or install a plugin for it",
            )
        return self._table[framework, kind]

    def computing(self, framework: str, kind: str | None = None) -> ComputingBackend:
        """The backend that `find` gives, if it has the capabilities that a graph needs.

        Raises:
            FrameworkError: no plugin runs the framework, or not on this kind.
            CapabilityError: the backend does not declare exchange and compute.
        """
        backend = self.find(framework, kind)
        if not (isinstance(backend, Compute) and isinstance(backend, Exchange)):
            raise CapabilityError(
                f"the backend of {framework} cannot compute",
                available="place and move",
                hint="use a plugin that declares the capabilities exchange and compute",
            )
        return cast(ComputingBackend, backend)

    def serving(self, framework: str, device: Device, *, vendor: str = "") -> Backend:
        """The backend of a framework on a device of this machine; `vendor` is that of the device, `""` for any.

        Raises:
            FrameworkError: no plugin runs the framework on this kind of device.
            DeviceUnavailableError: the device is not on this machine, or of another vendor.
        """
        backend = self.find(framework, device.kind)
        usable = backend.devices()
        if device not in usable:
            reason = backend.unavailable_reason(device)
            raise DeviceUnavailableError(
                f"{device} is not on this machine for {framework}" + (f" ({reason})" if reason else ""),
                available=", ".join(map(str, usable)) or "no device",
                hint=_device_hint(device, usable),
            )
        actual = backend.device_info(device).vendor if vendor else ""
        if actual and actual != vendor:
            raise DeviceUnavailableError(
                f"{device} is a device of {actual}, not of {vendor}",
                available=", ".join(map(str, usable)),
                hint=f"write '{device}' for a device of any vendor",
            )
        return backend

    def owner(self, obj: Any) -> str:
        """The framework that an object belongs to. Imports nothing.

        Raises:
            NoBackendError: no backend owns it.
            AmbiguousOwnerError: backends of several frameworks own it.
        """
        owners = self.owners(obj)
        if len(owners) == 1:
            return owners[0]
        name = f"{type(obj).__module__}.{type(obj).__qualname__}"
        if owners:
            raise AmbiguousOwnerError(
                f"{name} belongs to several frameworks: {' and '.join(owners)}",
                hint=f"name one: ModelNode(..., framework={owners[0]!r})",
            )
        raise self._no_owner(name, obj)

    def owners(self, obj: Any) -> tuple[str, ...]:
        """The frameworks whose backends own an object: none, one, or several."""
        self.load()
        cls = type(obj)
        if cls not in self._owners:
            candidates = (backend for backend in self._candidates(cls) if backend.owns(obj))
            self._owners[cls] = tuple(dict.fromkeys(backend.framework for backend in candidates))
        return self._owners[cls]

    def _candidates(self, cls: type) -> Iterator[Backend]:
        """Backends whose framework is imported and could have defined the class or a base of it."""
        roots = {str(base.__module__).partition(".")[0] for base in cls.__mro__}
        for backend in self.backends:
            if any(root in roots and root in sys.modules for root in backend.import_roots):
                yield backend

    def _no_plugin(self, framework: str) -> FrameworkError:
        distribution, available = distribution_for(framework), ", ".join(self.frameworks)
        for plugin in self._plugins.values():
            same = plugin.name == framework or (distribution and plugin.distribution == distribution)
            if same and plugin.error is not None:
                return FrameworkError(
                    f"the plugin for {framework}, {plugin}, is installed but broken ({plugin.cause})",
                    available=available,
                    hint=plugin.hint,
                )
        hint = install_line(distribution) if distribution else "check the spelling, or install its plugin"
        problem, allowed = f"no plugin for the framework {framework!r} is installed", loader.wanted()
        if allowed is not None and framework not in allowed:
            problem = f"no plugin for the framework {framework!r} is loaded, and {loader.SWITCH} says which are"
            hint = f"add it to {loader.SWITCH} ({','.join(sorted(allowed))!r} now), or {hint}"
        return FrameworkError(problem, available=available, hint=hint)

    def _no_owner(self, name: str, obj: Any) -> NoBackendError:
        available = f"backends for {', '.join(self.frameworks)}"
        framework, _, explanation = hint_of(type(obj)) or ("", "", "")
        if framework and framework not in self.frameworks:
            reason = self._no_plugin(framework)
            problem = f"{name} has no backend: {reason.problem}" + (f"; {explanation}" if explanation else "")
            return NoBackendError(problem, available=available, hint=reason.hint)
        return NoBackendError(
            f"{name} has no backend: no installed plugin owns it",
            available=available,
            hint="install the plugin of its framework, or name it: ModelNode(..., framework=...)",
        )


def _device_hint(device: Device, usable: Iterable[Device]) -> str:
    if device.kind == "sim":
        return f"create simulated devices first: anyaccel.simulate({device.index + 1})"
    first = next(iter(usable), None)
    return f"use one of these, such as '{first}'" if first else "run `anyaccel devices` to see why"


_lock = threading.Lock()
_registry: list[Registry] = []


def registry() -> Registry:
    """The registry of this process, created on first use."""
    with _lock:
        if not _registry:
            _registry.append(Registry())
        return _registry[0]
