"""Capability: the base class of what a backend can do beside placing, exchanging and computing."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

Capabilities = Mapping[type[Any] | str, Callable[[Any], Any]]
"""Capability classes, each with what makes the object from the backend: a class derived from it, or a function.

A class of a package that need not be installed is named by text, `"PACKAGE.CLASS"`.
"""


class Capability(ABC):  # noqa: B024 - those of each kind have abstract methods
    """An object that does one thing for a backend, and is made from it when it is first asked for.

    A class derived from a capability is entered in `Backend.capabilities`, or is named by an entry point.

    Args:
        backend: whose capability it is, also an attribute.
    """

    def __init__(self, backend: Any) -> None:
        self.backend = backend


def lazy(reference: str) -> Callable[[Any], Any]:
    """What makes the object of a capability by the class `"MODULE:CLASS"`, whose module is imported only then.

    For modules that import the framework, where the capability is asked for only when the framework is in use.
    """
    module, _, name = reference.partition(":")
    return lambda backend: getattr(import_module(module), name)(backend)


def capability_name(kind: type[Any]) -> str:
    """The text that names a capability class without importing it: `"PACKAGE.CLASS"`."""
    return f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
