"""Plugin loader: finds plugins through entry points, and checks the content of a module.

An entry point of the group `anyaccel` names a plugin module. Core's own plugin, NumPy, is named by `BUILT_IN_MODULE`
instead, so that it works without installed metadata and cannot be disabled.
"""

from __future__ import annotations

import inspect
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pluggy

from anyaccel import hookspecs
from anyaccel.backend import Backend
from anyaccel.capability import Capability
from anyaccel.device import Device
from anyaccel.distributions import check_version, entry_points
from anyaccel.errors import AnyaccelError, PluginError
from anyaccel.printable import printable

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "anyaccel"
_UNBROKEN = True  # see `interrupts`
SWITCH = "ANYACCEL_PLUGINS"
BUILT_IN = "numpy"
BUILT_IN_MODULE = "anyaccel.numpy_backend.plugin"
PATIENCE = 3.0  # seconds
SLOW_HINT = f"allow more time, such as --timeout 300, or exclude it with {SWITCH} if it never ends"


@dataclass(frozen=True, slots=True)
class Plugin:
    """A plugin. `error` is the exception that loading it raised; a plugin with `faults` still serves what works.

    `delays` lists operations that were too slow or hung: the waiting command continued without the plugin, and nothing
        else is wrong.
    """

    name: str
    distribution: str
    version: str
    error: BaseException | None = None
    backends: tuple[Backend, ...] = ()
    faults: list[str] = field(default_factory=list)
    delays: list[str] = field(default_factory=list)

    @property
    def status(self) -> str:
        """`ok`, `broken` or `slow`."""
        return "broken" if self.is_broken else "slow" if self.delays else "ok"

    @property
    def is_broken(self) -> bool:
        """Whether it could not be loaded, or has faults."""
        return self.error is not None or bool(self.faults)

    def add_fault(self, start: str, rest: str) -> None:
        """Add a fault in one line, unless there is one with the same start."""
        if not any(fault.startswith(start) for fault in self.faults):
            self.faults.append(" ".join(f"{start} {rest}".split()))

    @property
    def source(self) -> str:
        """Its distribution, or its name if it was registered without one."""
        return self.distribution or self.name

    @property
    def cause(self) -> str:
        """The fault, in one line; `""` if it works."""
        if self.error is None:
            return "; ".join([*self.faults, *self.delays])
        if isinstance(self.error, AnyaccelError):  # its hint is `hint`
            return " ".join(str(AnyaccelError(self.error.problem, available=self.error.available)).split())
        return one_line(self.error)

    @property
    def hint(self) -> str:
        """The way to fix the plugin; `""` if it works."""
        if not self.is_broken:
            return SLOW_HINT if self.delays else ""
        if isinstance(self.error, AnyaccelError) and self.error.hint:
            return self.error.hint
        if isinstance(self.error, ModuleNotFoundError) and self.error.name:
            return f"install the module {self.error.name!r}, or uninstall {self.source}"
        return f"update or uninstall {self.source}, or exclude it with {SWITCH}"

    def __str__(self) -> str:
        return f"{self.name} ({self.distribution or 'not a distribution'} {self.version})".replace(" )", ")")


def built_in_backend() -> Backend:
    """Return core's own backend, from the `backends()` hook of `BUILT_IN_MODULE`."""
    return next(iter(import_module(BUILT_IN_MODULE).backends()))  # type: ignore[no-any-return]


def new_hooks() -> pluggy.PluginManager:
    """Return a pluggy plugin manager with the hook specifications and no plugin."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    return manager


def check_hooks(plugin: Plugin, module: Any) -> None:
    """Check the names and arguments of a module's hooks.

    Raises:
        PluginError: a hook lacks `@hookimpl`.
        pluggy.PluginValidationError: an unknown hook, or a hook with an unknown argument.
    """
    for hook in ("backends", "policies"):
        function = getattr(module, hook, None)
        if function is not None and not hasattr(function, f"{hookspecs.PROJECT}_impl"):
            problem = f"{hook}() of plugin {plugin.name} has no @hookimpl and would be ignored"
            raise _refused(plugin, problem, "decorate it with anyaccel.hookimpl")
    manager = new_hooks()  # one of its own, because older pluggy leaves a refused plugin half registered
    manager.register(module, plugin.name)
    manager.check_pending()


def check_contract(plugin: Plugin, module: Any) -> None:
    """Raise PluginError for a module that offers backends, and not for this version of the contract or of core."""
    check_version(plugin.distribution, plugin.version)
    declared, current = getattr(module, "contract", None), hookspecs.CONTRACT
    if declared == current or not hasattr(module, "backends"):
        return
    if isinstance(declared, int) and declared > current:
        problem = f"plugin {plugin.name} is written for contract {declared}, but this anyaccel has contract {current}"
        raise PluginError(problem, hint="update anyaccel")
    written = "does not define its contract version" if declared is None else f"has contract = {declared!r:.50}"
    problem = f"plugin {plugin.name} {written}, but this anyaccel has contract {current}, with capabilities as objects"
    hint = f"set contract = {current} in its module after converting its capabilities to objects; {_PAGE}"
    raise _refused(plugin, problem, hint)


def check_backends(plugin: Plugin) -> None:
    """Raise PluginError for an object that is not a Backend, core's own framework, wrong attributes, or capabilities as
    bases.
    """
    for backend in plugin.backends:
        if not isinstance(backend, Backend):
            problem = f"plugin {plugin.name} offers {type(backend).__name__}, which is not a Backend"
            raise _refused(plugin, problem, "subclass anyaccel.Backend")
        bases = [base.__name__ for base in type(backend).__mro__ if Capability in base.__bases__]
        if bases:
            problem = f"plugin {plugin.name} offers {type(backend).__name__}, which derives from {', '.join(bases)}"
            hint = f"add a separate class to capabilities = {{{bases[0]}: ...}}; {_PAGE}"
            raise _refused(plugin, problem, hint)
        declared = backend.capabilities
        if not isinstance(declared, Mapping) or not all(map(_is_capability, declared)):
            problem = f"plugin {plugin.name} offers a backend with capabilities={declared!r:.200}"
            hint = f"write capabilities = {{Memory: ChipMemory}}; {_PAGE}"
            raise _refused(plugin, problem, hint)
        classes = [kind for kind in declared if isinstance(kind, type)]
        left = [name for kind in classes for name in vars(kind) if name[0] != "_" and hasattr(backend, name)]
        if left:
            problem = (
                f"plugin {plugin.name} offers {type(backend).__name__} with {left[0]}, which belongs to a capability"
            )
            hint = f"move it into the class that capabilities names; {_PAGE}"
            raise _refused(plugin, problem, hint)
        facts = {name: getattr(backend, name) for name in _FACTS}
        wrong = [f"{name}={value!r:.200}" for name, value in facts.items() if not _FACTS[name](value)]
        # A property could give another value, or raise, whenever anybody's backend is looked for.
        wrong += [f"a computed {name}" for name in facts if inspect.getattr_static(backend, name) is not facts[name]]
        if wrong:
            problem = f"plugin {plugin.name} offers a backend with {', '.join(wrong)}"
            raise _refused(plugin, problem, "define them as attributes of the class", available=_FORMS)
        if backend.framework == BUILT_IN:
            raise PluginError(
                f"plugin {plugin.name} offers the framework {BUILT_IN!r}, which is built into anyaccel",
                hint="rename it",
            )


_PAGE = "see docs/how-to/migrate-plugins.md"


def _is_capability(kind: Any) -> bool:
    if isinstance(kind, str):  # of a package that need not be installed
        return kind.count(".") == 1 and all(map(str.isidentifier, kind.split(".")))
    return isinstance(kind, type) and issubclass(kind, Capability)


def _refused(plugin: Plugin, problem: str, hint: str, available: str = "") -> PluginError:
    return PluginError(problem, available=available, hint=f"{hint}, or update {plugin.source}")


def _are_words(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and all(isinstance(word, str) and word for word in value)


def _is_kind(word: str) -> bool:
    try:
        return bool(Device(word).kind == word)
    except AnyaccelError:
        return False


_FACTS: dict[str, Callable[[Any], Any]] = {
    "framework": lambda value: isinstance(value, str) and value.isidentifier() and value.islower(),
    "kinds": lambda value: _are_words(value) and value and all(map(_is_kind, value)),
    "import_roots": _are_words,
    "environment": _are_words,
    "fork_safe": lambda value: isinstance(value, bool),
}
_FORMS = "a lower-case word as framework; tuples of words as kinds, import_roots, environment; a bool as fork_safe"


def raise_interrupt(error: BaseException) -> None:
    """Raise interrupts that no plugin is blamed for: Ctrl-C, GeneratorExit, exceptions of signal handlers. Call it in
    `except`.
    """
    handlers = map(signal.getsignal, signal.valid_signals())
    codes = {getattr(getattr(handler, "func", handler), "__code__", None) for handler in handlers}
    calls = {call.frame.f_code for call in inspect.trace(0)}
    if isinstance(error, (KeyboardInterrupt, GeneratorExit)) or not codes.isdisjoint(calls):
        raise error


def one_line(error: BaseException) -> str:
    """Return the type and the text of an exception in one line."""
    try:
        words = str(error)[:500]
    except Exception as failed:  # of a class whose __str__ fails
        words = f"({type(failed).__name__} in str)"
    return printable(" ".join(f"{type(error).__name__}: {words}".split()))


def offered(plugin: Plugin, module: Any, hook: str, kind: type, default: Any) -> Any:
    """Return the result of a module's hook, as a `kind` (list or dict); `default` if it does not have the hook.

    Raises:
        PluginError: it returns something else.
    """
    function = getattr(module, hook, None)
    if function is None:
        return default
    value = function()
    if not isinstance(value, Mapping if kind is dict else Iterable) or isinstance(value, (str, bytes)):
        problem = f"{hook}() of plugin {plugin.name} returned {type(value).__name__}, not {kind.__name__}"
        raise _refused(plugin, problem, f"return a {kind.__name__}")
    return kind(value)


@contextmanager
def announce_waiting(name: str) -> Iterator[None]:
    """Print on standard error which plugin is being imported, if that takes longer than `PATIENCE`."""
    line = f"waiting for plugin {name} (import); {SWITCH} sets the plugins to load\n"
    timer = threading.Timer(PATIENCE, lambda: sys.stderr and sys.stderr.write(line))
    timer.daemon = True
    with suppress(RuntimeError):  # a process that may start no thread goes without
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def installed() -> Iterable[EntryPoint]:
    """Return the entry points of the plugins of installed distributions."""
    return entry_points(GROUP)


def plugin_of(entry: EntryPoint) -> Plugin:
    """Return the plugin of an entry point, not loaded; without distribution and version where its metadata are
    damaged.
    """
    try:
        return Plugin(entry.name, str(entry.dist.name or ""), str(entry.dist.version or ""))  # type: ignore[union-attr]
    except Exception:
        return Plugin(entry.name, "", "")


def own_distribution() -> tuple[str, str]:
    """Name and version of core's distribution; the version is `""` if core is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return GROUP, version(GROUP)
    except PackageNotFoundError:
        return GROUP, ""


def wanted() -> set[str] | None:
    """Return the plugins that the environment variable `ANYACCEL_PLUGINS` allows; None if it is not set."""
    text = os.environ.get(SWITCH)
    return None if text is None else {name.strip() for name in text.split(",") if name.strip()}
