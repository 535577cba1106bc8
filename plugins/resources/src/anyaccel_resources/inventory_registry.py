"""InventoryRegistry: the installed backends on a machine that is described, not here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from anyaccel.backend import Backend, DeviceInfo
from anyaccel.device import Device
from anyaccel.machine.system_devices import system_host
from anyaccel.plugin_loader import Plugin
from anyaccel.registry import Registry, registry
from anyaccel_resources.inventory import Inventory, InventoryDevice, stated_memory


class InventoryRegistry(Registry):
    """The backends of a registry, with the devices of an inventory. No device is accessed.

    Use it to make plans; nothing can be placed.

    Args:
        base: The registry that has the backends.
        inventory: The machine; also an attribute.
    """

    is_of_this_machine = False

    def __init__(self, base: Registry, inventory: Inventory) -> None:
        super().__init__(entry_points=tuple)
        self._base, self.inventory, self.description = base, inventory, str(inventory)
        self._devices = {entry.device: entry for entry in inventory.devices}
        base.load()
        self.policies = base.policies

    def load(self) -> None:
        """Load the base registry."""

    @property
    def plugins(self) -> tuple[Plugin, ...]:
        """Those of the base."""
        return self._base.plugins

    @property
    def backends(self) -> tuple[Backend, ...]:
        """Those of the base."""
        return self._base.backends

    @property
    def frameworks(self) -> tuple[str, ...]:
        """Those of the base."""
        return self._base.frameworks

    def kinds(self, framework: str) -> tuple[str, ...]:
        return self._base.kinds(framework)

    def serves(self, framework: str, kind: str) -> bool:
        return self._base.serves(framework, kind)

    def find(self, framework: str, kind: str | None = None) -> Backend:
        return self._base.find(framework, kind)

    def owners(self, obj: Any) -> tuple[str, ...]:
        return self._base.owners(obj)

    def devices(self, framework: str | None = None) -> list[tuple[str, Device]]:
        """Return each framework, or only this one, with each device of the inventory supported by its backends."""
        names = self.frameworks if framework is None else (framework,)
        return [(name, device) for name in names for device in self._devices if self.serves(name, device.kind)]

    def ask(self, backend: Backend, method: str, *arguments: Any, required: bool = False) -> Any:
        """Answer questions about devices from the inventory; ask the base for anything else."""
        if method == "devices":
            return [device for device in self._devices if device.kind in backend.kinds]
        if method == "device_info" and arguments[0].kind != "cpu":
            described = self._devices[arguments[0]]
            return DeviceInfo(
                described.label,
                vendor=described.vendor,
                memory_space=str(described.device),
                total_memory=described.nbytes,
            )
        return self._base.ask(backend, method, *arguments, required=required)

    def unavailable_reason(self, framework: str, device: Device) -> str:
        """Return that the described machine has no such device."""
        return "the described machine has none"

    def machine(self, frameworks: Sequence[str], *, of_all: bool = True) -> Inventory:
        """Return the inventory with only the devices supported by all of these frameworks, or by any of them."""
        quantor = all if of_all else any
        devices = [
            entry
            for entry in self.inventory.devices
            if not frameworks or quantor(self.serves(framework, entry.device.kind) for framework in frameworks)
        ]
        return replace(self.inventory, devices=tuple(devices))

    def capacity(self, device: Device) -> int:
        """Return bytes of memory of a device, of the CPU those of the host; 0 if unknown."""
        return self.inventory.host_nbytes if device.kind == "cpu" else self._devices[device].nbytes

    def total_memory(self, framework: str, device: Device) -> int | None:
        """Return the described memory; None if it is not described."""
        return self.capacity(device) or None

    def free_memory(self, framework: str, device: Device) -> int | None:
        """Return all of it."""
        return self.capacity(device) or None


def described(inventory: Inventory | str) -> InventoryRegistry:
    """Return the installed backends on a machine, given as the argument `inventory` of plans.

    Raises:
        ConfigError: it is not an inventory.
    """
    return InventoryRegistry(registry(), Inventory.parse(inventory))


# -- the inventory of this machine as frameworks see it: for a request that is used with them --------------------------


def machine_of(frameworks: Sequence[str], *, of_all: bool = True, known: Registry | None = None) -> Inventory:
    """Return this machine as some frameworks see it; without frameworks, as its drivers see it.

    Accelerators are queried, which may initialize them: they are about to be used.

    Args:
        frameworks: Names of frameworks.
        of_all: Only devices supported by all of them; otherwise by any of them.
        known: The backends, by default those of the process; an InventoryRegistry has its own machine.

    Raises:
        FrameworkError: no plugin runs a framework.
    """
    if isinstance(known, InventoryRegistry):
        return known.machine(frameworks, of_all=of_all)
    if not frameworks:
        return Inventory.detect()
    known = known or registry()
    for framework in frameworks:
        known.kinds(framework)
    listed = {name: [device for _, device in known.devices(name)] for name in frameworks}
    every = list(dict.fromkeys(device for devices in listed.values() for device in devices))
    devices = [
        device for device in every if not of_all or all(device in of_framework for of_framework in listed.values())
    ]
    memory_gb, cores = system_host()
    described = tuple(_described(device, listed) for device in devices)
    return Inventory(devices=described, host_memory_gb=memory_gb, cores=cores, source="this machine")


def _described(device: Device, listed: dict[str, list[Device]]) -> InventoryDevice:
    if device.kind in ("cpu", "sim"):
        return InventoryDevice(device=device)
    installed = registry()
    framework = next(name for name, devices in listed.items() if device in devices)
    info = installed.ask(installed.find(framework, device.kind), "device_info", device)
    return InventoryDevice(
        device=device,
        name=info.name,
        vendor=info.vendor,
        memory_gb=stated_memory(info.name, info.total_memory),
        identity=info.identity,
    )
