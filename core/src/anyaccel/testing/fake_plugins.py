"""Fake plugins for tests of a Registry: plugin modules, entry points, and distributions written to a folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from anyaccel.hookspecs import CONTRACT, hookimpl


@dataclass(frozen=True, slots=True)
class FakeDistribution:
    """Name and version of a distribution, as messages show them."""

    name: str
    version: str = "0.1"


@dataclass(frozen=True, slots=True)
class FakeEntryPoint:
    """An entry point that is not installed.

    Attributes:
        target: what `load` returns; an exception is raised, and a function is called for the result.
    """

    name: str
    target: Any
    dist: FakeDistribution | None = None

    @property
    def value(self) -> str:
        """The text after the equals sign in `entry_points.txt`."""
        return f"fake_{self.name}"

    def load(self) -> Any:
        """Return the plugin module, or raise the exception of its import."""
        if isinstance(self.target, BaseException):
            raise self.target
        return self.target() if callable(self.target) else self.target


def plugin_module(name: str, **hooks: Callable[..., Any]) -> ModuleType:
    """A plugin module with functions as its hooks: `plugin_module("tiny", backends=lambda: [TinyBackend()])`."""
    module = ModuleType(name)
    module.contract = CONTRACT  # type: ignore[attr-defined]
    for hook, function in hooks.items():
        setattr(module, hook, hookimpl(function))
    return module


def entry(name: str, target: Any, distribution: str = "", version: str = "0.1") -> FakeEntryPoint:
    """A fake entry point, to be given to a Registry.

    Args:
        name: name of the plugin.
        target: a plugin module, a function that returns one, or an exception that loading raises.
        distribution: name of its distribution; `""` for none, like a plugin registered by hand.
        version: version of the distribution.
    """
    return FakeEntryPoint(name, target, FakeDistribution(distribution, version) if distribution else None)


def write_distribution(
    folder: Path,
    name: str,
    *,
    entry_points: Mapping[str, str],
    modules: Mapping[str, str],
    version: str = "0.1",
    group: str = "anyaccel",
) -> None:
    """Write a distribution that `importlib.metadata` finds once `folder` is in `sys.path`, as an installer would.

    Args:
        folder: a folder that is, or will be, in `sys.path`.
        name: name of the distribution.
        entry_points: values by name.
        modules: sources by module name.
        version: version of the distribution.
        group: the group of the entry points; plugins are in `anyaccel`.
    """
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    info.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", "utf-8")
    lines = [f"{key} = {value}" for key, value in entry_points.items()]
    info.joinpath("entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]), "utf-8")
    for module, source in modules.items():
        folder.joinpath(f"{module}.py").write_text(source, "utf-8")
