"""Timing: simulated time of a device that computes and copies at the same time, as a GPU with copy engines does.

Nothing really waits: each stream stores the time when its work ends, and the host the time it has waited until.
"""

from __future__ import annotations

import threading
from typing import Any

from anyaccel.arguments import number
from anyaccel.errors import ConfigError

INTO, OUT = "into", "out"
_current = threading.local()


class HostClock:
    """The time until which the host has waited; shared by devices that one program drives."""

    def __init__(self) -> None:
        self.time = 0.0


class Timing:
    """The clocks of a device: one for each stream, one for each direction of copies, and one of the host.

    An operator takes the bytes that it reads and writes divided by `compute_rate`, and no time if it only creates a
    view. A copy takes `copy_latency` plus its bytes divided by `copy_bandwidth`. Work in one stream is in order;
    streams run in parallel. Copies in one direction run one at a time. The host waits for blocking copies and for
    copies from or to memory that is not page-locked, but not for copies between two devices. Such a copy begins when
    both devices have finished their work, and both continue after it.

    Args:
        compute_rate: Bytes per second.
        copy_bandwidth: Bytes per second, in each direction.
        copy_latency: Seconds of each copy.
        host: The clock of the host; pass the same one to all devices of a program. By default a separate one.

    Attributes:
        compute_seconds: Time of all operators.
        copy_seconds: Time of all copies, by direction: `"into"` and `"out"`.

    Raises:
        ConfigError: a number that is not positive.
    """

    def __init__(
        self,
        *,
        compute_rate: float,
        copy_bandwidth: float,
        copy_latency: float = 0.0,
        host: HostClock | None = None,
    ) -> None:
        where = "Timing: "
        above = lambda it: it > 0  # noqa: E731
        self.compute_rate = number(ConfigError, where, "compute_rate", compute_rate, above, "above 0", 1e9)
        self.copy_bandwidth = number(ConfigError, where, "copy_bandwidth", copy_bandwidth, above, "above 0", 1e9)
        least = lambda it: it >= 0  # noqa: E731
        self.copy_latency = number(ConfigError, where, "copy_latency", copy_latency, least, "at least 0", 1e-5)
        self._clock = HostClock() if host is None else host
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        """Set all clocks to zero."""
        self._clock.time = 0.0
        self._streams: dict[int, float] = {}
        self._engines = {INTO: 0.0, OUT: 0.0}
        self.compute_seconds = 0.0
        self.copy_seconds = {INTO: 0.0, OUT: 0.0}

    def elapsed(self) -> float:
        """Return the time when all work ends."""
        return max(self._clock.time, *self._streams.values(), *self._engines.values())

    def compute(self, nbytes: int) -> None:
        """Add work to the current stream."""
        seconds = nbytes / self.compute_rate
        with self._lock:
            stream = current_stream(self)
            self._streams[stream] = max(self._streams.get(stream, 0.0), self._clock.time) + seconds
            self.compute_seconds += seconds

    def copy(self, direction: str, nbytes: int, *, waits: bool) -> None:
        """Add a copy to the current stream."""
        seconds = self.copy_latency + nbytes / self.copy_bandwidth
        with self._lock:
            stream = current_stream(self)
            end = max(self._streams.get(stream, 0.0), self._engines[direction], self._clock.time) + seconds
            self._streams[stream] = self._engines[direction] = end
            self.copy_seconds[direction] += seconds
            if waits:
                self._clock.time = max(self._clock.time, end)

    def copy_from(self, source: Timing, nbytes: int) -> None:
        """Add a copy from another device, to the current streams of both."""
        slower = min(self.copy_bandwidth, source.copy_bandwidth)
        seconds = max(self.copy_latency, source.copy_latency) + nbytes / slower
        ends = ((source, OUT), (self, INTO))
        begin = max(max(each.end_of(current_stream(each)), each.engine_end(way)) for each, way in ends)
        for each, way in ends:
            each.occupy(way, begin + seconds, seconds)

    def engine_end(self, direction: str) -> float:
        """Return when the copies in one direction end that were added so far."""
        return self._engines[direction]

    def occupy(self, direction: str, end: float, seconds: float) -> None:
        """Keep the current stream, and the copies in one direction, busy until `end`."""
        with self._lock:
            self._streams[current_stream(self)] = self._engines[direction] = end
            self.copy_seconds[direction] += seconds

    def end_of(self, stream: int) -> float:
        """Return when the work of a stream ends that was added so far."""
        return max(self._streams.get(stream, 0.0), self._clock.time)

    def delay(self, stream: int, until: float) -> None:
        """Start later work of a stream no earlier than `until`."""
        with self._lock:
            self._streams[stream] = max(self._streams.get(stream, 0.0), until)

    def wait(self, until: float) -> None:
        """Let the host wait."""
        with self._lock:
            self._clock.time = max(self._clock.time, until)

    def reached(self, time: float) -> bool:
        """Return whether the host has waited that long."""
        return time <= self._clock.time


def current_stream(key: Any) -> int:
    """Return the number of this thread's stream on a device; 0 if it has set none."""
    return int(getattr(_current, "streams", {}).get(key, 0))


def set_stream(key: Any, stream: int) -> None:
    """Set this thread's stream."""
    if not hasattr(_current, "streams"):
        _current.streams = {}
    _current.streams[key] = stream
