"""The backend class that a new chip derives from: named on the command line, or that of an installed framework."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import packages_distributions, version
from pkgutil import resolve_name

from anyaccel.backend import Backend
from anyaccel.errors import PluginError
from anyaccel.plugin_loader import BUILT_IN, built_in_backend
from anyaccel.registry import registry
from anyaccel_devtools.testing.subject_discovery import published_subject


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseBackend:
    """A backend class and its origin.

    Attributes:
        cls: The class.
        module: Module that plugins import it from.
        distribution: Distribution to install for it; `""` for core's own, or if unknown.
        version: Version of the distribution, `""` if unknown.
        subject: Subject that its plugin publishes, as `module:Class`; `""` if none.
    """

    cls: type[Backend]
    module: str
    distribution: str = ""
    version: str = ""
    subject: str = ""

    @property
    def name(self) -> str:
        """Name of the class."""
        return self.cls.__name__

    @property
    def is_built_in(self) -> bool:
        """Whether it serves NumPy, core's own framework, which no plugin may claim."""
        return self.cls.framework == BUILT_IN

    @property
    def host_kind(self) -> str:
        """The kind of device that replaces the chip until it exists."""
        if self.is_built_in:
            return "sim"
        return "cpu" if "cpu" in self.cls.kinds else self.cls.kinds[0]


def import_base(text: str) -> BaseBackend:
    """Import the base that `module:Class` names, which runs the module.

    Raises:
        PluginError: it cannot be imported, or is not a backend class that another can derive from.
    """
    module, colon, name = text.partition(":")
    if not (colon and name.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        raise PluginError(
            f"{text!r} is not of the form MODULE:CLASS", hint="write for example anyaccel.numpy_backend:NumpyBackend"
        )
    try:
        cls = resolve_name(text)
    except (Exception, SystemExit) as error:  # a module may raise anything while it is imported
        message = " ".join(str(error).split())
        raise PluginError(
            f"the base {text} cannot be imported ({type(error).__name__}: {message})",
            hint="check the spelling, or install its distribution",
        ) from error
    return _locate(_check_class(text, cls), module)


def base_for_framework(framework: str = BUILT_IN) -> BaseBackend:
    """Return the class of the backend that runs an installed framework, by default core's own.

    Raises:
        FrameworkError: no installed plugin runs it.
        PluginError: no class can be derived from its backend's.
    """
    cls = type(built_in_backend() if framework == BUILT_IN else registry().find(framework))
    module = _public_module(cls)
    return _locate(_check_class(f"{module}:{cls.__qualname__}", cls), module)


def _public_module(cls: type[Backend]) -> str:
    """Return the outermost package that exports a class."""
    parts = cls.__module__.split(".")
    packages = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
    return next((name for name in packages if getattr(import_module(name), cls.__name__, None) is cls), cls.__module__)


def _check_class(text: str, cls: object) -> type[Backend]:
    if not (isinstance(cls, type) and issubclass(cls, Backend)):
        raise PluginError(f"{text} is {cls!r}, not a backend class", hint="name a class derived from anyaccel.Backend")
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(getattr(cls, "__abstractmethods__", ())))
        raise PluginError(f"{text} is an abstract class without {missing}", hint="name a class that implements them")
    # The facts are written into source files: they must be class attributes
    hint = "write a subclass of it yourself"
    if not text.partition(":")[2].isidentifier():
        raise PluginError(f"{text} is nested and cannot be imported by name", hint=hint)
    if not (hasattr(cls, "framework") and hasattr(cls, "kinds")):
        raise PluginError(f"{text} sets framework and kinds on its objects, not on the class", hint=hint)
    try:
        cls()
    except Exception as error:  # a constructor may raise anything
        raise PluginError(
            f"{text} cannot be constructed without arguments ({type(error).__name__}: {error})",
            hint="name a class whose constructor needs no arguments",
        ) from error
    return cls


def _locate(cls: type[Backend], module: str) -> BaseBackend:
    if cls.__module__.partition(".")[0] == "anyaccel":
        return BaseBackend(cls=cls, module=_public_module(cls))
    for plugin in registry().plugins:
        backend = next((candidate for candidate in plugin.backends if type(candidate) is cls), None)
        if backend is not None:
            return BaseBackend(
                cls=cls,
                module=module,
                distribution=plugin.distribution,
                version=plugin.version,
                subject=published_subject(plugin, backend),
            )
    names = packages_distributions().get(module.partition(".")[0], [])
    if len(names) != 1:
        return BaseBackend(cls=cls, module=module)
    return BaseBackend(cls=cls, module=module, distribution=names[0], version=version(names[0]))


def served_kinds(base: BaseBackend) -> tuple[str, ...]:
    """Return the kinds of device that installed plugins support for the base's framework."""
    kinds = list(base.cls.kinds)
    for plugin in () if base.is_built_in else registry().plugins:
        kinds += [
            kind for backend in plugin.backends if backend.framework == base.cls.framework for kind in backend.kinds
        ]
    return tuple(dict.fromkeys(kinds))
