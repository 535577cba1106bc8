"""Lists the devices of one backend as JSON. `anyaccel devices` runs it in a child process."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

from anyaccel.backend import Backend
from anyaccel.device import Device
from anyaccel.registry import registry


def list_devices(plugin_name: str, index: int) -> dict[str, Any]:
    """The devices of a plugin's backend: `framework`, `devices`, why kinds are `missing`, and what it does wrong.

    Only of the kinds that the backend serves: a pair of framework and kind that several plugins offer, one serves.
    """
    plugin = next(plugin for plugin in registry().plugins if plugin.name == plugin_name)
    backend = plugin.backends[index]
    kinds = served_kinds(backend)
    before = len(plugin.faults)
    devices = [device for device in registry().ask(backend, "devices") if device.kind in kinds]
    listing = {
        "framework": backend.framework,
        "devices": [_describe(backend, device) for device in devices],
        "missing": _missing_kinds(backend, kinds, devices),
    }
    registry().ask(backend, "owns", object())
    return {**listing, "faults": plugin.faults[before:]}


def served_kinds(backend: Backend) -> list[str]:
    """The kinds of device for which a backend is the one of its framework."""
    known = registry()
    pairs = [(backend.framework, kind) for kind in backend.kinds if known.serves(backend.framework, kind)]
    return [kind for framework, kind in pairs if known.find(framework, kind) is backend]


def _describe(backend: Backend, device: Device) -> dict[str, Any]:
    native, info = registry().ask(backend, "device_string", device), registry().ask(backend, "device_info", device)
    return {"device": str(device), "native": native, **asdict(info)}


def _missing_kinds(backend: Backend, kinds: list[str], devices: list[Device]) -> list[dict[str, str]]:
    missing = [kind for kind in kinds if kind not in {device.kind for device in devices}]
    return [{"kind": kind, "reason": registry().ask(backend, "unavailable_reason", Device(kind))} for kind in missing]


if __name__ == "__main__":
    answer = list_devices(sys.argv[1], int(sys.argv[2]))
    sys.stdout.write(f"\n{json.dumps(answer)}\n")  # on a line of its own, whatever else was printed
