"""Loops of the user's own: what `Loop` prepares, shares, gathers, saves and goes on with.

`Loop` knows no framework. A backend's capability `OwnLoops` names the class derived from it, which has what differs:
how gradients are computed and exchanged.
"""

from typing import TYPE_CHECKING

from anyaccel.lazy_attributes import lazy_attributes

if TYPE_CHECKING:
    from anyaccel.own_loop.capability import OwnLoops as OwnLoops
    from anyaccel.own_loop.loader import LoopLoader as LoopLoader
    from anyaccel.own_loop.loader import Share as Share
    from anyaccel.own_loop.loop import Loop as Loop

__all__ = ["Loop", "LoopLoader", "OwnLoops", "Share"]

__getattr__, __dir__ = lazy_attributes(
    __name__, {"Loop": ".loop", "LoopLoader": ".loader", "OwnLoops": ".capability", "Share": ".loader"}
)
