"""Discovery: plugins are loaded on first need, each on its own, into one table keyed by (framework, kind)."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, cast

import pluggy

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
from anyaccel.plugin_loader import (
    SWITCH,
    Plugin,
    check_hooks,
    check_kinds,
    installed,
    new_manager,
    offered,
    own_distribution,
    wanted,
)

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

BUILT_IN = "numpy"


class Registry:
    """The table of backends. `load` fills it on first need, once, under a lock.

    Args:
        built_in: makes the embedded backend.
        entry_points: gives the entry points to load; by default those of the group `anyaccel`.
    """

    def __init__(
        self, built_in: Callable[[], Backend], entry_points: Callable[[], Iterable[EntryPoint]] | None = None
    ) -> None:
        self._built_in = built_in
        self._entry_points = entry_points or installed
        self._lock = threading.RLock()
        self._loaded = False
        self._loading = False
        self._begin()

    # -- loading ---------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Load the embedded backend and every plugin, once. Never raises: what failed is in `plugins`."""
        if self._loaded:
            return
        with self._lock:
            if self._loaded or self._loading:  # a plugin that asks while it is loaded sees what is there so far
                return
            self._loading = True
            try:
                self._load()
                self._loaded = True
            finally:
                self._loading = False

    def _load(self) -> None:
        self._begin()
        self._enter(Plugin(BUILT_IN, *own_distribution(), backends=(self._built_in(),)))
        allowed = wanted()
        for entry in sorted(self._entry_points(), key=lambda found: (found.name, found.value)):
            if allowed is None or entry.name in allowed:
                self._load_entry(entry)

    def _begin(self) -> None:
        """Empty tables: a load that Ctrl-C ended begins anew."""
        self._plugins: dict[str, Plugin] = {}
        self._table: dict[tuple[str, str], Backend] = {}
        self._policies: dict[str, Callable[..., Any]] = {}
        self._owners: dict[type, tuple[str, ...]] = {}
        self._hooks = new_manager()

    def register(self, module: Any, name: str) -> None:
        """Enter a plugin by hand, as an entry point of that name would. For tests and notebooks.

        Raises:
            PluginError: it is broken, or claims what another has.
        """
        self.load()
        with self._lock:
            plugin = self._try(Plugin(name, "", ""), lambda: module)
            if isinstance(plugin.error, PluginError):
                raise plugin.error
            if plugin.error is not None:
                raise PluginError(f"plugin {name} is broken: {plugin.cause}", hint=plugin.remedy) from plugin.error
            self._plugins[name] = plugin

    def _load_entry(self, entry: EntryPoint) -> None:
        dist = entry.dist
        found = Plugin(entry.name, dist.name if dist else "", dist.version if dist else "")
        plugin = self._try(found, entry.load)
        if plugin.error is not None:
            self._plugins[found.name if found.name not in self._plugins else f"{found.name} ({entry.value})"] = plugin

    def _try(self, found: Plugin, import_it: Callable[[], Any]) -> Plugin:
        try:
            return self._take(found, import_it())
        except (Exception, SystemExit) as error:  # a broken plugin must break nobody else: remembered and told on need
            return Plugin(found.name, found.distribution, found.version, error)

    def _take(self, found: Plugin, module: Any) -> Plugin:
        if found.name in self._plugins:
            raise PluginError(
                f"the name {found.name!r} is taken",
                available=f"{self._plugins[found.name]} has it",
                hint=f"uninstall one of them, or rename the entry point of {found.distribution or found.name}",
            )
        check_hooks(found.name, module)
        backends = offered(found, module, "backends", list, [])
        policies = offered(found, module, "policies", dict, {})
        plugin = Plugin(found.name, found.distribution, found.version, backends=tuple(backends))
        self._check_rows(plugin)
        self._hooks.register(module, found.name)
        self._enter(plugin)
        self._policies.update(policies)
        return plugin

    def _check_rows(self, plugin: Plugin) -> None:
        mine: set[tuple[str, str]] = set()
        for backend in plugin.backends:
            if not isinstance(backend, Backend):
                raise PluginError(
                    f"plugin {plugin.name} offers {type(backend).__name__}, which is not a Backend",
                    hint=f"derive it from anyaccel.Backend, or update {plugin.distribution or plugin.name}",
                )
            if backend.framework == BUILT_IN:
                raise PluginError(f"plugin {plugin.name} claims {BUILT_IN!r}, which is core's own", hint="rename it")
            check_kinds(plugin, backend.kinds)
            for kind in backend.kinds:
                self._check_free(plugin, (backend.framework, kind), mine)

    def _check_free(self, plugin: Plugin, pair: tuple[str, str], mine: set[tuple[str, str]]) -> None:
        shown = " on ".join(pair)
        if pair in mine:
            raise PluginError(f"plugin {plugin.name} offers {shown} twice", hint="offer it once")
        mine.add(pair)
        if pair in self._table:
            holder = next(one for one in self._plugins.values() if self._table[pair] in one.backends)
            names = [one.distribution or one.name for one in (plugin, holder)]
            raise PluginError(
                f"plugin {plugin.name} claims {shown}",
                available=f"{holder} serves it",
                hint=f"uninstall {' or '.join(names)}",
            )

    def _enter(self, plugin: Plugin) -> None:
        self._plugins[plugin.name] = plugin
        for backend in plugin.backends:
            for kind in backend.kinds:
                self._table[backend.framework, kind] = backend
        self._owners.clear()

    # -- asking ----------------------------------------------------------------------------------------------------

    @property
    def plugins(self) -> tuple[Plugin, ...]:
        """Every plugin found, in the order of loading, the broken ones too."""
        self.load()
        return tuple(self._plugins.values())

    @property
    def backends(self) -> tuple[Backend, ...]:
        """Every backend, each once."""
        self.load()
        return tuple(dict.fromkeys(self._table.values()))

    @property
    def frameworks(self) -> tuple[str, ...]:
        """Frameworks that are served here."""
        return tuple(dict.fromkeys(backend.framework for backend in self.backends))

    @property
    def hooks(self) -> pluggy.PluginManager:
        """The plugins' hook implementations, for the moments of a phase."""
        self.load()
        return self._hooks

    def policy(self, name: str) -> Callable[..., Any]:
        """A placement policy by name.

        Raises:
            PluginError: nobody offers it.
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
        """Kinds of device that a framework is served on.

        Raises:
            FrameworkError: nobody serves the framework.
        """
        self.load()
        kinds = tuple(kind for name, kind in self._table if name == framework)
        if not kinds:
            raise self._unserved(framework)
        return kinds

    def serves(self, framework: str, kind: str) -> bool:
        """Whether a framework is served on a kind of device."""
        self.load()
        return (framework, kind) in self._table

    def find(self, framework: str, kind: str | None = None) -> Backend:
        """The backend of a framework on a kind of device; without a kind, the first that its plugin offers.

        Raises:
            FrameworkError: nobody serves the framework, or not on this kind.
        """
        kinds = self.kinds(framework)
        if kind is None:
            return self._table[framework, "cpu" if "cpu" in kinds else kinds[0]]
        if kind not in kinds:
            known = sorted({k for _, k in self._table})
            raise FrameworkError(
                f"{framework} is not served on {kind!r}" + ("" if kind in known else ", a kind nobody serves here"),
                available=f"{framework} on {', '.join(kinds)}",
                hint="choose one of these, or install the plugin for it",
            )
        return self._table[framework, kind]

    def computing(self, framework: str, kind: str | None = None) -> ComputingBackend:
        """The backend of a framework as `find` gives it, with the capabilities that a graph needs.

        Raises:
            CapabilityError: it does not declare them.
        """
        backend = self.find(framework, kind)
        if not (isinstance(backend, Compute) and isinstance(backend, Exchange)):
            raise CapabilityError(
                f"the backend of {framework} does not compute",
                available="it can place and move",
                hint="use a plugin that declares the capabilities exchange and compute",
            )
        return cast(ComputingBackend, backend)

    def serving(self, framework: str, device: Device, *, vendor: str = "") -> Backend:
        """The backend of a framework on a device that is on this machine now.

        Args:
            framework: who computes.
            device: where.
            vendor: if not empty, the vendor that the device must be of, where that can be told.

        Raises:
            FrameworkError: the framework is not served there.
            DeviceUnavailableError: the device is not on this machine, or of another vendor.
        """
        backend = self.find(framework, device.kind)
        there = backend.devices()
        if device not in there:
            reason = backend.unavailable_reason(device)
            raise DeviceUnavailableError(
                f"{device} is not on this machine for {framework}" + (f" ({reason})" if reason else ""),
                available=", ".join(map(str, there)) or "no device",
                hint=self._remedy_for(device, there),
            )
        found = backend.device_info(device).vendor if vendor else ""
        if found and found != vendor:
            raise DeviceUnavailableError(
                f"{device} is of {found}, and {vendor} was asked for",
                available=", ".join(map(str, there)),
                hint=f"write '{device}' for the device of any vendor",
            )
        return backend

    def _remedy_for(self, device: Device, there: Iterable[Device]) -> str:
        if device.kind == "sim":
            return f"make simulated devices first: anyaccel.simulate({device.index + 1})"
        first = next(iter(there), None)
        return f"use one of these, such as '{first}'" if first else "run `anyaccel devices` to see why"

    def owner(self, obj: Any) -> str:
        """The framework that an object belongs to. Imports nothing.

        Raises:
            NoBackendError: nobody owns it.
            AmbiguousOwnerError: several frameworks claim it.
        """
        owners = self.owners(obj)
        if len(owners) == 1:
            return owners[0]
        name = f"{type(obj).__module__}.{type(obj).__qualname__}"
        if owners:
            raise AmbiguousOwnerError(
                f"{name} is claimed by {' and '.join(owners)}",
                hint=f"say which: ModelNode(..., framework={owners[0]!r})",
            )
        raise self._unowned(name, obj)

    def owners(self, obj: Any) -> tuple[str, ...]:
        """The frameworks that claim an object: none, one, or several."""
        self.load()
        cls = type(obj)
        if cls not in self._owners:
            self._owners[cls] = tuple(dict.fromkeys(b.framework for b in self._candidates(cls) if b.owns(obj)))
        return self._owners[cls]

    def _candidates(self, cls: type) -> Iterator[Backend]:
        roots = {str(base.__module__).partition(".")[0] for base in cls.__mro__}
        for backend in self.backends:
            if any(root in roots and root in sys.modules for root in backend.import_roots):
                yield backend

    # -- telling ---------------------------------------------------------------------------------------------------

    def _broken(self, distribution: str, framework: str) -> Plugin | None:
        return next(
            (
                p
                for p in self._plugins.values()
                if p.error is not None and (p.name == framework or (distribution and p.distribution == distribution))
            ),
            None,
        )

    def _unserved(self, framework: str) -> FrameworkError:
        distribution = distribution_for(framework)
        there = "served here: " + ", ".join(self.frameworks)
        broken = self._broken(distribution, framework)
        if broken is not None:
            return FrameworkError(
                f"{framework} is not served: its plugin {broken} is installed but broken ({broken.cause})",
                available=there,
                hint=broken.remedy,
            )
        remedy = (
            install_line(distribution) if distribution else "check the spelling, or install the plugin that serves it"
        )
        asked = f"no plugin for the framework {framework!r} is installed"
        allowed = wanted()
        if allowed is not None and framework not in allowed:
            asked = f"no plugin for the framework {framework!r} is loaded, and {SWITCH} says which are"
            remedy = f"add it to {SWITCH} ({','.join(sorted(allowed))!r} now), or {remedy}"
        return FrameworkError(asked, available=there, hint=remedy)

    def _unowned(self, name: str, obj: Any) -> NoBackendError:
        there = "backends for " + ", ".join(self.frameworks)
        hint = hint_of(type(obj))
        if hint is not None and hint[0] not in self.frameworks:
            inner = self._unserved(hint[0])
            asked = f"{name} has no backend: {inner.problem}" + (f"; {hint[2]}" if hint[2] else "")
            return NoBackendError(asked, available=there, hint=inner.hint)
        return NoBackendError(
            f"{name} has no backend: no installed plugin owns it",
            available=there,
            hint="install the plugin of its framework, or say ModelNode(..., framework=...)",
        )


_lock = threading.Lock()
_registry: list[Registry] = []


def registry() -> Registry:
    """The registry of this process, made on first use."""
    with _lock:
        if not _registry:
            from anyaccel.numpy_backend import NumpyBackend  # needs NumPy, which looking up nothing does not

            _registry.append(Registry(NumpyBackend))
        return _registry[0]
