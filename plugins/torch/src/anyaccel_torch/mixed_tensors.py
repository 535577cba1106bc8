"""Where an operation of torch over several devices failed. Does not import torch."""

from __future__ import annotations

from typing import Any

from anyaccel.transfer_ledger import MixedTensors
from anyaccel.transfer_ledger import mixed_tensors as read_mixed_tensors


def mixed_tensors(error: BaseException) -> MixedTensors:
    """The line of the user's code that raised an error, the tensors in it with their devices, and the node."""
    return read_mixed_tensors(error, _device_of, ("torch", "keras"))


def _device_of(value: Any) -> str | None:
    return str(value.device) if hasattr(value, "is_leaf") and hasattr(value, "device") else None
