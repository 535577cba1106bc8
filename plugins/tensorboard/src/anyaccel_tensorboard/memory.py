"""How full the devices of a plan are, as the frameworks that compute on them say."""

from __future__ import annotations

from typing import Any

from anyaccel.backend import Memory
from anyaccel.registry import registry


def memory(plan: Any) -> dict[str, float]:
    """Bytes used, at the peak and in all, as `memory/DEVICE/FRAMEWORK/used_bytes`; what is not known is left out."""
    found: dict[str, float] = {}
    for framework, device in dict.fromkeys((one.framework, one.device) for one in plan.assignments):
        backend = registry().find(framework, device.kind)
        if isinstance(backend, Memory):
            now = backend.memory(device)
            figures = {"used": now.used, "peak": now.peak, "total": now.total}
            found.update({f"memory/{device}/{framework}/{name}_bytes": size for name, size in figures.items() if size})
    return found
