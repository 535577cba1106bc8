"""What placement asks of modules before they are moved: whether they are offloaded. Does not import torch."""

from __future__ import annotations

import sys
from typing import Any

from anyaccel.device import Device
from anyaccel.errors import CapabilityError


def find_offload(obj: Any) -> Any:
    """How a module is offloaded; None if it is not, or for another object."""
    offload = sys.modules.get("anyaccel_torch.big_models.offload")
    return offload.offload_of(obj) if offload is not None and hasattr(obj, "modules") else None


def stays(obj: Any, target: Any) -> bool:
    """Whether an object stays where it is, as an offloaded module does; Keras variables of others are moved here.

    Raises:
        CapabilityError: an offloaded module computes on other devices.
    """
    if not hasattr(obj, "modules"):
        return False
    offload = find_offload(obj)
    if offload is None:
        from anyaccel_torch.module_state import move_keras_variables

        move_keras_variables(obj, target)
        return False
    if all(block.device != target for block in offload.blocks):
        there = str(Device.parse(offload.device))
        raise CapabilityError(
            f"this {type(obj).__name__} is offloaded and computes on {there}, not on {target}",
            hint=f"use this accelerator: Accelerator({there!r}), or call remove_offload(model)",
        )
    return True
