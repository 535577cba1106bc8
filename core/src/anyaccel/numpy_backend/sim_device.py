"""Simulated devices: memory that is counted and can run out, and counters of transfers and synchronizations."""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anyaccel import arguments
from anyaccel.adapter.simulated_timing import INTO, OUT, Timing
from anyaccel.adapter.transfer_observer import Observers, TransferEvent, TransferKind
from anyaccel.arguments import shown
from anyaccel.call_hints import call_hints
from anyaccel.device import Device
from anyaccel.errors import ConfigError, MoveError, OutOfMemoryError

SWITCH = "ANYACCEL_SIMULATE"
_MAX_DEVICES = 64
_HOST = Device("cpu")
_WIDE = (np.dtype("float64"), np.dtype("complex128"))
_lock = threading.RLock()  # a finalizer may run while its own thread holds it

observers = Observers()
"""Who is told transfers and waits of simulated devices."""


@dataclass(slots=True)
class Traffic:
    """The number of transfers and of their bytes."""

    number: int = 0
    nbytes: int = 0

    def count(self, nbytes: int) -> None:
        """Count one more transfer."""
        with _lock:  # prefetch threads transfer, too
            self.number += 1
            self.nbytes += nbytes


@dataclass(slots=True)
class Transfers:
    """The transfers of one device: from the host, to the host, and from or to another simulated device."""

    into: Traffic = field(default_factory=Traffic)
    out: Traffic = field(default_factory=Traffic)
    between: Traffic = field(default_factory=Traffic)


class SimDevice:
    """A simulated device with its memory and its counters.

    Attributes:
        device: Its name, `sim:k`.
        capacity: Bytes of its memory; None for no limit.
        float64: Whether it supports float64 (and complex128).
        used: Bytes in use.
        peak: Largest number of bytes in use.
        transfers: Transfers since the last `clear`.
        syncs: Number of times that the host waited for a value since the last `clear`.
        closed: Whether its simulation has ended; arrays left on it can still be read.
        timing: Clocks of its simulated time; None, unless set, for a device that takes no time.
    """

    def __init__(self, index: int, capacity: int | None, float64: bool) -> None:
        self.device = Device("sim", index)
        self.capacity = capacity
        self.float64 = float64
        self.used = 0
        self.peak = 0
        self.transfers = Transfers()
        self.syncs = 0
        self.closed = False
        self.timing: Timing | None = None
        self._held: set[int] = set()

    def __str__(self) -> str:
        return f"{self.device}{' (closed)' if self.closed else ''}"

    def clear(self) -> None:
        """Reset transfers and syncs to zero, and the peak to the current use."""
        self.transfers, self.syncs, self.peak = Transfers(), 0, self.used

    def waited(self, name: str = "synchronize") -> None:
        """Count a synchronization that moves nothing."""
        self.syncs += 1
        if self.timing is not None:
            self.timing.wait(self.timing.elapsed())
        self._tell("wait", self.device, _HOST, name, 0)

    def uploaded(self, nbytes: int, *, waits: bool = True) -> None:
        """Count a transfer from the host."""
        self.transfers.into.count(nbytes)
        if self.timing is not None:
            self.timing.copy(INTO, nbytes, waits=waits)
        self._tell("host to device", _HOST, self.device, "copy", nbytes, waits)

    def downloaded(self, nbytes: int) -> None:
        """Count a transfer to the host, which is a synchronization."""
        self.transfers.out.count(nbytes)
        if self.timing is not None:
            self.timing.copy(OUT, nbytes, waits=True)
        self.syncs += 1
        self._tell("device to host", self.device, _HOST, "copy", nbytes)

    def received(self, source: SimDevice, nbytes: int) -> None:
        """Count a transfer from another simulated device, on both devices."""
        for end in (source, self):
            end.transfers.between.count(nbytes)
        if self.timing is not None and source.timing is not None:
            self.timing.copy_from(source.timing, nbytes)
        self._tell("device to device", source.device, self.device, "copy", nbytes, waits=False)

    def _tell(
        self, kind: TransferKind, source: Device, target: Device, name: str, nbytes: int, waits: bool = True
    ) -> None:
        if observers and _counting.get() is None:
            observers.tell(
                TransferEvent(kind=kind, source=source, target=target, operation=name, nbytes=nbytes, waits=waits)
            )

    def check(self, dtype: np.dtype[Any]) -> None:
        """Check that the device supports a dtype.

        Raises:
            MoveError: the dtype is not supported.
        """
        if not self.float64 and dtype in _WIDE:
            raise MoveError(
                f"{self} cannot hold {dtype}: it was simulated with float64=False",
                hint="cast to float32 or complex64 first",
            )

    def hold(self, array: np.ndarray[Any, Any]) -> None:
        """Count the memory of an array until it is freed; views of counted memory cost nothing.

        Raises:
            MoveError: the device does not support its dtype.
            OutOfMemoryError: it does not fit.
        """
        self.check(array.dtype)
        memory = array
        while isinstance(memory.base, np.ndarray):
            memory = memory.base
        with _lock:
            if id(memory) in self._held:
                return
            nbytes = memory.nbytes
            if self.capacity is not None and self.used + nbytes > self.capacity:
                raise OutOfMemoryError(
                    f"not enough memory for {nbytes} bytes on {self}",
                    cause=f"{self.capacity - self.used} bytes free of {self.capacity}",
                    hint="free arrays, use smaller batches, or simulate more capacity",
                )
            self.used += nbytes
            self.peak = max(self.peak, self.used)
            self._held.add(id(memory))
            weakref.finalize(memory, self._free, id(memory), memory.nbytes).atexit = False

    def _free(self, key: int, nbytes: int) -> None:
        with _lock:
            self._held.discard(key)
            self.used -= nbytes


class Simulation(Sequence[SimDevice]):
    """The simulated devices of one `simulate` call, by index. Used as a context manager, it closes at the end."""

    def __init__(self, devices: Sequence[SimDevice]) -> None:
        self._devices = tuple(devices)

    def __getitem__(self, index: Any) -> Any:
        return self._devices[index]

    def __len__(self) -> int:
        return len(self._devices)

    def __enter__(self) -> Simulation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the devices and restore those of an earlier `simulate`. A second call changes nothing."""
        with _lock:
            for device in self._devices:
                device.closed = True
            if self in _running:
                _running.remove(self)


_running: list[Simulation] = []


@call_hints
def simulate(count: int = 2, *, capacity: int | None = None, float64: bool = True) -> Simulation:
    """Create the simulated devices `sim:0` to `sim:count-1`, which replace earlier ones.

    They compute with NumPy on the host, behave like devices with separate memory, and count transfers and
    synchronizations. Use the result as a context manager, or call its `close`. Set the environment variable
    ANYACCEL_SIMULATE to a number to create that many devices without a call.

    Args:
        count: Number of devices, at most 64.
        capacity: Bytes of memory of each; None for no limit.
        float64: Whether they support float64.

    Returns:
        A sequence of `SimDevice`.

    Raises:
        ConfigError: a count or capacity that is not a positive int.

    Example:
        >>> import anyaccel as aa, numpy as np
        >>> with aa.simulate(2) as devices:
        ...     array = aa.move(np.zeros(4, "float32"), "sim:1")
        ...     print(aa.device_of(array), devices[1].used)
        sim:1 16
    """
    if not _is_count(count) or count > _MAX_DEVICES:
        available, hint = f"1 to {_MAX_DEVICES}", "write simulate(2)"
        raise ConfigError(f"simulate({shown(count)}) is not a number of devices", available=available, hint=hint)
    if capacity is not None and not _is_count(capacity):
        problem = f"simulate(capacity={shown(capacity)}) is not a positive number of bytes"
        raise ConfigError(problem, hint="pass an int")
    arguments.flag(ConfigError, "simulate: ", "float64", float64)
    simulation = Simulation([SimDevice(index, capacity, float64) for index in range(count)])
    with _lock:
        _running.append(simulation)
    return simulation


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


_counting: ContextVar[Sequence[SimDevice] | None] = ContextVar("anyaccel.numpy_backend.counting", default=None)


@contextmanager
def counting(devices: Sequence[SimDevice]) -> Iterator[None]:
    """Replace all simulated devices by these inside the context, in this thread only, to count what a step
    allocates.
    """
    token = _counting.set(devices)
    try:
        yield
    finally:
        _counting.reset(token)


def running() -> Sequence[SimDevice]:
    """Return the current simulated devices; the first call creates those of the environment variable."""
    here = _counting.get()
    if here is not None:
        return here
    with _lock:
        return _running[-1] if _running else _from_environment(os.environ.get(SWITCH, ""))


@functools.cache
def _from_environment(text: str) -> Sequence[SimDevice]:
    wrong = _not_a_count(text)
    if wrong:
        raise ConfigError(f"the environment variable {wrong}", hint=f"set {SWITCH}=2, or unset it")
    return [SimDevice(index, None, True) for index in range(int(text or 0))]


def _not_a_count(text: str) -> str:
    """Return the error in the text of the environment variable, or `""`."""
    valid = not text or (text.isdecimal() and len(text) < 9 and int(text) <= _MAX_DEVICES)
    return "" if valid else f"{SWITCH}={shown(text)} is not a count from 0 to {_MAX_DEVICES}"


def missing(device: Device) -> str:
    """Return why this simulated device does not exist."""
    wrong, count = _not_a_count(os.environ.get(SWITCH, "")), len(running())
    if wrong and not count:
        return wrong
    made = f"{count} simulated device{'s were' if count > 1 else ' was'} made" if count else "none exists"
    return f"{made}; use anyaccel.simulate({device.index + 1}) or {SWITCH}={device.index + 1} to create it"
