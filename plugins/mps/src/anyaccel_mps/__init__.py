"""torch for anyaccel on Apple's GPU (`mps`).

Importing this package does not import torch; `MpsBackend` is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from anyaccel.device import Device
from anyaccel.hookspecs import hookimpl

if TYPE_CHECKING:
    from anyaccel_mps.backend import MpsBackend as MpsBackend

__all__ = ["MpsBackend", "backends", "phase_end"]


@hookimpl
def backends() -> list[Any]:
    """The one backend of this plugin; torch is imported when it is first asked for something."""
    from anyaccel_mps.backend import MpsBackend

    return [MpsBackend()]


@hookimpl
def phase_end(plan: Any) -> None:
    """Gives what torch only caches on the Apple GPU back to the system, after a phase that computed there."""
    if plan is None or not any(one.framework == "torch" and one.device.kind == "mps" for one in plan.assignments):
        return
    from anyaccel_mps.backend import MpsBackend

    MpsBackend().release_memory(Device("mps"))


def __getattr__(name: str) -> Any:
    if name != "MpsBackend":
        raise AttributeError(f"module 'anyaccel_mps' has no attribute {name!r}")
    from anyaccel_mps.backend import MpsBackend

    globals()[name] = MpsBackend
    return MpsBackend


def __dir__() -> list[str]:
    return sorted(__all__)
