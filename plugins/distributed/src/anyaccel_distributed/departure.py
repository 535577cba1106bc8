"""Departure: how a process leaves the other replicas when it ends. For plugins."""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Callable
from types import TracebackType


class Departure:
    """The end of a process that is a replica: it may end well, or fail, and then leaves without delay.

    Args:
        leave: Function that is called once when Python ends, with whether this process has failed.
    """

    def __init__(self, leave: Callable[[bool], object] | None = None) -> None:
        self._leave = leave
        self._failed = False

    def fail(self) -> None:
        """This process ends with an error."""
        self._failed = True

    def watch(self) -> None:
        """Watch for errors that end Python, and for its end."""
        shown = sys.excepthook

        def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
            self.fail()
            shown(kind, error, traceback)

        sys.excepthook = hook
        atexit.register(self._end)

    def _end(self) -> None:
        if self._leave is not None:
            self._leave(self._failed)  # before the freeze, which would keep a group that is in circles, and its threads
        if self._failed:
            gc.freeze()  # Python's last collections take a second of processor beside frameworks; the error waits (#14)
