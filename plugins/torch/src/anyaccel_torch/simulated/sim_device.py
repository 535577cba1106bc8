"""Handles of the simulated devices: memory in use, transfers, and waits of the host. Does not import torch."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

from anyaccel.adapter.simulated_timing import Timing
from anyaccel.adapter.transfer_observer import Observers, TransferEvent
from anyaccel.device import Device
from anyaccel.errors import ConfigError
from anyaccel.numpy_backend.sim_device import Transfers

SWITCH = "ANYACCEL_TORCH_SIMULATE"
KIND = "sim"
_MAX_DEVICES = 64
_lock = threading.RLock()  # memory is freed wherever Python frees an object, also by a thread that holds this
_running: list[SimulatedDevice] = []

observers = Observers()
"""Who is told transfers and waits of simulated devices."""


class SimulatedDevice:
    """The handle of a simulated device.

    Attributes:
        device: `sim:k`.
        capacity: Bytes that it can hold, None for no limit; may be changed at any time.
        used: Bytes in use.
        peak: Largest number of bytes in use since the last `clear`.
        transfers: Transfers from the host, to the host, and from or to another simulated device, since the last
            `clear`.
        syncs: Number of times that the host waited for a value, since the last `clear`.
        flushes: Number of requests to release the allocator's cache, since the last `clear`.
        timing: Clocks of its simulated time; None, unless set, for a device that takes no time.
    """

    def __init__(self, index: int, capacity: int | None) -> None:
        self.device = Device(KIND, index)
        self.capacity = capacity
        self.used = 0
        self.peak = 0
        self.timing: Timing | None = None
        self.clear()

    def __str__(self) -> str:
        return str(self.device)

    def clear(self) -> None:
        """Set transfers and syncs to zero, and the peak to the bytes in use."""
        self.transfers, self.syncs, self.flushes, self.peak = Transfers(), 0, 0, self.used

    def count_sync(self, name: str = "synchronize") -> None:
        """Count a wait of the host that moves nothing."""
        self.syncs += 1
        if observers:
            host = Device("cpu")
            wait = TransferEvent(kind="wait", source=self.device, target=host, operation=name, waits=True)
            observers.tell(wait)

    def reserve(self, nbytes: int) -> str:
        """Count allocated memory and return `""`; or return why it does not fit, and count nothing."""
        with _lock:
            if self.capacity is not None and self.used + nbytes > self.capacity:
                free = max(self.capacity - self.used, 0)
                return (
                    f"simulated device out of memory. Tried to allocate {nbytes} bytes. {self} has a capacity of "
                    f"{self.capacity} bytes ({free} free)"
                )
            self.used += nbytes
            self.peak = max(self.peak, self.used)
            return ""

    def free(self, nbytes: int) -> None:
        """Count freed memory."""
        with _lock:
            self.used -= nbytes


def create(count: int, capacity: int | None) -> Sequence[SimulatedDevice]:
    """Return the devices; create them if they do not exist.

    Raises:
        ConfigError: a number that is not a positive int, or other devices exist.
    """
    if not _is_positive_int(count) or count > _MAX_DEVICES:
        raise ConfigError(
            f"start({count!r}): count must be an int from 1 to {_MAX_DEVICES}", hint="start(2) is enough for most tests"
        )
    if capacity is not None and not _is_positive_int(capacity):
        raise ConfigError(
            f"start(capacity={capacity!r}): capacity must be a positive number of bytes", hint="pass an int"
        )
    with _lock:
        existing = running()
        if not existing:
            _running.extend(SimulatedDevice(index, capacity) for index in range(count))
        elif len(existing) != count or any(handle.capacity != capacity for handle in existing):
            raise ConfigError(
                f"start({count}, capacity={capacity}): this process has other simulated devices, which torch keeps",
                available=", ".join(f"{handle} ({_limit(handle)})" for handle in existing),
                hint="use these, or start others in another process; change the capacity on the handle of a device",
            )
        return tuple(_running)


def _limit(handle: SimulatedDevice) -> str:
    return "no limit" if handle.capacity is None else f"{handle.capacity} bytes"


def running() -> Sequence[SimulatedDevice]:
    """Return the simulated devices of this process; creates those that the environment variable asks for."""
    with _lock:
        text = os.environ.get(SWITCH, "")
        if not _running and text and not (text.isdecimal() and int(text) <= _MAX_DEVICES):
            problem = f"the environment variable {SWITCH}={text!r} is not a count from 0 to {_MAX_DEVICES}"
            raise ConfigError(problem, hint=f"set {SWITCH}=2, or unset it")
        if not _running and text:
            _running.extend(SimulatedDevice(index, None) for index in range(int(text)))
        return tuple(_running)


def is_wanted() -> bool:
    """Whether there are simulated devices, or the environment variable is set, even to nonsense."""
    return bool(_running or os.environ.get(SWITCH))


def unavailable_reason(device: Device) -> str:
    """Why a simulated device is not available."""
    text, count = os.environ.get(SWITCH, ""), len(running())
    if not count and text and text != "0":
        return f"{SWITCH}={text!r} is not a count"
    started = f"{count} simulated device{'s were' if count > 1 else ' was'} started" if count else "none was started"
    return f"{started}; set {SWITCH}={device.index + 1} before Python starts"


def _is_positive_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
