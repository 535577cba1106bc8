"""The inventory of this machine as frameworks see it: for a request that is used with them."""

from __future__ import annotations

from collections.abc import Sequence

from anyaccel.device import Device
from anyaccel.registry import Registry, registry
from anyaccel.requests.inventory import Inventory, InventoryDevice, stated_memory
from anyaccel.requests.inventory_registry import InventoryRegistry
from anyaccel.requests.system_devices import system_host


def machine_of(frameworks: Sequence[str], *, of_all: bool = True, known: Registry | None = None) -> Inventory:
    """What this machine has for some frameworks; without any, for whoever asks its drivers.

    Accelerators are asked what they are, which may initialise them: they are about to be used.

    Args:
        frameworks: names of frameworks.
        of_all: only devices on which all of them run; else those on which any does.
        known: the backends, by default those of the process; an InventoryRegistry has a machine of its own.

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
    devices = [device for device in every if not of_all or all(device in own for own in listed.values())]
    memory_gb, cores = system_host()
    described = tuple(_described(device, listed) for device in devices)
    return Inventory(devices=described, host_memory_gb=memory_gb, cores=cores, source="this machine")


def _described(device: Device, listed: dict[str, list[Device]]) -> InventoryDevice:
    if device.kind in ("cpu", "sim"):
        return InventoryDevice(device=device)
    known = registry()
    framework = next(name for name, devices in listed.items() if device in devices)
    info = known.ask(known.find(framework, device.kind), "device_info", device)
    return InventoryDevice(
        device=device,
        name=info.name,
        vendor=info.vendor,
        memory_gb=stated_memory(info.name, info.total_memory),
        identity=info.identity,
    )
