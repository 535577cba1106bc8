"""Background writer: writes one checkpoint at a time in a thread of its own, with pauses for the loop's sake."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_SHARE = 0.02  # of the time; at full rate it takes up to a third of the rate of the loop (docs/benchmarks.md)
Write = Callable[[Callable[[], object] | None], object]


class BackgroundWriter:
    """Calls one function at a time in a thread; what it raises is raised by the next call of this object."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None
        self._hurry = threading.Event()

    @property
    def is_busy(self) -> bool:
        """Whether a function is running."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, write: Write, pauses: float = 0.0) -> None:
        """Call a function as soon as the one before has ended.

        Args:
            write: is given a function that pauses, to call after each millisecond or so of work; None without pauses.
            pauses: seconds of all pauses together, at most; they end when somebody waits.

        Raises:
            Exception: what the one before has raised.
        """
        self.wait()
        self._hurry.clear()
        pause = _Pace(self._hurry, pauses).pause if pauses else None
        self._thread = threading.Thread(target=self._run, args=(write, pause), name="anyaccel-checkpoint", daemon=False)
        self._thread.start()

    def wait(self) -> None:
        """Until nothing runs any more.

        Raises:
            Exception: what the function has raised.
        """
        if self._thread is not None:
            self._hurry.set()
            self._thread.join()
            self._thread = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _run(self, write: Write, pause: Callable[[], object] | None) -> None:
        try:
            write(pause)
        except Exception as failure:
            self._failure = failure


class _Pace:
    """Pauses after pieces of work, so that the work takes a share of the time."""

    def __init__(self, hurry: threading.Event, seconds: float) -> None:
        self._hurry, self._left = hurry, seconds
        self._since = time.perf_counter()

    def pause(self) -> None:
        """A piece is done: wait in proportion to the time it took, while there is time left and nobody waits."""
        worked = time.perf_counter() - self._since
        seconds = min(worked * (1 - _SHARE) / _SHARE, self._left)
        if seconds > 0:
            self._left -= seconds
            self._hurry.wait(seconds)
        self._since = time.perf_counter()
