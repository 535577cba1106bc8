"""PyTorch on Apple's GPU (`mps`): offers `MpsBackend`, which stands on `anyaccel_torch`.

Importing this package does not import torch; `MpsBackend` is imported when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from anyaccel.hookspecs import hookimpl
from anyaccel.lazy_attributes import lazy_attributes

if TYPE_CHECKING:
    from anyaccel_mps.backend import MpsBackend as MpsBackend

__all__ = ["MpsBackend", "backends", "phase_end"]

contract = 2
"""The version of the contract of backends that this plugin is written for."""


@hookimpl
def backends() -> list[Any]:
    """Return the backend of this plugin; it imports torch at its first use."""
    from anyaccel_mps.backend import MpsBackend

    return [MpsBackend()]


@hookimpl
def phase_end(plan: Any) -> None:
    """Return the memory that torch caches on the Apple GPU to the system, after a phase that used it."""
    for node in () if plan is None else plan.assignments:
        if node.framework == "torch" and node.device.kind == "mps":
            import torch

            torch.mps.empty_cache()
            return


__getattr__, __dir__ = lazy_attributes(__name__, {"MpsBackend": ".backend"})
