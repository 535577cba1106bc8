"""Attributes of a package that are imported on first use, so that importing the package stays cheap."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_attributes(
    package: str, modules: Mapping[str, str], other_names: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package whose public names are in its submodules.

    Args:
        package: `__name__` of the package.
        modules: For each name the module that defines it, absolute or (`.module`) relative to the package.
        other_names: Names that other libraries use, with a hint.
    """

    def get(name: str) -> Any:
        if name not in modules:
            hint = (other_names or {}).get(name, "")
            said = f". Hint: {hint}." if hint else ""
            raise AttributeError(f"module {package!r} has no attribute {name!r}{said}", name=name)
        try:
            module = import_module(modules[name], package)
        except ModuleNotFoundError as error:
            if not f"{modules[name]}.".startswith(f"{error.name}."):
                raise
            problem = f"{package}.{name} is in {modules[name]}, which is not installed"
            raise ModuleNotFoundError(problem, name=error.name) from None
        value = getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted(sys.modules[package].__all__)

    return get, names
