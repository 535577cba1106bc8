"""Moving arrays between devices, and gathering rows."""

from __future__ import annotations

from threading import Lock
from typing import Any

import numpy as np

from anyaccel.adapter.out_of_memory import out_of_memory
from anyaccel.backend import AsyncCopy
from anyaccel.device import Device
from anyaccel.errors import MoveError
from anyaccel.numpy_backend.array_creation import handle
from anyaccel.numpy_backend.sim_array import Array, SimArray, bare, copy_between, download, upload

_GARBAGE = 0xA5  # every byte of an array that has not arrived, so that computing with it shows


def moved(tensor: Any, device: Device) -> Any:
    """Return the same values on `device`; the same object if it is on that device already. Simulated devices count the
    transfer.

    Raises:
        MoveError: not an array of numbers, or a dtype that the device does not support.
        OutOfMemoryError: the device is full.
        DeviceUnavailableError: the device does not exist.
    """
    if not isinstance(tensor, (np.ndarray, np.generic)):
        raise MoveError(
            f"a {type(tensor).__name__} is not a NumPy array", hint="use anyaccel.place for an object with state"
        )
    on = handle(device)
    if isinstance(tensor, SimArray):
        if on is None:
            return download(tensor)
        return tensor if tensor.on is on else copy_between(tensor, on)
    return tensor if on is None else from_host(np.asarray(tensor), device)


def from_host(array: Array, device: Device) -> Array:
    """Return a copy of a plain array on a device, the CPU too. Raises as `moved`."""
    plain, on = _as_numbers(array), handle(device)
    if on is not None:
        return upload(plain, on)
    try:
        return plain.copy()
    except MemoryError as error:
        raise out_of_memory(f"an array of {plain.nbytes} bytes on {device}", str(error)) from None


def from_host_owned(array: Array, device: Device) -> Array:
    """Return an array whose owner gives it up: itself on the CPU, elsewhere a copy. Raises as `moved`."""
    return _as_numbers(array) if handle(device) is None else from_host(array, device)


def copy_async(array: Array, device: Device) -> AsyncCopy:
    """Return a copy of a plain array that is made as late as possible: when somebody waits for it.

    Using it before, or writing to the array before, gives wrong numbers, as on real devices. Raises as `moved`.
    """
    on = handle(device)
    if on is None:
        return AsyncCopy(from_host(array, device))
    garbage = np.empty_like(_as_numbers(array), order="C", subok=False)
    garbage.reshape(-1).view(np.uint8)[:] = _GARBAGE
    tensor, pending, lock = upload(garbage, on, waits=False), [array], Lock()

    def finish() -> None:
        with lock:
            if pending:
                np.copyto(bare(tensor), pending[0])
                pending.clear()

    return AsyncCopy(tensor, finish, finish)


def _as_numbers(array: Array) -> Array:
    plain = np.asarray(array)
    if plain.dtype.kind not in "biufc":
        raise MoveError(f"an array of {plain.dtype} does not contain numbers", hint="encode it as numbers first")
    return plain


def from_dlpack(foreign: Any, device: Device) -> Array:
    """Import another framework's tensor by DLPack: read-only and without a copy on the CPU, a copy on a simulated
    device.

    Raises:
        MoveError: it cannot be exported or imported; has the original message.
    """
    if not hasattr(foreign, "__dlpack__"):
        raise MoveError(
            f"a {type(foreign).__name__} cannot be imported by DLPack: it has no __dlpack__",
            hint="pass a tensor or an array",
        )
    try:
        shared = np.from_dlpack(foreign)
    except Exception as error:  # each framework refuses with exceptions of its own
        raise MoveError(
            f"a {type(foreign).__module__}.{type(foreign).__name__} cannot be imported by DLPack: {error}",
            available="tensors in host memory, without a gradient, in dtypes of NumPy",
            hint="detach it, move it to the CPU, or cast it (bfloat16 to float32)",
        ) from error
    if handle(device) is not None:
        return from_host(shared, device)
    shared.flags.writeable = False
    return shared


def gather_rows(column: Array, start: int, stop: int, order: Array | None) -> Array:
    """Return `column[start:stop]`, or `column[order[start:stop]]`, on the device of the column."""
    return column[start:stop] if order is None else column[order[start:stop]]
