"""What one framework finds on this machine, as JSON: run as a process of its own by `anyaccel devices`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

from anyaccel.backend import Backend
from anyaccel.device import Device
from anyaccel.registry import registry


def listing(framework: str) -> dict[str, Any]:
    """Devices of a framework, and for kinds without one the reason."""
    backends = [backend for backend in registry().backends if backend.framework == framework]
    return {
        "framework": framework,
        "devices": [_described(backend, device) for backend in backends for device in backend.devices()],
        "missing": [reason for backend in backends for reason in _missing(backend)],
    }


def _described(backend: Backend, device: Device) -> dict[str, Any]:
    return {"device": str(device), "native": backend.device_string(device), **asdict(backend.device_info(device))}


def _missing(backend: Backend) -> list[dict[str, str]]:
    there = {device.kind for device in backend.devices()}
    absent = [kind for kind in backend.kinds if kind not in there]
    return [{"kind": kind, "reason": backend.unavailable_reason(Device(kind))} for kind in absent]


if __name__ == "__main__":
    sys.stdout.write(f"\n{json.dumps(listing(sys.argv[1]))}\n")  # a line of its own, whatever stands before and after
