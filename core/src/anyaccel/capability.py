"""Capability: the base class for additional abilities of a backend, beyond placing, exchanging and computing."""

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
    """Base class of an object that does one thing for a backend. It is created when it is first requested.

    Enter the derived class in `Backend.capabilities`, or name it by an entry point.

    Args:
        backend: The backend of the capability, also an attribute.
    """

    def __init__(self, backend: Any) -> None:
        self.backend = backend


def lazy(reference: str) -> Callable[[Any], Any]:
    """Return a factory of the capability class `"MODULE:CLASS"`, whose module is imported only when it is called.

    Use it for modules that import the framework, if the capability is requested only while the framework is in use.
    """
    module, _, name = reference.partition(":")
    return lambda backend: getattr(import_module(module), name)(backend)


def capability_name(kind: type[Any]) -> str:
    """Return the text that names a capability class without importing it: `"PACKAGE.CLASS"`."""
    return f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
