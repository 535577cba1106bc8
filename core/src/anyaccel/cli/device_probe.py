"""Lists the devices of one framework as JSON. `anyaccel devices` runs it in a child process."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

from anyaccel.backend import Backend
from anyaccel.device import Device
from anyaccel.registry import registry


def list_devices(framework: str) -> dict[str, Any]:
    """The devices of a framework, and why kinds without a device have none: `framework`, `devices`, `missing`."""
    backends = [backend for backend in registry().backends if backend.framework == framework]
    return {
        "framework": framework,
        "devices": [_describe(backend, device) for backend in backends for device in backend.devices()],
        "missing": [reason for backend in backends for reason in _missing_kinds(backend)],
    }


def _describe(backend: Backend, device: Device) -> dict[str, Any]:
    return {"device": str(device), "native": backend.device_string(device), **asdict(backend.device_info(device))}


def _missing_kinds(backend: Backend) -> list[dict[str, str]]:
    available = {device.kind for device in backend.devices()}
    missing = [kind for kind in backend.kinds if kind not in available]
    return [{"kind": kind, "reason": backend.unavailable_reason(Device(kind))} for kind in missing]


if __name__ == "__main__":
    sys.stdout.write(f"\n{json.dumps(list_devices(sys.argv[1]))}\n")  # on a line of its own, whatever else was printed
