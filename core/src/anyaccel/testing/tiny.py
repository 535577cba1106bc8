"""TinyBackend: the smallest complete backend, over a framework that is one class, for tests of what stands above."""

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
    """A tensor of the tiny framework: one value, and the device it is on."""

    __slots__ = ("device", "value")

    def __init__(self, value: Any, device: Device) -> None:
        self.value = value
        self.device = device

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.value!r}, {self.device})"


class TinyBackend(Backend):
    """A backend whose facts are arguments, so that a test can have as many frameworks and devices as it likes.

    Args:
        framework: identifier of the pretended framework; its classes come from a module `tiny_FRAMEWORK`.
        devices: what is on the pretended machine; the first is where new cells land.
        kinds: kinds it serves; by default those of `devices`.
        vendor: what `device_info` says of every device.
        absent: what `why_not` says of every other device.
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
        self.framework = framework  # type: ignore[misc]  # a class fact everywhere else; here each object is its own
        self.kinds = kinds or tuple(dict.fromkeys(device.kind for device in self._devices))  # type: ignore[misc]
        self.import_roots = (f"tiny_{framework}",)  # type: ignore[misc]

    @cached_property
    def cell(self) -> type[Cell]:
        """The framework's tensor class. Whoever has it has imported the framework, which is pretended here."""
        sys.modules.setdefault(self.import_roots[0], ModuleType(self.import_roots[0]))
        return type("TinyCell", (Cell,), {"__slots__": (), "__module__": self.import_roots[0]})

    def devices(self) -> Sequence[Device]:
        """The devices it was made with."""
        return list(self._devices)

    def device_of(self, obj: Any) -> Device | None:
        """Where a cell is."""
        return obj.device if isinstance(obj, Cell) else None

    def place(self, obj: Any, device: Device) -> Any:
        """A cell, or a dict or list of them."""
        if isinstance(obj, dict):
            return {key: self.place(value, device) for key, value in obj.items()}
        return [self.place(value, device) for value in obj] if isinstance(obj, list) else self.move(obj, device)

    def move(self, tensor: Any, device: Device, *, pinned: bool = False) -> Any:
        """A cell of the same value elsewhere."""
        if not isinstance(tensor, self.cell):
            raise MoveError(f"{tensor!r} is not a tensor of {self.framework}")
        return tensor if tensor.device == device else self.cell(tensor.value, device)

    @contextmanager
    def scope(self, device: Device) -> Iterator[None]:
        """`new` makes cells there."""
        before, self._current = self._current, [device]
        try:
            yield
        finally:
            self._current = before

    def new(self, value: Any = 0) -> Cell:
        """A cell where the scope says."""
        return self.cell(value, self._current[0])

    def device_string(self, device: Device) -> str:
        """The framework calls `gpu:1` "tiny gpu 1"."""
        return f"{self.framework} {device.kind} {device.index}"

    def device_info(self, device: Device) -> DeviceInfo:
        """Of the vendor it was made with."""
        return DeviceInfo(str(device), vendor=self._vendor)

    def unavailable_reason(self, device: Device) -> str:
        """What it was made with, for a device it does not have."""
        return "" if device in self._devices else self._absent
