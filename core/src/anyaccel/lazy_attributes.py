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
            hint = _hint_for(package, name, other_names or {})
            raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}", name=name)
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


class MissingNames:
    """Let `from PACKAGE import NAME` report the hint for a name that does not exist, which Python would drop.

    An object of it is the last finder of `sys.meta_path`, which is asked for `PACKAGE.NAME` when nothing else has it.
    """

    def __init__(self, package: str, other_names: Mapping[str, str]) -> None:
        self._package, self._other_names = package, other_names

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Raise ImportError if there is a hint for the name."""
        package, _, missing = name.rpartition(".")
        hint = _hint_for(package, missing, self._other_names) if package == self._package else ""
        if hint:
            raise ImportError(f"cannot import name {missing!r} from {package!r}{hint}", name=name)


def _hint_for(package: str, name: str, other_names: Mapping[str, str]) -> str:
    if name in other_names:
        return f". Hint: {other_names[name]}."
    if name.startswith("_"):
        return ""
    from anyaccel.suggestions import did_you_mean  # importing difflib takes longer than importing this package

    hint = did_you_mean(name, dir(sys.modules[package]), "", cutoff=0.8)
    return f". Hint: {hint}" if hint else ""
