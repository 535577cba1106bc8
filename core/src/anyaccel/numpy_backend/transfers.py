"""Arrays from one place to another, and rows of columns."""

from __future__ import annotations

from threading import Lock
from typing import Any

import numpy as np

from anyaccel.backend import AsyncCopy
from anyaccel.device import Device
from anyaccel.errors import MoveError
from anyaccel.numpy_backend.array_creation import handle
from anyaccel.numpy_backend.sim_array import Array, SimArray, across, bare, download, upload

_GARBAGE = 0xA5  # every byte of an array that has not arrived; no number that anybody computes with


def moved(tensor: Any, device: Device) -> Any:
    """The same values on `device`; the same object if it is there. Moves to and between simulated devices count.

    Raises:
        MoveError: not an array of numbers, or a dtype that the device cannot hold.
        OutOfMemoryError: no room.
        DeviceUnavailableError: the device is not here.
    """
    if not isinstance(tensor, (np.ndarray, np.generic)):
        raise MoveError(
            f"a {type(tensor).__name__} is not a tensor of numpy", hint="use anyaccel.place for an object with state"
        )
    on = handle(device)
    if isinstance(tensor, SimArray):
        if on is None:
            return download(tensor)
        return tensor if tensor.on is on else across(tensor, on)
    return tensor if on is None else uploaded(np.asarray(tensor), device)


def uploaded(array: Array, device: Device) -> Array:
    """A copy of a plain array on a device, the CPU too. Raises as `moved`."""
    plain, on = _numbers(array), handle(device)
    return plain.copy() if on is None else upload(plain, on)


def taken(array: Array, device: Device) -> Array:
    """An array that is given away: on the CPU itself, elsewhere a copy. Raises as `moved`."""
    return _numbers(array) if handle(device) is None else uploaded(array, device)


def sent(array: Array, device: Device) -> AsyncCopy:
    """A copy of a plain array that is made as late as a device may make it: when it has arrived, or was read.

    So whoever uses it before, or writes to the array before, computes with wrong numbers here, as on real devices.
    Raises as `moved`.
    """
    on = handle(device)
    if on is None:
        return AsyncCopy(uploaded(array, device))
    garbage = np.empty_like(_numbers(array), order="C", subok=False)
    garbage.reshape(-1).view(np.uint8)[:] = _GARBAGE
    flight = _Flight(array, upload(garbage, on))
    return AsyncCopy(flight.tensor, flight.land, flight.land)


class _Flight:
    """A copy on its way."""

    def __init__(self, array: Array, tensor: SimArray) -> None:
        self.tensor = tensor
        self._array: Array | None = array
        self._lock = Lock()

    def land(self) -> None:
        with self._lock:
            if self._array is not None:
                np.copyto(bare(self.tensor), self._array)
                self._array = None


def _numbers(array: Array) -> Array:
    plain = np.asarray(array)
    if plain.dtype.kind not in "biufc":
        raise MoveError(f"an array of {plain.dtype} holds no numbers", hint="encode it as numbers first")
    return plain


def adopted(foreign: Any, device: Device) -> Array:
    """Another framework's tensor by DLPack: read-only and without a copy on the CPU, a copy on a simulated device.

    Raises:
        MoveError: it cannot be taken over; carries the words of who refused.
    """
    if not hasattr(foreign, "__dlpack__"):
        raise MoveError(
            f"a {type(foreign).__name__} cannot be adopted: it has no __dlpack__", hint="give a tensor or an array"
        )
    try:
        shared = np.from_dlpack(foreign)
    except Exception as error:  # each framework refuses with exceptions of its own
        raise MoveError(
            f"a {type(foreign).__module__}.{type(foreign).__name__} cannot be adopted: {error}",
            available="numpy takes tensors in host memory without a gradient, in dtypes that it has",
            hint="detach it, move it to the CPU, or cast it (bfloat16 to float32)",
        ) from error
    if handle(device) is not None:
        return uploaded(shared, device)
    shared.flags.writeable = False
    return shared


def rows(column: Array, start: int, stop: int, order: Array | None) -> Array:
    """`column[start:stop]`, or `column[order[start:stop]]`, where the column is."""
    return column[start:stop] if order is None else column[order[start:stop]]
