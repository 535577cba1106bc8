"""Termination: a process that is asked to end (SIGTERM) ends its step, writes a last checkpoint and exits with 143."""

from __future__ import annotations

import signal
import threading
from typing import Any

from anyaccel import interrupts

TERMINATED = 128 + 15
"""Exit status of a process that was asked to end (SIGTERM), as shells tell it."""


class Termination:
    """Handles SIGTERM from its making to `close`, unless the program does so itself.

    Python handles signals in the main thread alone: in another thread SIGTERM ends the process at once, and the last
    checkpoint that was due is the newest.
    """

    def __init__(self) -> None:
        self._old_handler: Any = None
        self._has_raised = self._is_ending = False
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            self._old_handler = signal.signal(signal.SIGTERM, self._terminate)
            interrupts.renew()

    def begin_last(self) -> None:
        """The last checkpoint is written now: if that is because of SIGTERM, another does not break it off."""
        self._is_ending = self._has_raised

    def close(self) -> None:
        """Set the handler that was there before."""
        if self._old_handler is not None:
            signal.signal(signal.SIGTERM, self._old_handler)
            self._old_handler = None

    def _terminate(self, number: int, frame: object) -> None:
        if not self._is_ending:
            self._has_raised = True
            raise SystemExit(TERMINATED)
