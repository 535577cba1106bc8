"""TinyBackend: the smallest complete backend, over a fake framework of one class, for tests of core and plugins."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from types import ModuleType
from typing import Any

from anyaccel.backend import Backend, DeviceInfo
from anyaccel.device import Device
from anyaccel.errors import MoveError


class Cell:
    """A tensor of the fake framework: one value on a device."""

    __slots__ = ("device", "value")

    def __init__(self, value: Any, device: Device) -> None:
        self.value = value
        self.device = device

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.value!r}, {self.device})"


class TinyBackend(Backend):
    """A backend whose facts are arguments, so that a test can have any frameworks and devices.

    Args:
        framework: identifier of the fake framework; its tensor class comes from a module `tiny_FRAMEWORK`.
        devices: devices of the fake machine; new cells are made on the first.
        kinds: kinds that it serves; by default those of `devices`.
        vendor: vendor in the `device_info` of every device.
        absent: what `unavailable_reason` returns for every other device.
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
        """The framework's tensor class. First access puts the fake framework into `sys.modules`, as an import would."""
        sys.modules.setdefault(self.import_roots[0], ModuleType(self.import_roots[0]))
        return type("TinyCell", (Cell,), {"__slots__": (), "__module__": self.import_roots[0]})

    def devices(self) -> Sequence[Device]:
        """The devices that were given."""
        return list(self._devices)

    def device_of(self, obj: Any) -> Device | None:
        """The device of a cell, None for other objects."""
        return obj.device if isinstance(obj, Cell) else None

    def place(self, obj: Any, device: Device) -> Any:
        """Move a cell, or a dict or list of cells."""
        if isinstance(obj, dict):
            return {key: self.place(value, device) for key, value in obj.items()}
        return [self.place(value, device) for value in obj] if isinstance(obj, list) else self.move(obj, device)

    def move(self, tensor: Any, device: Device, *, pinned: bool = False) -> Any:
        """A cell of the same value on the device."""
        if not isinstance(tensor, self.cell):
            raise MoveError(
                f"{tensor!r} is not a tensor of {self.framework}", hint="give a cell made by TinyBackend.new()"
            )
        return tensor if tensor.device == device else self.cell(tensor.value, device)

    @contextmanager
    def scope(self, device: Device) -> Iterator[None]:
        """`new` makes cells on the device."""
        before, self._current = self._current, [device]
        try:
            yield
        finally:
            self._current = before

    def new(self, value: Any = 0) -> Cell:
        """A cell on the device of the current scope."""
        return self.cell(value, self._current[0])

    def device_string(self, device: Device) -> str:
        """The fake framework's name of a device: `gpu:1` is "tiny gpu 1"."""
        return f"{self.framework} {device.kind} {device.index}"

    def device_info(self, device: Device) -> DeviceInfo:
        """Its name and the vendor that was given."""
        return DeviceInfo(str(device), vendor=self._vendor)

    def unavailable_reason(self, device: Device) -> str:
        """The text given as `absent`, for a device it does not have."""
        return "" if device in self._devices else self._absent
