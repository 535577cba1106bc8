"""Transfers: functions that copy a value from one segment's framework and device to another's, chosen beforehand."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from anyaccel.backend import ComputingBackend
from anyaccel.device import Device
from anyaccel.graph.transfers import route

Transfer = Callable[[Any], Any]


def transfer(source: ComputingBackend, origin: Device, target: ComputingBackend, destination: Device) -> Transfer:
    """A function from a tensor of `source` on `origin` to one of `target` on `destination`.

    The result may share memory with its argument: a program never writes to its inputs.
    """
    kind = route(source, origin, target, destination)
    if kind == "move":
        return _identity if origin == destination else partial(_move, target, destination)
    return (
        partial(_share, target, destination) if kind == "share" else partial(_through_host, source, target, destination)
    )


def _identity(value: Any) -> Any:
    return value


def _move(backend: ComputingBackend, device: Device, value: Any) -> Any:
    return backend.move(value, device)


def _share(backend: ComputingBackend, device: Device, value: Any) -> Any:
    # NumPy turns arrays without axes into scalars, which do not support DLPack.
    return backend.from_dlpack(np.asarray(value) if isinstance(value, np.generic) else value, device)


def _through_host(source: ComputingBackend, target: ComputingBackend, device: Device, value: Any) -> Any:
    return target.from_host(np.asarray(source.to_host(value)), device)
