"""What a test feeds a Registry: plugin modules and entry points made by hand, and distributions written to a folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from anyaccel.hookspecs import hookimpl


@dataclass(frozen=True, slots=True)
class FakeDistribution:
    """The two facts of an installed distribution that messages name."""

    name: str
    version: str = "0.1"


@dataclass(frozen=True, slots=True)
class FakeEntryPoint:
    """An entry point that was never installed: `target` is what `load` gives, is raised by it, or is called for it."""

    name: str
    target: Any
    dist: FakeDistribution | None = None

    @property
    def value(self) -> str:
        """The text behind the equals sign in a real `entry_points.txt`."""
        return f"fake_{self.name}"

    def load(self) -> Any:
        """The plugin module, or the exception that its import ends in."""
        if isinstance(self.target, BaseException):
            raise self.target
        return self.target() if callable(self.target) else self.target


def plugin_module(name: str, **hooks: Callable[..., Any]) -> ModuleType:
    """A plugin module with these functions as hooks: `plugin_module("tiny", backends=lambda: [TinyBackend()])`."""
    module = ModuleType(name)
    for hook, function in hooks.items():
        setattr(module, hook, hookimpl(function))
    return module


def entry(name: str, target: Any, distribution: str = "", version: str = "0.1") -> FakeEntryPoint:
    """An entry point of that name: `target` is a plugin module, a function that makes one, or an exception.

    Without a distribution it has none, as one that was registered by hand.
    """
    return FakeEntryPoint(name, target, FakeDistribution(distribution, version) if distribution else None)


def write_distribution(
    folder: Path, name: str, *, entry_points: Mapping[str, str], modules: Mapping[str, str], version: str = "0.1"
) -> None:
    """Write what an installer would leave behind, so that `importlib.metadata` finds it once `folder` is on the path.

    Args:
        folder: a folder that is, or will be, in `sys.path`.
        name: name of the distribution.
        entry_points: name to value, in the group `anyaccel`.
        modules: module name to source.
        version: version of the distribution.
    """
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    info.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", "utf-8")
    lines = [f"{key} = {value}" for key, value in entry_points.items()]
    info.joinpath("entry_points.txt").write_text("\n".join(["[anyaccel]", *lines, ""]), "utf-8")
    for module, source in modules.items():
        folder.joinpath(f"{module}.py").write_text(source, "utf-8")
