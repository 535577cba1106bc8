"""For library authors: place, move and find out about objects of any framework, without naming one."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import numpy as np

from anyaccel.accelerator import Accelerator
from anyaccel.backend import Backend, Exchange
from anyaccel.device import Device
from anyaccel.errors import CapabilityError, DeviceMismatchError, FrameworkError, MoveError
from anyaccel.html import Markup, badge, guarded, listing, page, row, table
from anyaccel.registry import Registry, registry

T = TypeVar("T")

# Kinds that nobody is given unless they ask by name, and the one that is always there.
_NEVER_BEST = frozenset({"cpu", "sim"})
_PLAIN = (str, bytes, bool, int, float, complex, type(None))


class Devices(list[Device]):
    """A list of devices that a notebook shows as a table.

    `there` has every framework that was asked with each device that it listed: to show the list asks no other.
    """

    def __init__(self, found: Iterable[Device], there: Iterable[tuple[str, Device]]) -> None:
        super().__init__(found)
        self.there = tuple(there)

    def _repr_html_(self) -> str:
        head = ("device", "framework", "native name")
        return guarded(self, lambda: page("devices", "", table(head, self, self._told)))

    def _told(self, device: Device) -> Markup:
        """A device, the frameworks that are served on it, and their names of it; nothing is initialised."""
        frameworks = [framework for framework, one in self.there if one == device]
        native = [registry().find(one, device.kind).device_string(device) for one in frameworks]
        return row([badge(str(device)), listing(frameworks), listing(native)], device=str(device))


def devices(kind: str | None = None, framework: str | None = None) -> list[Device]:
    """Devices on this machine that some backend serves, best first: GPUs, other accelerators, CPUs, simulated ones.

    Args:
        kind: only this kind; an alias (`"cuda"`) is understood. An unknown kind gives an empty list.
        framework: only those on which this framework is served.

    Raises:
        FrameworkError: nobody serves the framework.
    """
    return _listed(kind, framework)


def _listed(kind: str | None, framework: str | None) -> Devices:
    wanted = Device.parse(kind).kind if kind is not None else None
    if framework is not None:
        registry().kinds(framework)
    backends = [one for one in registry().backends if framework in (None, one.framework)]
    there = [(backend.framework, device) for backend in backends for device in backend.devices()]
    found = {device for _, device in there if wanted in (None, device.kind)}
    return Devices(sorted(found, key=_rank), there)


def devices_or_cpu(kind: str = "gpu") -> list[Device]:
    """Every device of a kind, or the CPU where there is none: never empty."""
    found = _listed(kind, None)
    return found or Devices([Device("cpu")], found.there)


def best_device(i: int = 0, framework: str | None = None) -> Device:
    """GPU number `i` if there is one, else accelerator number `i` of another kind (mps, xpu, ...), else the CPU.

    Args:
        i: index of the device among those of its kind.
        framework: only devices on which this framework is served.

    Raises:
        FrameworkError: nobody serves the framework.
    """
    usable = (device for device in devices(framework=framework) if device.kind not in _NEVER_BEST and device.index == i)
    return next(usable, Device("cpu"))


def _rank(device: Device) -> tuple[int, str, int]:
    order = {"gpu": 0, "cpu": 2, "sim": 3}
    return order.get(device.kind, 1), device.kind, device.index


def device_of(obj: Any) -> Device | None:
    """Where a tensor, a model or a container of them is; None if it holds no tensor.

    Raises:
        DeviceMismatchError: a container holds tensors on several devices.
        NoBackendError: nobody owns something in it.
    """
    found = {device for leaf in _leaves(obj) if (device := _device_of_leaf(leaf)) is not None}
    if len(found) > 1:
        raise DeviceMismatchError(
            f"the tensors of a {type(obj).__name__} are on several devices",
            available=", ".join(map(str, sorted(found))),
            hint="move them to one with anyaccel.move(obj, device)",
        )
    return found.pop() if found else None


def _device_of_leaf(leaf: Any) -> Device | None:
    if isinstance(leaf, _PLAIN):
        return None
    return registry().find(registry().owner(leaf)).device_of(leaf)


def scope(where: Accelerator | Device | str, framework: str) -> AbstractContextManager[Any]:
    """New tensors of `framework` made inside land on the device; what was before is restored."""
    return Accelerator.of(where).scope(framework)


def place(obj: T, where: Accelerator | Device | str) -> T:
    """Put an object with state (a model, an optimizer) on a device; **use what is returned**.

    Raises:
        NoBackendError: nobody owns it (the message says what to install).
        FrameworkError, DeviceUnavailableError: its framework is not served there, or the device is not here.
    """
    accelerator = Accelerator.of(where)
    found: T = _serving(obj, accelerator).place(obj, accelerator.device)
    return found


def move(obj: T, where: Accelerator | Device | str, *, framework: str | None = None) -> T:
    """The same tensors on a device; what is there already is returned as it is.

    Goes through dicts, lists, tuples, named tuples and dataclasses, and through any object that has
    `__anyaccel_move__(move)`: it is called with a function that moves whatever it is given, and returns the object to
    use. Text, numbers and None pass. Dtypes never change.

    Args:
        obj: a tensor, or a container.
        where: the device.
        framework: turn NumPy arrays into tensors of this framework on the way; other tensors must be its own.

    Raises:
        MoveError: a dtype that the device cannot hold.
        NoBackendError: something in it that nobody owns.
        FrameworkError, DeviceUnavailableError: not served there, or not on this machine.
    """
    accelerator = Accelerator.of(where)
    target = _importer(registry(), accelerator, framework) if framework else None

    def leaf(value: Any) -> Any:
        if isinstance(value, _PLAIN):
            return value
        if target is not None and isinstance(value, np.ndarray):
            return target(value)
        if isinstance(value, np.ndarray) and not registry().serves("numpy", accelerator.device.kind):
            raise FrameworkError(
                f"a NumPy array cannot be on {accelerator.spec!r} as it is",
                available=f"numpy on {', '.join(registry().kinds('numpy'))}",
                hint="say whose tensor it shall become: move(..., framework='...')",
            )
        return _serving(value, accelerator).move(value, accelerator.device, pinned=accelerator.pin_memory)

    moved: T = _map(obj, leaf)
    return moved


def _serving(obj: Any, accelerator: Accelerator) -> Backend:
    found = registry()
    return found.serving(found.owner(obj), accelerator.device, vendor=accelerator.vendor)


def _importer(found: Registry, accelerator: Accelerator, framework: str) -> Callable[[np.ndarray], Any]:
    backend = found.serving(framework, accelerator.device, vendor=accelerator.vendor)
    if not isinstance(backend, Exchange):
        raise CapabilityError(
            f"the backend of {framework} takes no arrays from the host", hint="make the tensor with the framework"
        )
    exchange = backend
    return lambda array: exchange.from_host(array, accelerator.device, pinned=accelerator.pin_memory)


def _map(obj: Any, leaf: Callable[[Any], Any]) -> Any:
    """The object with `leaf` applied to each leaf; the same object where nothing changed."""
    hook = getattr(type(obj), "__anyaccel_move__", None)
    if hook is not None:
        return hook(obj, lambda inner: _map(inner, leaf))
    if type(obj) not in (dict, list, tuple) and registry().owners(obj):
        return leaf(obj)
    if isinstance(obj, Mapping):
        moved = {key: _map(value, leaf) for key, value in obj.items()}
        return obj if _same(moved.values(), obj.values()) else _mapping(obj, moved)
    if isinstance(obj, (list, tuple)):
        items = [_map(value, leaf) for value in obj]
        return obj if _same(items, obj) else _sequence(obj, items)
    if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        return _dataclass(obj, leaf)
    return leaf(obj)


def _same(after: Iterable[Any], before: Iterable[Any]) -> bool:
    return all(one is other for one, other in zip(after, before, strict=True))


def _mapping(obj: Any, moved: dict[Any, Any]) -> Any:
    """A mapping of the same type; what else it holds (a default factory, say) is kept where it can be written to."""
    if type(obj) is dict:
        return moved
    if isinstance(obj, MutableMapping):
        made = copy.copy(obj)
        made.update(moved)
        return made
    return _made(obj, moved)


def _sequence(obj: Any, items: list[Any]) -> Any:
    if hasattr(obj, "_make"):
        return obj._make(items)
    return items if type(obj) is list else _made(obj, items)


def _made(obj: Any, content: Any) -> Any:
    try:
        return type(obj)(content)
    except TypeError:
        raise MoveError(
            f"a {type(obj).__name__} cannot be made anew from what it holds",
            hint="give the class __anyaccel_move__(move)",
        ) from None


def _dataclass(obj: Any, leaf: Callable[[Any], Any]) -> Any:
    """A copy with moved fields; not made by its constructor, which may want what is no field."""
    values = {field.name: getattr(obj, field.name) for field in dataclasses.fields(obj) if hasattr(obj, field.name)}
    moved = {name: _map(value, leaf) for name, value in values.items()}
    if _same(moved.values(), values.values()):
        return obj
    made = copy.copy(obj)
    for name, value in moved.items():
        object.__setattr__(made, name, value)
    return made


def _leaves(obj: Any) -> Iterator[Any]:
    found: list[Any] = []

    def visit(leaf: Any) -> Any:
        found.append(leaf)
        return leaf

    _map(obj, visit)
    return iter(found)
