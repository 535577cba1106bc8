"""The values of one step by name, on every device that asks for them, and the cotangents that flow back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from anyaccel.adapter.ops import ArrayOps
from anyaccel.device import Device


class Values:
    """Values by name; each crosses to another device at most once a step."""

    def __init__(self, ops: ArrayOps, home: Mapping[str, Device]) -> None:
        self._ops = ops
        self._home = home
        self._found: dict[tuple[str, Device], Any] = {}

    def put(self, name: str, value: Any) -> None:
        """Enter a value that is on its home device; None if this step lacks it."""
        self._found[name, self._home[name]] = value

    def on(self, name: str, device: Device) -> Any:
        """The value on a device."""
        if (name, device) not in self._found:
            value = self.home(name)
            self._found[name, device] = None if value is None else self._ops.move(value, device)
        return self._found[name, device]

    def lacks(self, names: Iterable[str]) -> bool:
        """Whether this step lacks one of some values."""
        return any(self.home(name) is None for name in names)

    def home(self, name: str) -> Any:
        """The value where it was made; None if this step lacks it."""
        return self._found[name, self._home[name]]


class Cotangents:
    """Cotangents by name; those of one device are added up there before they cross home."""

    def __init__(self, ops: ArrayOps, home: Mapping[str, Device]) -> None:
        self._ops = ops
        self._home = home
        self._found: dict[str, dict[Device, Any]] = {}

    def add(self, name: str, device: Device, cotangent: Any) -> None:
        """Add a cotangent that is on `device`."""
        there = self._found.setdefault(name, {})
        there[device] = there[device] + cotangent if device in there else cotangent

    def take(self, name: str) -> Any | None:
        """The whole cotangent on the value's home device; None where nothing flowed back."""
        total = None
        for cotangent in self._found.pop(name, {}).values():
            moved = self._ops.move(cotangent, self._home[name])
            total = moved if total is None else total + moved
        return total
