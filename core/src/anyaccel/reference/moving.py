"""Arrays from one place to another, and rows of columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from anyaccel.device import Device
from anyaccel.errors import MoveError
from anyaccel.reference.arrays import Array, SimArray, across, download, upload
from anyaccel.reference.creation import handle


def moved(tensor: Any, device: Device) -> Any:
    """The same values on `device`; the same object if it is there. Moves to and between simulated devices count.

    Raises:
        MoveError: not an array of numbers, or a dtype that the device cannot hold.
        OutOfMemoryError: no room.
        DeviceUnavailableError: the device is not here.
    """
    if not isinstance(tensor, (np.ndarray, np.generic)):
        raise MoveError(
            f"a {type(tensor).__name__} is not a tensor of numpy", remedy="use anyaccel.place for an object with state"
        )
    on = handle(device)
    if isinstance(tensor, SimArray):
        if on is None:
            return download(tensor)
        return tensor if tensor.on is on else across(tensor, on)
    return tensor if on is None else uploaded(np.asarray(tensor), device)


def uploaded(array: Array, device: Device) -> Array:
    """A copy of a plain array on a device, the CPU too. Raises as `moved`."""
    plain, on = np.asarray(array), handle(device)
    if plain.dtype.kind not in "biufc":
        raise MoveError(f"an array of {plain.dtype} holds no numbers", remedy="encode it as numbers first")
    return plain.copy() if on is None else upload(plain, on)


def adopted(foreign: Any, device: Device) -> Array:
    """Another framework's tensor by DLPack: read-only and without a copy on the CPU, a copy on a simulated device.

    Raises:
        MoveError: it cannot be taken over; carries the words of who refused.
    """
    if not hasattr(foreign, "__dlpack__"):
        raise MoveError(
            f"a {type(foreign).__name__} cannot be adopted: it has no __dlpack__", remedy="give a tensor or an array"
        )
    try:
        shared = np.from_dlpack(foreign)
    except Exception as error:  # each framework refuses with exceptions of its own
        raise MoveError(
            f"a {type(foreign).__module__}.{type(foreign).__name__} cannot be adopted: {error}",
            there="numpy takes tensors in host memory without a gradient, in dtypes that it has",
            remedy="detach it, move it to the CPU, or cast it (bfloat16 to float32)",
        ) from error
    if handle(device) is not None:
        return uploaded(shared, device)
    shared.flags.writeable = False
    return shared


def rows(column: Array, start: int, stop: int, order: Array | None) -> Array:
    """`column[start:stop]`, or `column[order[start:stop]]`, where the column is."""
    return column[start:stop] if order is None else column[order[start:stop]]
