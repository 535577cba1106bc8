"""Options of Ray's tasks and actors, as `@ray.remote(**options)` takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anyaccel.requests.entry import RequestEntry
from anyaccel.requests.exports.refusal import refused

_TYPES = ("P100", "V100", "T4", "L4", "A10G", "A100", "H100")
"""Products that `ray.util.accelerators` has constants of, which are their names."""


def ray(entries: Sequence[RequestEntry], ordered: bool) -> dict[str, Any]:
    """`num_gpus`, `num_cpus`, `memory` in bytes, and `accelerator_type`.

    Raises:
        ConfigError: several wishes, or one that Ray has no words for.
    """
    entry = entries[0]
    if len(entries) > 1:
        raise refused(entry, "Ray", "it takes one wish", hint="export each wish of its own")
    options: dict[str, Any] = {"num_gpus": 0 if entry.kind == "cpu" else entry.count}
    options |= {"num_cpus": entry.cores} if entry.cores else {}
    options |= {"memory": entry.host_memory_gb * 10**9} if entry.host_memory_gb else {}
    if entry.product:
        options["accelerator_type"] = _accelerator_type(entry)
    elif entry.memory_gb or entry.capabilities or entry.kind not in ("", "gpu", "cuda", "rocm", "cpu"):
        raise refused(entry, "Ray", "it takes products and numbers of GPUs", hint="name a product")
    return options


def _accelerator_type(entry: RequestEntry) -> str:
    if entry.newer or entry.exact or entry.capabilities or entry.memory_gb:
        raise refused(entry, "Ray", "a product is all that it takes", hint=f"write '{entry.product}:{entry.count}'")
    if entry.product not in _TYPES:
        raise refused(entry, "Ray", "it has no such accelerator type", available=", ".join(_TYPES))
    return entry.product
