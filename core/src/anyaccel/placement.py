"""Placement: functions that place, move and locate objects of any framework, and that list devices."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from anyaccel.accelerator import SCALARS, Accelerator
from anyaccel.call_hints import call_hints
from anyaccel.containers import leaves
from anyaccel.device import Device
from anyaccel.errors import ArgumentError, DeviceMismatchError
from anyaccel.html import Markup, badge, element
from anyaccel.registry import registry

T = TypeVar("T")

_ORDER = {"gpu": 0, "cpu": 2, "sim": 3}  # other accelerators are 1
_ONLY_BY_NAME = frozenset({"cpu", "sim"})  # `best_device` chooses none of these


class Devices(list[Device]):
    """A list of devices that a notebook shows as a table.

    `listed` has pairs of a framework and one of its devices.
    """

    def __init__(self, devices: Iterable[Device], listed: Iterable[tuple[str, Device]]) -> None:
        super().__init__(devices)
        self.listed = tuple(listed)

    def _repr_html_(self) -> str:
        head = element("tr", *(element("th", title) for title in ("device", "framework", "native name")))
        return element("table", element("thead", head), element("tbody", *map(self._row, self)))

    def _row(self, device: Device) -> Markup:
        frameworks = [framework for framework, other in self.listed if other == device]
        native = [registry().ask(registry().find(name, device.kind), "device_string", device) for name in frameworks]
        cells = (badge(str(device)), ", ".join(frameworks), ", ".join(native))
        return element("tr", *(element("td", cell) for cell in cells), data_anyaccel_device=str(device))


@call_hints
def devices(kind: str | None = None, framework: str | None = None) -> list[Device]:
    """List the devices of this machine, best first: GPUs, other accelerators, CPUs, simulated devices.

    Args:
        kind: List only this kind; aliases such as `"cuda"` are understood. An unknown kind returns an empty list.
        framework: List only devices that this framework supports.

    Raises:
        FrameworkError: no plugin runs the framework.

    Example:
        >>> import anyaccel as aa
        >>> aa.devices("cpu")
        [Device(kind='cpu', index=0)]
    """
    wanted = Device.parse(kind).kind if kind is not None else None
    if framework is not None:
        registry().kinds(framework)
    listed = registry().devices(framework)
    chosen = {device for _, device in listed if wanted in (None, device.kind)}
    return Devices(sorted(chosen, key=lambda device: (_ORDER.get(device.kind, 1), device)), listed)


@call_hints
def devices_or_cpu(kind: str = "gpu") -> list[Device]:
    """List every device of a kind, or the CPU if the machine has no such device. The list is never empty.

    Example:
        >>> import anyaccel as aa
        >>> len(aa.devices_or_cpu("gpu")) >= 1
        True
    """
    return devices(Device.parse(kind).kind) or Devices([Device("cpu")], registry().devices())


@call_hints
def best_device(i: int = 0, framework: str | None = None) -> Device:
    """Return GPU number `i`, otherwise accelerator number `i` of another kind (mps, xpu, ...), otherwise the CPU.

    Args:
        i: Index of the device among those of its kind.
        framework: Consider only devices that this framework supports.

    Raises:
        DeviceParseError: `i` is not an index.
        ArgumentError: `i` is text.
        FrameworkError: no plugin runs the framework.

    Example:
        >>> import anyaccel as aa
        >>> aa.best_device() in aa.devices()
        True
    """
    if isinstance(i, str):
        raise ArgumentError(
            f"best_device takes the index of a device, not {i!r}", hint=f"write devices_or_cpu({i!r})[0]"
        )
    index = Device("gpu", i).index
    matching = (d for d in devices(framework=framework) if d.kind not in _ONLY_BY_NAME and d.index == index)
    return next(matching, Device("cpu"))


@call_hints
def device_of(obj: Any) -> Device | None:
    """Return the device of a tensor, a model or a container of them; None if it holds no tensor.

    Raises:
        DeviceMismatchError: a container holds tensors on several devices.
        NoBackendError: no backend owns an object in it.

    Example:
        >>> import anyaccel as aa, numpy as np
        >>> aa.device_of({"x": np.zeros(3)})
        Device(kind='cpu', index=0)
    """
    registered = registry()
    tensors = (leaf for leaf in leaves(obj, registered.owners) if not isinstance(leaf, SCALARS))
    backend = functools.cache(registered.find)
    devices_of = (backend(registered.owner(leaf)).device_of(leaf) for leaf in tensors)
    places = {device for device in devices_of if device is not None}
    if len(places) > 1:
        problem, available = f"the tensors of a {type(obj).__name__} are on several devices", map(str, sorted(places))
        hint = "move them to one with anyaccel.move(obj, device)"
        raise DeviceMismatchError(problem, available=", ".join(available), hint=hint)
    return places.pop() if places else None


@call_hints
def scope(where: Accelerator | Device | str, framework: str) -> AbstractContextManager[Any]:
    """Return a context that creates new tensors of `framework` on the device. Raises the errors of `place`.

    Example:
        >>> import anyaccel as aa
        >>> with aa.scope("cpu", "numpy"):
        ...     pass
    """
    return Accelerator.of(where).scope(framework)


@call_hints
def place(obj: T, where: Accelerator | Device | str) -> T:
    """Put a model, an optimizer or another object with state on a device; **use the result**.

    Containers are handled as in `move`.

    Raises:
        NoBackendError: no backend owns it; the hint says what to install.
        FrameworkError: no plugin runs its framework on this kind of device.
        DeviceUnavailableError: the device is not on this machine.

    Example:
        >>> import anyaccel as aa
        >>> net = aa.place(aa.SequentialMLP([1]), "cpu")
    """
    result: T = Accelerator.of(where).place(obj)
    return result


@call_hints
def move(obj: T, where: Accelerator | Device | str, *, framework: str | None = None) -> T:
    """Copy tensors to a device. Tensors on that device are returned unchanged.

    Dicts, lists, tuples, named tuples and dataclasses are handled, and objects with `__anyaccel_move__(move)`: that
    method receives a function that moves and returns the object to use. Text, numbers and None are returned unchanged.
    Dtypes never change.

    Args:
        obj: A tensor, or a container.
        where: The device.
        framework: Turn NumPy arrays into tensors of this framework. Other tensors must belong to it already.

    Raises:
        MoveError: the device does not support a dtype, a tensor belongs to another framework, or a container cannot be
            rebuilt.
        NoBackendError: no backend owns an object in it.
        FrameworkError: no plugin runs its framework on this kind of device.
        DeviceUnavailableError: the device is not on this machine.

    Example:
        >>> import anyaccel as aa, numpy as np
        >>> batch = aa.move({"x": np.ones((2, 3)), "name": "first"}, "cpu")
        >>> batch["x"].shape, batch["name"]
        ((2, 3), 'first')
    """
    result: T = Accelerator.of(where).move(obj, framework=framework)
    return result
