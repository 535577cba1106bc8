"""Your own training loops: `Loop` prepares, distributes, gathers, saves and resumes.

`Loop` knows no framework. A backend's capability `OwnLoops` names a subclass of `Loop`, which computes and exchanges
gradients. `anyaccel.prepare` only places, in a single process.
"""

from typing import TYPE_CHECKING

from anyaccel.lazy_attributes import lazy_attributes

if TYPE_CHECKING:
    from anyaccel.phases.loading.device_loader import DeviceLoader as DeviceLoader
    from anyaccel.phases.loading.device_loader import prepare as prepare
    from anyaccel_distributed.own_loop.capability import OwnLoops as OwnLoops
    from anyaccel_distributed.own_loop.loader import LoopLoader as LoopLoader
    from anyaccel_distributed.own_loop.loader import Share as Share
    from anyaccel_distributed.own_loop.loop import Loop as Loop

__all__ = ["DeviceLoader", "Loop", "LoopLoader", "OwnLoops", "Share", "prepare"]

__getattr__, __dir__ = lazy_attributes(
    __name__,
    {
        "DeviceLoader": "anyaccel.phases.loading.device_loader",
        "Loop": ".loop",
        "LoopLoader": ".loader",
        "OwnLoops": ".capability",
        "Share": ".loader",
        "prepare": "anyaccel.phases.loading.device_loader",
    },
)
