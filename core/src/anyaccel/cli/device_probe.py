"""Lists devices as JSON: of all backends, where possible without importing a framework; or of one, which may.

`anyaccel devices` runs it in child processes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from importlib import import_module
from typing import Any

from anyaccel.backend import Backend, DeviceInfo
from anyaccel.device import Device
from anyaccel.machine import ExpectedDevices, Machine
from anyaccel.plugin_loader import Plugin
from anyaccel.registry import registry


def list_all(framework: str | None) -> dict[str, Any]:
    """Return the devices of each framework, or of one, as `merged` gives them, and the `broken` plugins.

    Backends with `expected_devices` import no framework; the others are asked for their devices and may.

    Raises:
        FrameworkError: no plugin runs the framework.
    """
    if framework is not None:
        registry().kinds(framework)
    machine = Machine.detect()
    listings = [(plugin, list_devices(plugin.name, i, machine)) for plugin, i in served_backends(framework)]
    return {"frameworks": merged(listings), "broken": describe_broken(registry().plugins)}


def served_backends(framework: str | None) -> list[tuple[Plugin, int]]:
    """Return each plugin with the number of each of its backends, of one framework or all, that serves something."""
    offers = [(plugin, i, backend) for plugin in registry().plugins for i, backend in enumerate(plugin.backends)]
    return [(p, i) for p, i, backend in offers if framework in (None, backend.framework) and served_kinds(backend)]


def served_kinds(backend: Backend) -> list[str]:
    """Return the kinds of device that a backend serves for its framework."""
    registered = registry()
    pairs = [(backend.framework, kind) for kind in backend.kinds if registered.serves(backend.framework, kind)]
    return [kind for framework, kind in pairs if registered.find(framework, kind) is backend]


def list_devices(plugin_name: str, index: int, machine: Machine | None = None) -> dict[str, Any]:
    """Return the devices of a plugin's backend: `framework`, `devices`, why kinds are `missing`, and its faults.

    Only kinds that the backend serves are listed: if several plugins offer a pair of framework and kind, one serves it.

    Args:
        plugin_name: The plugin.
        index: Index of the backend.
        machine: Facts for listing the backend's devices; None to ask the framework.
    """
    plugin = next(plugin for plugin in registry().plugins if plugin.name == plugin_name)
    backend = plugin.backends[index]
    kinds = served_kinds(backend)
    before = len(plugin.faults)
    devices: Mapping[Device, DeviceInfo] | None = None
    expected = None if machine is None else backend.capability(ExpectedDevices)
    if machine is not None and expected is not None:
        try:
            found = expected.expected_devices(machine)
            devices = None if found is None else dict(found)
        except Exception as error:
            plugin.add_fault("expected_devices() of its backend", f"raised {type(error).__name__}: {error}")
    if devices is None:
        if backend.capability(ExpectedDevices) is not None:
            with suppress(Exception):
                import_module(backend.import_roots[0])
        devices = {d: registry().ask(backend, "device_info", d) for d in registry().ask(backend, "devices")}
    served = {device: info for device, info in devices.items() if device.kind in kinds}
    present_kinds = {device.kind for device in served}
    missing = [kind for kind in kinds if kind not in present_kinds]
    listing = {
        "framework": backend.framework,
        "devices": [
            {"device": str(device), "native": registry().ask(backend, "device_string", device), **asdict(info)}
            for device, info in served.items()
        ],
        "missing": [
            {"kind": kind, "reason": registry().ask(backend, "unavailable_reason", Device(kind))} for kind in missing
        ],
    }
    registry().ask(backend, "owns", object())
    return {**listing, "faults": plugin.faults[before:]}


def merged(listings: Iterable[tuple[Plugin, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Merge the lists of the backends of each framework: `framework`, `devices`, `missing`. Plugins get their
    faults.
    """
    result: dict[str, dict[str, Any]] = {}
    for plugin, listing in listings:
        name = listing["framework"]
        whole = result.setdefault(name, {"framework": name, "devices": [], "missing": []})
        for fault in listing["faults"]:
            plugin.add_fault(fault, "")
            whole["missing"].append({"kind": "any", "reason": f"plugin {plugin} is broken: {fault}"})
        for delay in listing.get("delays", ()):
            plugin.delays.append(delay)
            whole["missing"].append({"kind": "any", "reason": f"plugin {plugin} is slow: {delay}"})
        whole["devices"] += listing["devices"]
        whole["missing"] += listing["missing"]
    return list(result.values())


def describe_broken(plugins: Iterable[Plugin]) -> list[dict[str, str]]:
    """Name, status, cause and hint of each plugin that is broken or slow."""
    told = (plugin for plugin in plugins if plugin.status != "ok")
    return [{"name": p.name, "status": p.status, "cause": p.cause, "hint": p.hint} for p in told]


if __name__ == "__main__":
    first, second = sys.argv[1], (sys.argv[2:] or [""])[0]
    answer = list_all(second or None) if first == "all" else list_devices(first, int(second))
    sys.stdout.write(f"\n{json.dumps(answer)}\n")  # on a line of its own, whatever else was printed
