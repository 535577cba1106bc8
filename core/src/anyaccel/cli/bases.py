"""The backend that a new chip derives from: named on the command line, or that of an installed framework."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from importlib import import_module
from pkgutil import resolve_name

from anyaccel.backend import Backend
from anyaccel.errors import PluginError
from anyaccel.numpy_backend import NumpyBackend
from anyaccel.registry import BUILT_IN, registry
from anyaccel.testing.subject_discovery import published_subject


@dataclass(frozen=True, slots=True)
class Base:
    """A backend class, and where it comes from.

    Attributes:
        cls: the class.
        module: from where a plugin imports it.
        distribution: what has to be installed for it; `""` for core's own, and where it is not known.
        version: its version, `""` where it is not known.
        subject: the Subject that its plugin publishes, `module:Class`; `""` if none.
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
    def is_reference(self) -> bool:
        """Whether it is core's own backend, which no plugin may stand beside under its own name."""
        return self.cls.framework == BUILT_IN

    @property
    def host(self) -> str:
        """The kind of device that stands in for a chip that is not here."""
        if self.is_reference:
            return "sim"
        return "cpu" if "cpu" in self.cls.kinds else self.cls.kinds[0]


REFERENCE = Base(NumpyBackend, "anyaccel.numpy_backend")


def named(text: str) -> Base:
    """The base that `module:Class` names. Imports that module, and so runs it.

    Raises:
        PluginError: it cannot be imported, or is no backend that a class can derive from.
    """
    module, colon, name = text.partition(":")
    if not (colon and name.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        raise PluginError(
            f"{text!r} names no class", hint="write module:Class, such as anyaccel.numpy_backend:NumpyBackend"
        )
    try:
        found = resolve_name(text)
    except (Exception, SystemExit) as error:  # a module may raise anything while it is imported
        said = " ".join(str(error).split())
        raise PluginError(
            f"the base {text} cannot be imported ({type(error).__name__}: {said})",
            hint="check the spelling, or install what it belongs to",
        ) from error
    return _described(_checked(text, found), module)


def serving(framework: str) -> Base:
    """The class of the backend that serves an installed framework.

    Raises:
        FrameworkError: nobody serves it.
        PluginError: its backend is not of a class that can be derived from.
    """
    cls = type(registry().find(framework))
    top = cls.__module__.partition(".")[0]
    public = getattr(import_module(top), cls.__name__, None) is cls
    text = f"{top if public else cls.__module__}:{cls.__qualname__}"
    return _described(_checked(text, cls), text.partition(":")[0])


def _checked(text: str, found: object) -> type[Backend]:
    if not (isinstance(found, type) and issubclass(found, Backend)):
        raise PluginError(
            f"{text} is not a Backend", available=f"it is {found!r}", hint="name a class derived from anyaccel.Backend"
        )
    if inspect.isabstract(found):
        lacking = ", ".join(sorted(getattr(found, "__abstractmethods__", ())))
        raise PluginError(f"{text} is not a whole backend: it lacks {lacking}", hint="name a class that has them")
    _check_facts(text, found)
    try:
        found()
    except Exception as error:  # a constructor may raise anything
        raise PluginError(
            f"{text} cannot be made without arguments ({type(error).__name__}: {error})",
            hint="name a class that a plugin makes with no arguments",
        ) from error
    return found


def _check_facts(text: str, cls: type[Backend]) -> None:
    """What is written into sources must be words, and known of the class."""
    remedy = "derive a class from it by hand"
    if not text.partition(":")[2].isidentifier():
        raise PluginError(f"{text} cannot be imported by name: it stands inside of something else", hint=remedy)
    if not (hasattr(cls, "framework") and hasattr(cls, "kinds")):
        raise PluginError(f"{text} says its framework and kinds of its objects only", hint=remedy)
    if not cls.framework.isidentifier():
        raise PluginError(
            f"{text} is a backend whose framework is {cls.framework!r}", available="identifiers", hint=remedy
        )


def _described(cls: type[Backend], module: str) -> Base:
    if cls.__module__.partition(".")[0] == "anyaccel":
        return REFERENCE if cls is NumpyBackend else Base(cls, module)
    for plugin in registry().plugins:
        own = next((one for one in plugin.backends if type(one) is cls), None)
        if own is not None:
            return Base(cls, module, plugin.distribution, plugin.version, published_subject(plugin, own))
    return Base(cls, module, *_distribution_of(module.partition(".")[0]))


def _distribution_of(top: str) -> tuple[str, str]:
    from importlib.metadata import packages_distributions, version

    names = packages_distributions().get(top, [])
    return (names[0], version(names[0])) if len(names) == 1 else ("", "")


def kinds_served(base: Base) -> tuple[str, ...]:
    """The kinds of device on which the base's framework is served here, by itself or by others."""
    kinds = list(base.cls.kinds)
    for plugin in () if base.is_reference else registry().plugins:
        kinds += [kind for one in plugin.backends if one.framework == base.cls.framework for kind in one.kinds]
    return tuple(dict.fromkeys(kinds))
