"""New arrays where the scope says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from anyaccel.device import Device
from anyaccel.errors import DeviceUnavailableError
from anyaccel.numpy_backend.sim_array import HOST, Array, put, upload
from anyaccel.numpy_backend.sim_device import SimDevice, missing, running

_scope: ContextVar[Device] = ContextVar("anyaccel.numpy_backend.scope", default=HOST)


def handle(device: Device) -> SimDevice | None:
    """The simulated device of that name; None for the CPU.

    Raises:
        DeviceUnavailableError: it is neither.
    """
    if device == HOST:
        return None
    for simulated in running():
        if simulated.device == device:
            return simulated
    reason = f" ({missing(device)})" if device.kind == "sim" else ""
    raise DeviceUnavailableError(
        f"{device} is not here for numpy{reason}",
        available=", ".join(map(str, [HOST, *(simulated.device for simulated in running())])),
        hint="use one of these" if device.kind != "sim" else "simulate more devices, or use one of these",
    )


@contextmanager
def scoped(device: Device) -> Iterator[None]:
    """`array` and `zeros` make arrays on `device` inside, in this thread or task.

    Raises:
        DeviceUnavailableError: it is not here.
    """
    handle(device)
    token = _scope.set(device)
    try:
        yield
    finally:
        _scope.reset(token)


def array(values: Any, dtype: Any = None) -> Array:
    """An array of these values on the device of the scope, the CPU outside of one.

    Args:
        values: numbers, nested lists of them, or a plain array; always copied.
        dtype: by NumPy's rules where it is left out.

    Raises:
        MoveError: the device cannot hold the dtype.
        OutOfMemoryError: no room.
    """
    on = handle(_scope.get())
    plain = np.array(values, dtype)
    return plain if on is None else upload(plain, on)


def zeros(shape: int | tuple[int, ...], dtype: Any = "float32") -> Array:
    """Zeros on the device of the scope, the CPU outside of one. Raises as `array`."""
    on = handle(_scope.get())
    plain = np.zeros(shape, dtype)
    return plain if on is None else put(plain, on)
