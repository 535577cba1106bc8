"""Registry: loads plugins on first need into one table of backends by (framework, kind)."""

from __future__ import annotations

import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import astuple, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

import pluggy

from anyaccel import plugin_loader as loader
from anyaccel.backend import Backend, Compute, ComputingBackend, DeviceInfo, Exchange, Memory
from anyaccel.device import Device
from anyaccel.distributions import check_library
from anyaccel.errors import (
    AmbiguousOwnerError,
    CapabilityError,
    ConfigError,
    DeviceUnavailableError,
    FrameworkError,
    NoBackendError,
    PluginError,
)
from anyaccel.install_hints import BACKEND_PLUGINS, FUNCTION_HINT, HINTS, hint_of, install_line
from anyaccel.plugin_loader import BUILT_IN as BUILT_IN
from anyaccel.plugin_loader import Plugin
from anyaccel.suggestions import did_you_mean, kind_hint

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_UNBROKEN = True  # see `interrupts`
_MOST_DEVICES = 10_000  # so that a generator without an end ends
_PLAIN = frozenset({str, bytes, bool, int, float, complex, type(None), dict, list, tuple})  # of no framework


_PLUGINS_OF = {
    framework: frozenset(name for name, of_plugin in BACKEND_PLUGINS.items() if of_plugin == framework)
    for framework in BACKEND_PLUGINS.values()
}
"""anyaccel's own plugins of a framework."""


_ANSWERS: dict[str, tuple[str, Any, Callable[..., Any]]] = {
    "devices": ("devices of its kinds, each once", tuple, tuple),
    "owns": ("True or False", bool, lambda obj: False),
    "device_info": ("a complete DeviceInfo", DeviceInfo, lambda device: DeviceInfo(str(device))),
    "device_string": ("a text", str, str),
    "unavailable_reason": ("a text", str, lambda device: ""),
    "native_device": ("a device", object, str),
}
"""By method of a backend: what it returns, in words and as a class, and what stands for a wrong answer."""


class Registry:
    """The table of backends; thread-safe, and filled once, on first need. `policies` has the placement policies by
    name.

    Args:
        built_in: Function that creates core's own backend.
        entry_points: Function that returns the entry points to load; by default those of installed distributions.

    Example:
        >>> from anyaccel.registry import registry
        >>> "numpy" in registry().frameworks, registry().find("numpy", "cpu").framework
        (True, 'numpy')
    """

    is_of_this_machine = True
    """Whether the devices are here, and not those of a machine that is described."""
    description = ""
    """The machine in words; empty for the one that is here."""

    def __init__(
        self,
        built_in: Callable[[], Backend] = loader.built_in_backend,
        entry_points: Callable[[], Iterable[EntryPoint]] = loader.installed,
    ) -> None:
        self._built_in, self._entry_points = built_in, entry_points
        self._lock = threading.RLock()
        self._loaded = self._loading = False
        self._clear()

    def _clear(self) -> None:
        self._deferred: dict[str, list[EntryPoint]] = {}  # of anyaccel's own backends, whose frameworks are not in use
        self._plugins: dict[str, Plugin] = {}
        self._table: dict[tuple[str, str], Backend] = {}
        self._served: dict[int, tuple[Backend, bool]] = {}  # by id: those of the table, and whether `owns` is asked
        self.policies: dict[str, tuple[Plugin, Callable[..., Any]]] = {}
        self._candidates: weakref.WeakKeyDictionary[type, list[tuple[Backend, bool]]] = weakref.WeakKeyDictionary()
        self._hooks = loader.new_hooks()

    def load(self) -> None:
        """Load the built-in backend and every plugin, once. Never raises: `plugins` records failures."""
        self._load(BACKEND_PLUGINS.keys())

    def _load(self, needed: Set[str]) -> None:
        """Load the built-in backend, third-party plugins, and anyaccel's own backends with these names."""
        if self._loaded and needed.isdisjoint(self._deferred):
            return
        with self._lock:
            if self._loading:  # a plugin that asks while it is loaded sees what is loaded so far
                return
            self._loading = True
            was_loaded, self._loaded = self._loaded, False  # what Ctrl-C ends starts again
            try:
                if not was_loaded:
                    self._clear()
                    self._enter(Plugin(BUILT_IN, *loader.own_distribution(), backends=(self._built_in(),)))
                    allowed = loader.wanted()
                    entries = sorted(self._entry_points(), key=lambda entry: (entry.name, entry.value))
                    self._deferred = {}
                    for entry in entries:
                        if allowed is None or entry.name in allowed:
                            self._deferred.setdefault(entry.name, []).append(entry)
                now = [name for name in self._deferred if name not in BACKEND_PLUGINS or name in needed]
                for name in now:
                    for entry in self._deferred[name]:
                        with loader.announce_waiting(entry.name):
                            plugin = self._try(loader.plugin_of(entry), entry.load)
                        if plugin.error is not None:
                            is_new = entry.name not in self._plugins
                            self._plugins[entry.name if is_new else f"{entry.name} ({entry.value})"] = plugin
                self._deferred = {name: left for name, left in self._deferred.items() if name not in now}
                if now and not self._deferred:
                    # by name, regardless of the order of loading
                    in_order = sorted(self._plugins.items(), key=lambda item: (item[0] != BUILT_IN, item[0]))
                    self._plugins = dict(in_order)
                    backends = [backend for _, plugin in in_order for backend in plugin.backends]
                    position = {id(backend): number for number, backend in enumerate(backends)}
                    self._table = dict(sorted(self._table.items(), key=lambda item: position[id(item[1])]))
                    self._served = dict(sorted(self._served.items(), key=lambda item: position[item[0]]))
                    self._candidates.clear()
                self._loaded = True
            finally:
                self._loading = False

    def register(self, module: Any, name: str) -> None:
        """Register a plugin module without an entry point, under this name. For tests and notebooks.

        Raises:
            PluginError: it is broken; or it offers something that another plugin has, and is refused for that.
        """
        self.load()
        with self._lock:
            plugin = self._try(Plugin(name, "", ""), lambda: module)
            if isinstance(plugin.error, PluginError):
                raise plugin.error
            if plugin.is_broken:
                raise PluginError(f"plugin {name} is broken: {plugin.cause}", hint=plugin.hint) from plugin.error

    def _try(self, plugin: Plugin, load: Callable[[], Any]) -> Plugin:
        try:
            return self._add(plugin, load())
        except BaseException as error:  # a broken plugin must break no other: kept, and told when needed
            loader.raise_interrupt(error)
            return replace(plugin, error=error)

    def _add(self, plugin: Plugin, module: Any) -> Plugin:
        if plugin.name in self._plugins:
            loaded, hint = self._plugins[plugin.name], f"uninstall one, or rename the entry point of {plugin.source}"
            raise PluginError(f"two plugins are called {plugin.name!r}", cause=f"{loaded} is loaded", hint=hint)
        loader.check_hooks(plugin, module)
        loader.check_contract(plugin, module)
        backends = loader.offered(plugin, module, "backends", list, [])
        policies = loader.offered(plugin, module, "policies", dict, {})
        plugin = replace(plugin, backends=tuple(backends))
        loader.check_backends(plugin)
        self._hooks.register(module, plugin.name)
        self._enter(plugin)
        for name, policy in policies.items():
            is_policy = isinstance(name, str) and callable(policy)
            holder = self.policies.setdefault(name, (plugin, policy))[0] if is_policy else None
            if holder is not plugin:
                why = f"{holder} already offers it" if holder else f"it is {policy!r:.200}, not a function"
                plugin.add_fault(f"its policy {name!r} is refused:", why)
        return plugin

    def _enter(self, plugin: Plugin) -> None:
        """Register the offers of a plugin. If two offer the same pair, the plugin with the framework's name wins."""
        entries = {id(b): (b, inspect.getattr_static(b, "owns") is not Backend.owns) for b in plugin.backends}
        self._plugins[plugin.name] = plugin
        offers = [(backend.framework, kind, backend) for backend in plugin.backends for kind in backend.kinds]
        for framework, kind, backend in offers:
            holder, is_home = self._plugin_of(self._table.get((framework, kind))), plugin.name == framework
            if holder is None or (is_home and holder is not plugin):
                self._table[framework, kind] = backend
            if holder is not None:
                winner, loser = (plugin, holder) if is_home else (holder, plugin)
                loser.add_fault(f"it is refused for {framework} on {kind}, which", f"{winner} serves")
        served = set(map(id, self._table.values()))
        self._served = {key: entry for key, entry in {**self._served, **entries}.items() if key in served}
        self._candidates.clear()

    def _plugin_of(self, backend: Backend | None) -> Plugin | None:
        return next((p for p in self._plugins.values() if any(other is backend for other in p.backends)), None)

    def ask(self, backend: Backend, method: str, *arguments: Any, required: bool = False) -> Any:
        """Return the result of a method of `_ANSWERS` (`devices` as a tuple).

        If it raises (SystemExit too), or returns something else, the fault goes to `plugins`, and a substitute is
        returned.

        Raises:
            PluginError: it raises or returns something else, and is `required`.
            ConfigError: the backend reads an environment variable that is wrong.
        """
        expected, kind, stand_in = _ANSWERS[method]
        try:
            answer: Any = getattr(backend, method)(*arguments)
            answer = tuple(islice(answer, _MOST_DEVICES)) if method == "devices" else answer
            is_right = answer is not None and isinstance(answer, kind)
            if method == "devices":
                for device in answer:
                    is_right = is_right and isinstance(device, Device) and device.kind in backend.kinds
                is_right = is_right and len(set(answer)) == len(answer)
            elif method == "device_info" and is_right:
                info: Any = answer
                is_right = all(map(isinstance, astuple(info), (str, str, str, str, int)))
            if is_right:
                return answer
            fault = f"returned {answer!r:.200}, not {expected}"
        except ConfigError:  # of a variable of the environment: the user's mistake, and no fault of the plugin
            raise
        except BaseException as error:  # panics of native code (Rust's) are no Exception
            loader.raise_interrupt(error)
            fault = f"raised {loader.one_line(error)}"
        plugin = self._plugin_of(backend)
        if plugin:
            plugin.add_fault(f"{method}() of its backend for {backend.framework}", fault)
        if required:
            problem = f"{method}() of the backend for {backend.framework} {fault}"
            raise PluginError(f"plugin {plugin}: {problem}" if plugin else problem, hint=plugin.hint if plugin else "")
        return stand_in(*arguments)

    @property
    def plugins(self) -> tuple[Plugin, ...]:
        """Every plugin in the order of loading, including broken ones."""
        self.load()
        return tuple(self._plugins.values())

    @property
    def backends(self) -> tuple[Backend, ...]:
        """Every backend, each once."""
        self.load()
        return tuple(backend for backend, _ in self._served.values())

    @property
    def backends_in_use(self) -> tuple[Backend, ...]:
        """Every backend whose framework is imported, each once, including those of third-party plugins."""
        self._load(sys.modules.keys())
        return tuple(backend for backend, _ in self._served.values())

    @property
    def frameworks(self) -> tuple[str, ...]:
        """The frameworks that have a backend."""
        self.load()
        return tuple(dict.fromkeys(framework for framework, _ in self._table))

    def devices(self, framework: str | None = None) -> list[tuple[str, Device]]:
        """Return each framework, or only this one, with each of its devices."""
        self.load() if framework is None else self._load(_PLUGINS_OF.get(str(framework), frozenset()))
        listed = []
        for backend, _ in self._served.values():
            if framework in (None, backend.framework):
                for device in self.ask(backend, "devices"):
                    if self._table.get((backend.framework, device.kind)) is backend:
                        listed.append((backend.framework, device))
        return listed

    @property
    def hooks(self) -> pluggy.PluginManager:
        """The plugins' hook implementations, without those of frameworks that are not in use."""
        self._load(sys.modules.keys())
        return self._hooks

    def kinds(self, framework: str) -> tuple[str, ...]:
        """Return the kinds of device that a framework runs on; raise FrameworkError if no plugin runs it."""
        self._load(_PLUGINS_OF.get(str(framework), frozenset()))
        kinds = tuple(kind for name, kind in self._table if name == framework)
        if not kinds:
            raise self._no_plugin(framework)
        return kinds

    def total_memory(self, framework: str, device: Device) -> int | None:
        """Return the bytes of memory of a device, for the CPU those of the host; None if unknown or without a limit."""
        memory = self.find(framework, device.kind).capability(Memory)
        return None if memory is None else memory.memory(device).total or None

    def free_memory(self, framework: str, device: Device) -> int | None:
        """Return the free bytes on a device; None if unknown or without a limit."""
        memory = self.find(framework, device.kind).capability(Memory)
        measured = None if memory is None else memory.memory(device)
        return measured.free or None if measured is not None and measured.total else None

    def serves(self, framework: str, kind: str) -> bool:
        """Return whether a plugin runs a framework on a kind of device."""
        self._load(_PLUGINS_OF.get(str(framework), frozenset()))
        return (framework, kind) in self._table

    def find(self, framework: str, kind: str | None = None) -> Backend:
        """Return the backend of a framework on a kind of device; without a kind, on the CPU, or else on its first kind.

        Raises:
            FrameworkError: no plugin runs the framework, or none runs it on this kind.
        """
        self._load({framework} if isinstance(framework, str) else set())
        backend = self._table.get((framework, "cpu" if kind is None else kind)) if isinstance(framework, str) else None
        if backend is not None:
            return backend
        kinds = self.kinds(framework)
        if kind is None:
            return self._table[framework, kinds[0]]
        hint = kind_hint(kind, kinds, "choose one of these, or install a plugin for it")
        if kind in BACKEND_PLUGINS.values():
            hint = f"{kind!r} is a framework: write framework={kind!r}, and a device such as 'cpu'"
        problem, available = f"no installed plugin runs {framework} on {kind!r}", f"{framework} on {', '.join(kinds)}"
        raise FrameworkError(problem, available=available, hint=hint)

    def computing(self, framework: str, kind: str | None = None) -> ComputingBackend:
        """Return the backend of a framework for a graph; see `find`.

        Raises:
            FrameworkError: no plugin runs the framework, or none runs it on this kind.
            CapabilityError: the backend does not declare exchange and compute.
        """
        backend = self.find(framework, kind)
        if not (isinstance(backend, Compute) and isinstance(backend, Exchange)):
            hint = "use a plugin that declares the capabilities exchange and compute"
            raise CapabilityError(f"the backend of {framework} cannot compute", available="place and move", hint=hint)
        return cast(ComputingBackend, backend)

    def serving(self, framework: str, device: Device, *, vendor: str = "") -> Backend:
        """Return the backend of a framework on a device of this machine; `vendor` is the device's vendor, `""` for any.

        Raises:
            FrameworkError: no plugin runs the framework on this kind of device.
            DeviceUnavailableError: the device is not on this machine, or has another vendor.
        """
        backend = self.find(framework, device.kind)
        usable = self.ask(backend, "devices")
        if device not in usable:
            available, reason = ", ".join(map(str, usable)), self.unavailable_reason(framework, device)
            problem = f"{device} is not on this machine for {framework}" + (f" ({reason})" if reason else "")
            raise DeviceUnavailableError(problem, available=available, hint=_device_hint(device, usable))
        actual = self.ask(backend, "device_info", device).vendor if vendor else ""
        if actual and actual != vendor:
            problem, available = f"{device} is a device of {actual}, not of {vendor}", ", ".join(map(str, usable))
            hint = f"write '{device}' for a device of any vendor"
            raise DeviceUnavailableError(problem, available=available, hint=hint)
        return backend

    def unavailable_reason(self, framework: str, device: Device) -> str:
        """Return why a framework does not have a device, with the faults of its plugins; `""` if unknown."""
        reason = self.ask(self.find(framework, device.kind), "unavailable_reason", device)
        faulty = [p for p in self.plugins if p.faults and framework in {b.framework for b in p.backends}]
        return "; ".join(filter(None, [reason, *(f"plugin {p} is broken: {p.cause}" for p in faulty)]))

    def owner(self, obj: Any) -> str:
        """Return the framework that an object belongs to. Imports nothing.

        Raises:
            NoBackendError: no backend owns it.
            AmbiguousOwnerError: backends of several frameworks own it.
        """
        owners = self.owners(obj)
        if len(owners) == 1:
            return owners[0]
        name = f"{type(obj).__module__}.{type(obj).__qualname__}"
        if owners:
            problem = f"{name} belongs to several frameworks: {' and '.join(owners)}"
            raise AmbiguousOwnerError(problem, hint=f"name one: ModelNode(..., framework={owners[0]!r})")
        raise self._no_owner(name, obj)

    def owners(self, obj: Any) -> tuple[str, ...]:
        """Return the frameworks whose backends own an object, by `import_roots` of its class, or by their `owns`."""
        cls = type(obj)
        if cls in _PLAIN:
            return ()
        candidates = self._candidates.get(cls)
        if candidates is None:
            roots = _roots(cls)
            self._load(roots)
            self._load(sys.modules.keys())
            backends = self._served.values()
            candidates = [pair for pair in backends if roots.intersection(pair[0].import_roots)]
            for plugin in [self._plugin_of(backend) for backend, _ in candidates]:
                if plugin is not None and plugin.distribution:  # it was not registered by hand
                    for library in roots:
                        check_library(plugin.distribution, library)
            self._candidates[cls] = candidates
        owners: dict[str, None] = {}
        imported = sys.modules.keys()
        for backend, asks in candidates:
            if not imported.isdisjoint(backend.import_roots) and (not asks or self._owns(backend, obj)):
                owners[backend.framework] = None
        if not owners:
            for backend, asks in self._served.values():
                asks = asks and not imported.isdisjoint(backend.import_roots)
                if asks and self._owns(backend, obj) and not self._owns(backend, object()):
                    owners[backend.framework] = None
        home = owners.keys() & _roots(cls) if len(owners) > 1 else ()  # the framework that is named as the module
        return tuple(home or owners)

    def _owns(self, backend: Backend, obj: Any) -> bool:
        """Return whether a backend owns an object, in half the time of `ask`: this is called for each leaf of a
        move.
        """
        try:
            if (answer := backend.owns(obj)) is True or answer is False:
                return answer
        except BaseException as error:
            loader.raise_interrupt(error)
        return bool(self.ask(backend, "owns", obj))

    def _no_plugin(self, framework: str) -> FrameworkError:
        (name, distribution), available = HINTS.get(str(framework), (framework, "")), ", ".join(self.frameworks)
        for plugin in self._plugins.values():
            same = plugin.name == framework or (distribution and plugin.distribution == distribution)
            if same and plugin.error is not None:
                problem = f"the plugin for {framework}, {plugin}, is installed but broken ({plugin.cause})"
                return FrameworkError(problem, available=available, hint=plugin.hint)
        meant = did_you_mean(name, self.frameworks, "check the spelling, or install its plugin")
        hint = install_line(distribution) if distribution and name not in self.frameworks else meant
        problem, allowed = f"no plugin for the framework {framework!r} is installed", loader.wanted()
        if allowed is not None and str(framework) not in allowed and name not in self.frameworks:
            problem = f"no plugin for the framework {framework!r} is loaded, because {loader.SWITCH} limits the plugins"
            hint = f"add it to {loader.SWITCH} ({','.join(sorted(allowed))!r} now), or {hint}"
        return FrameworkError(problem, available=available, hint=hint)

    def _no_owner(self, name: str, obj: Any) -> NoBackendError:
        available = f"backends for {', '.join(self.frameworks)}"
        framework, _, explanation = hint_of(type(obj)) or ("", "", "")
        if framework and framework not in self.frameworks:
            reason = self._no_plugin(framework)
            problem = f"{name} has no backend: {reason.problem}" + (f"; {explanation}" if explanation else "")
            return NoBackendError(problem, available=available, hint=reason.hint)
        failed = [f"plugin {p} is broken: {p.cause}" for p in self._plugins.values() if "owns() of" in p.cause]
        problem = "; ".join([f"{name} has no backend: no installed plugin supports it", *failed])
        hint = "install the plugin of its framework, or name it: ModelNode(..., framework=...)"
        if callable(getattr(obj, "init", None)) and callable(getattr(obj, "apply", None)):  # as transforms of Haiku
            hint = FUNCTION_HINT
        return NoBackendError(problem, available=available, hint=hint)


def _roots(cls: type) -> set[str]:
    return {str(base.__module__).partition(".")[0] for base in cls.__mro__}


def _device_hint(device: Device, usable: Sequence[Device]) -> str:
    if device.kind == "sim":
        return f"create simulated devices first: anyaccel.simulate({device.index + 1})"
    return f"use one of these, such as '{usable[0]}'" if usable else "run `anyaccel devices` to see why"


_registry = [Registry()]


def registry() -> Registry:
    """Return the registry of this process."""
    return _registry[0]
