"""Helpers for tests of plugins and registries: the smallest backend, plugin modules, entry points, distributions on
disk.

They are for tests of core and for authors of plugins, who also find them in `anyaccel_devtools.testing`. pytest is not
required.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from anyaccel.backend import Backend, DeviceInfo
from anyaccel.device import Device
from anyaccel.errors import MoveError
from anyaccel.hookspecs import CONTRACT, hookimpl

__all__ = ["Cell", "FakeDistribution", "FakeEntryPoint", "TinyBackend", "entry", "plugin_module", "write_distribution"]


@dataclass(frozen=True, slots=True)
class FakeDistribution:
    """Name and version of a distribution, as messages show them."""

    name: str
    version: str = "0.1"


@dataclass(frozen=True, slots=True)
class FakeEntryPoint:
    """An entry point that is not installed.

    Attributes:
        target: The return value of `load`; an exception is raised, and a function is called for the result.
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
    """Create a plugin module with functions as its hooks: `plugin_module("tiny", backends=lambda: [TinyBackend()])`."""
    module = ModuleType(name)
    module.contract = CONTRACT  # type: ignore[attr-defined]
    for hook, function in hooks.items():
        setattr(module, hook, hookimpl(function))
    return module


def entry(name: str, target: Any, distribution: str = "", version: str = "0.1") -> FakeEntryPoint:
    """Create a fake entry point for a Registry.

    Args:
        name: Name of the plugin.
        target: A plugin module, a function that returns one, or an exception that loading raises.
        distribution: Name of its distribution; `""` for none, like a plugin without an entry point.
        version: Version of the distribution.
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
        folder: A folder that is, or will be, in `sys.path`.
        name: Name of the distribution.
        entry_points: Values by name.
        modules: Sources by module name.
        version: Version of the distribution.
        group: Group of the entry points; plugins are in `anyaccel`.
    """
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    info.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", "utf-8")
    lines = [f"{key} = {value}" for key, value in entry_points.items()]
    info.joinpath("entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]), "utf-8")
    for module, source in modules.items():
        folder.joinpath(f"{module}.py").write_text(source, "utf-8")


class Cell:
    """A tensor of the fake framework: one value on a device."""

    __slots__ = ("device", "value")

    def __init__(self, value: Any, device: Device) -> None:
        self.value = value
        self.device = device

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.value!r}, {self.device})"


class TinyBackend(Backend):
    """A backend whose properties are arguments, so that a test can have any frameworks and devices.

    Args:
        framework: Identifier of the fake framework; its tensor class comes from a module `tiny_FRAMEWORK`.
        devices: Devices of the fake machine; new cells are created on the first.
        kinds: Kinds that it serves; by default those of `devices`.
        vendor: Vendor in the `device_info` of every device.
        absent: Return value of `unavailable_reason` for every other device.

    Example:
        >>> import anyaccel as aa
        >>> from anyaccel.plugin_testing import TinyBackend
        >>> backend = TinyBackend("tiny", [aa.Device("gpu", 0), aa.Device("gpu", 1)])
        >>> backend.move(backend.new(5), aa.Device("gpu", 1)).device
        Device(kind='gpu', index=1)
    """

    def __init__(
        self,
        framework: str = "tiny",
        devices: Sequence[str] = ("cpu",),
        *,
        kinds: tuple[str, ...] = (),
        vendor: str = "",
        absent: str = "",
    ) -> None:
        self._devices = [Device.parse(text) for text in devices]
        self._current = self._devices[:1]
        self._vendor = vendor
        self._absent = absent
        self.framework = framework  # type: ignore[misc]  # a class attribute elsewhere; set per object here
        self.kinds = kinds or tuple(dict.fromkeys(device.kind for device in self._devices))  # type: ignore[misc]
        self.import_roots = (f"tiny_{framework}",)  # type: ignore[misc]

    @cached_property
    def cell(self) -> type[Cell]:
        """The framework's tensor class. The first access puts the fake framework into `sys.modules`, as an import
        would.
        """
        sys.modules.setdefault(self.import_roots[0], ModuleType(self.import_roots[0]))
        return type("TinyCell", (Cell,), {"__slots__": (), "__module__": self.import_roots[0]})

    def devices(self) -> Sequence[Device]:
        """Return the devices that were given."""
        return list(self._devices)

    def device_of(self, obj: Any) -> Device | None:
        """Return the device of a cell, None for other objects."""
        return obj.device if isinstance(obj, Cell) else None

    def place(self, obj: Any, device: Device) -> Any:
        """Move a cell, or a dict or list of cells."""
        if isinstance(obj, dict):
            return {key: self.place(value, device) for key, value in obj.items()}
        return [self.place(value, device) for value in obj] if isinstance(obj, list) else self.move(obj, device)

    def move(self, tensor: Any, device: Device, *, pinned: bool = False) -> Any:
        """Return a cell with the same value on the device."""
        if not isinstance(tensor, self.cell):
            raise MoveError(
                f"{tensor!r} is not a tensor of {self.framework}", hint="pass a cell from TinyBackend.new()"
            )
        return tensor if tensor.device == device else self.cell(tensor.value, device)

    @contextmanager
    def scope(self, device: Device) -> Iterator[None]:
        """Let `new` create cells on the device."""
        before, self._current = self._current, [device]
        try:
            yield
        finally:
            self._current = before

    def new(self, value: Any = 0) -> Cell:
        """Create a cell on the device of the current scope."""
        return self.cell(value, self._current[0])

    def device_string(self, device: Device) -> str:
        """Return the fake framework's name of a device: `gpu:1` is "tiny gpu 1"."""
        return f"{self.framework} {device.kind} {device.index}"

    def device_info(self, device: Device) -> DeviceInfo:
        """Return the name of the device and the vendor that was given."""
        return DeviceInfo(str(device), vendor=self._vendor)

    def unavailable_reason(self, device: Device) -> str:
        """Return the text given as `absent`, for a device it does not have."""
        return "" if device in self._devices else self._absent
