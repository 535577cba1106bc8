"""How a value gets from one backend's device to another's."""

from __future__ import annotations

from typing import Literal

from anyaccel.backend import Backend
from anyaccel.device import Device

Route = Literal["move", "share", "copy", "host"]
"""`move` is within one framework, `share` hands over memory that both can use, `copy` is the same with a copy on the
device for a node that may write to it, and `host` goes through host memory."""


def route(source: Backend, origin: Device, target: Backend, destination: Device) -> Route:
    """The cheapest way for a value that nobody writes to."""
    if source.framework == target.framework:
        return "move"
    space = source.device_info(origin).memory_space
    return "share" if space and space == target.device_info(destination).memory_space else "host"
