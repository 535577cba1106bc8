"""Background writer: writes one checkpoint at a time in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable


class BackgroundWriter:
    """Calls one function at a time in a thread; what it raises is raised by the next call of this object."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a function is running."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, write: Callable[[], object]) -> None:
        """Call a function as soon as the one before has ended.

        Raises:
            Exception: what the one before has raised.
        """
        self.wait()
        self._thread = threading.Thread(target=self._run, args=(write,), name="anyaccel-checkpoint", daemon=False)
        self._thread.start()

    def wait(self) -> None:
        """Until nothing runs any more.

        Raises:
            Exception: what the function has raised.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _run(self, write: Callable[[], object]) -> None:
        try:
            write()
        except Exception as failure:
            self._failure = failure
