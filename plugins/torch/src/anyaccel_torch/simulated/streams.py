"""Streams and events of simulated devices, which order work in simulated time; real work is done at once.

Devices without a `timing` have them too; there they do nothing.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from anyaccel.adapter.simulated_timing import current_stream, set_stream
from anyaccel_torch.simulated.memory_ledger import handle_of, parse_device
from anyaccel_torch.simulated.sim_device import KIND, SimulatedDevice

_numbers = itertools.count(1)
_pinned: set[int] = set()


class SimStream:
    """A stream with the interface of `torch.cuda.Stream`."""

    def __init__(self, device: Any = None, *, number: int | None = None) -> None:
        self.device = parse_device(device or KIND)
        self.number = next(_numbers) if number is None else number

    @property
    def handle(self) -> SimulatedDevice:
        """The handle of its device."""
        return handle_of(self.device)

    def record_event(self) -> SimEvent:
        """Return an event after the current work of the stream."""
        event = SimEvent()
        event.record(self)
        return event

    def wait_event(self, event: SimEvent) -> None:
        """Start later work of the stream after the event."""
        if self.handle.timing is not None:
            self.handle.timing.delay(self.number, event.time)

    def synchronize(self) -> None:
        """Let the host wait for the work of the stream."""
        self.record_event().synchronize()


class SimEvent:
    """An event with the interface of `torch.cuda.Event`."""

    def __init__(self) -> None:
        self.time, self._handle = 0.0, None

    _handle: SimulatedDevice | None

    def record(self, stream: SimStream) -> None:
        """Record the event in a stream, as in torch."""
        self._handle = stream.handle
        self.time = 0.0 if self._handle.timing is None else self._handle.timing.end_of(stream.number)

    def synchronize(self) -> None:
        """The host waits; counted as a wait."""
        if self._handle is not None:
            self._handle.count_sync()
            if self._handle.timing is not None:
                self._handle.timing.wait(self.time)

    def query(self) -> bool:
        """Whether the host has waited as long."""
        return self._handle is None or self._handle.timing is None or self._handle.timing.reached(self.time)


def stream_key(handle: SimulatedDevice) -> Any:
    """Return the key of a device's current stream."""
    return handle.timing


def current(device: Any = None) -> SimStream:
    """Return the current stream, like `torch.cuda.current_stream`."""
    target = parse_device(device or KIND)
    return SimStream(target, number=current_stream(stream_key(handle_of(target))))


@contextmanager
def stream(entered: SimStream) -> Iterator[None]:
    """Use a stream for the work of this thread inside the context, like `torch.cuda.stream`."""
    key = stream_key(entered.handle)
    before = current_stream(key)
    set_stream(key, entered.number)
    try:
        yield
    finally:
        set_stream(key, before)


def pinned_empty(nbytes: int) -> Tensor:
    """Allocate host memory that counts as page-locked."""
    made = torch.empty(nbytes, dtype=torch.uint8)
    storage = made.untyped_storage()
    _pinned.add(storage.data_ptr())
    weakref.finalize(storage, _pinned.discard, storage.data_ptr()).atexit = False
    return made


def is_pinned(tensor: Tensor) -> bool:
    """Whether host memory counts as page-locked."""
    return bool(_pinned) and tensor.device.type == "cpu" and tensor.untyped_storage().data_ptr() in _pinned
