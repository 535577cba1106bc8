"""The resources of a SkyPilot task: `accelerators`, `cpus` and `memory`; `ordered` or `any_of` for several wishes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anyaccel.requests.entry import RequestEntry
from anyaccel.requests.exports.refusal import refused


def skypilot(entries: Sequence[RequestEntry], ordered: bool) -> dict[str, Any]:
    """The mapping below `resources:`.

    Raises:
        ConfigError: SkyPilot has no words for it.
    """
    each = [_resources(entry) for entry in entries]
    if len(each) == 1:
        return each[0]
    return {"ordered" if ordered else "any_of": each}


def _resources(entry: RequestEntry) -> dict[str, Any]:
    host: dict[str, Any] = {"memory": f"{entry.host_memory_gb}+"} if entry.host_memory_gb else {}
    host |= {"cpus": f"{entry.cores}+"} if entry.cores else {}
    if entry.kind == "cpu":
        return host or {"cpus": "1+"}
    return {"accelerators": _accelerators(entry), **host}


def _accelerators(entry: RequestEntry) -> str:
    if entry.capabilities or entry.exact or entry.newer:
        raise refused(entry, "SkyPilot", "it takes products and memory sizes", hint="name the products that will do")
    if entry.product:
        size = f"-{entry.memory_gb}GB" if entry.product == "A100" and entry.memory_gb == 80 else ""
        return f"{entry.product}{size}:{entry.count}"
    if entry.memory_gb:
        return f"{entry.memory_gb}GB+:{entry.count}"
    raise refused(entry, "SkyPilot", "it takes products and memory sizes", hint="write '16GB+' for any accelerator")
