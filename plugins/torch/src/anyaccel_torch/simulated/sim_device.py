"""The simulated devices themselves: what they hold, what has crossed, and how often the host waited. Without torch."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

from anyaccel.device import Device
from anyaccel.errors import ConfigError
from anyaccel.numpy_backend.sim_device import Transfers

SWITCH = "ANYACCEL_TORCH_SIMULATE"
KIND = "sim"
_MOST = 64
_lock = threading.RLock()  # memory is freed wherever Python frees an object, also by a thread that holds this
_running: list[SimulatedDevice] = []


class SimulatedDevice:
    """A simulated device, as a handle: what it holds, and what has crossed.

    Attributes:
        device: its name, `sim:k`.
        capacity: bytes that it can hold, None for no limit; may be changed at any time.
        used: bytes it holds now.
        peak: the most it held at once since the last `clear`.
        transfers: from the host, to the host, and from or to another simulated device, since the last `clear`.
        syncs: how often the host waited for a value, since the last `clear`.
    """

    def __init__(self, index: int, capacity: int | None) -> None:
        self.device = Device(KIND, index)
        self.capacity = capacity
        self.used = 0
        self.peak = 0
        self.clear()

    def __str__(self) -> str:
        return str(self.device)

    def clear(self) -> None:
        """Set transfers and syncs to zero, and the peak to what is used now."""
        self.transfers, self.syncs, self.peak = Transfers(), 0, self.used

    def waited(self) -> None:
        """Count a wait of the host."""
        self.syncs += 1

    def reserve(self, nbytes: int) -> str:
        """Count memory that is taken, and give `""`; or what stands against it, and count nothing."""
        with _lock:
            if self.capacity is not None and self.used + nbytes > self.capacity:
                free = max(self.capacity - self.used, 0)
                return (
                    f"simulated device out of memory. Tried to allocate {nbytes} bytes. {self} has a capacity of "
                    f"{self.capacity} bytes, of which {free} are free"
                )
            self.used += nbytes
            self.peak = max(self.peak, self.used)
            return ""

    def free(self, nbytes: int) -> None:
        """Count memory that is given back."""
        with _lock:
            self.used -= nbytes


def make(count: int, capacity: int | None) -> Sequence[SimulatedDevice]:
    """The devices, made if there are none.

    Raises:
        ConfigError: a number that is not a positive int, or there are other devices.
    """
    if not _is_count(count) or count > _MOST:
        raise ConfigError(f"start({count!r}): that many devices cannot be simulated", available=f"1 to {_MOST}")
    if capacity is not None and not _is_count(capacity):
        raise ConfigError(f"start(capacity={capacity!r}) is not a positive number of bytes", hint="give an int")
    with _lock:
        there = running()
        if not there:
            _running.extend(SimulatedDevice(index, capacity) for index in range(count))
        elif len(there) != count or any(one.capacity != capacity for one in there):
            raise ConfigError(
                f"start({count}, capacity={capacity}): torch has simulated devices already, and keeps them",
                available=", ".join(f"{one} ({one.capacity or 'no'} bytes)" for one in there),
                hint="use these, or do it in another process; a capacity is changed on the handle of a device",
            )
        return tuple(_running)


def running() -> Sequence[SimulatedDevice]:
    """The simulated devices of this process, none if it has none; asking makes those of the environment variable."""
    with _lock:
        text = os.environ.get(SWITCH, "")
        if not _running and text.isdecimal():
            _running.extend(SimulatedDevice(index, None) for index in range(min(int(text), _MOST)))
        return tuple(_running)


def is_wanted() -> bool:
    """Whether there are simulated devices, or the environment variable says something, be it nonsense."""
    return bool(_running or os.environ.get(SWITCH))


def missing(device: Device) -> str:
    """Why a simulated device is not there."""
    text, there = os.environ.get(SWITCH, ""), len(running())
    if not there and text and text != "0":
        return f"{SWITCH}={text!r} is not a count"
    made = f"{there} simulated device{'s were' if there > 1 else ' was'} started" if there else "none was started"
    return f"{made}; {SWITCH}={device.index + 1} before Python is started makes it"


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
