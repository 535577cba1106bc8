"""Borders: functions that hand a value from one segment to another, chosen before the loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from anyaccel.backend import ComputingBackend
from anyaccel.device import Device
from anyaccel.graph.transfers import route

Carrier = Callable[[Any], Any]


def carrier(source: ComputingBackend, origin: Device, target: ComputingBackend, destination: Device) -> Carrier:
    """A function from a tensor of `source` on `origin` to one of `target` on `destination`.

    The result may be the same memory: a program never writes to its inputs.
    """
    way = route(source, origin, target, destination)
    if way == "move":
        return _kept if origin == destination else partial(_moved, target, destination)
    return partial(_shared, target, destination) if way == "share" else partial(_by_host, source, target, destination)


def _kept(value: Any) -> Any:
    return value


def _moved(backend: ComputingBackend, device: Device, value: Any) -> Any:
    return backend.move(value, device)


def _shared(backend: ComputingBackend, device: Device, value: Any) -> Any:
    # NumPy makes scalars of arrays without axes, and these do not speak DLPack.
    return backend.from_dlpack(np.asarray(value) if isinstance(value, np.generic) else value, device)


def _by_host(source: ComputingBackend, target: ComputingBackend, device: Device, value: Any) -> Any:
    return target.from_host(np.asarray(source.to_host(value)), device)
