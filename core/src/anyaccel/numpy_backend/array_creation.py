"""New arrays on the device of the current scope."""

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
    """Return the simulated device with that name; None for the CPU.

    Raises:
        DeviceUnavailableError: the simulated device does not exist.
    """
    if device == HOST:
        return None
    for simulated in running():
        if simulated.device == device:
            return simulated
    is_sim = device.kind == "sim"
    raise DeviceUnavailableError(
        f"numpy has no {device}{f': {missing(device)}' if is_sim else ''}",
        available=", ".join(map(str, [HOST, *(simulated.device for simulated in running())])),
        hint="use one of these"
        if device.kind != "sim"
        else f"call anyaccel.simulate({device.index + 1}), or use one of these",
    )


@contextmanager
def scoped(device: Device) -> Iterator[None]:
    """Let `array` and `zeros` create arrays on `device` inside this context, in this thread or task.

    Raises:
        DeviceUnavailableError: the device does not exist.
    """
    handle(device)
    token = _scope.set(device)
    try:
        yield
    finally:
        _scope.reset(token)


def array(values: Any, dtype: Any = None) -> Array:
    """Return an array of these values on the device of the current scope; outside of one, on the CPU.

    Args:
        values: Numbers, nested lists of them, or a plain array; always copied.
        dtype: Inferred by NumPy if left out.

    Raises:
        MoveError: the device cannot hold the dtype.
        OutOfMemoryError: no room.
    """
    on = handle(_scope.get())
    plain = np.array(values, dtype)
    return plain if on is None else upload(plain, on)


def zeros(shape: int | tuple[int, ...], dtype: Any = "float32") -> Array:
    """Return zeros on the device of the current scope; without a scope, on the CPU. Raises the errors of `array`."""
    on = handle(_scope.get())
    plain = np.zeros(shape, dtype)
    return plain if on is None else put(plain, on)
