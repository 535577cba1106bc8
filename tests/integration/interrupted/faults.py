"""Faults that are planted, to see that what interrupts leave behind would be noticed."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from pkgutil import resolve_name
from typing import Any
from unittest import mock

END, STEP_DONE = "anyaccel.phases.runner.PhaseExecution.end", "anyaccel.phases.train_loop.TrainLoop._step_done"
DELIVER = "anyaccel.interrupts._MainThread.deliver"


def _at_the_end(plant: Callable[[], Any]) -> Callable[[], AbstractContextManager[Any]]:
    """Plant something whenever a phase ends."""
    plain = resolve_name(END)

    def end(*args: Any) -> None:
        plant()
        plain(*args)

    return lambda: mock.patch(END, end)


def _thread() -> None:
    threading.Thread(target=time.sleep, args=(30.0,), daemon=True, name="planted").start()


def _process() -> None:
    command = [sys.executable, "-c", "import time; time.sleep(30)  # planted"]
    subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _shared_memory() -> None:
    planted = Path(f"/dev/shm/planted_{os.getpid()}")
    planted.write_bytes(b"")
    atexit.register(planted.unlink, missing_ok=True)


def _file() -> None:
    Path(tempfile.mkstemp(prefix="planted")[1])


@contextmanager
def _step_ahead() -> Iterator[None]:
    """A step that is not counted: the signal comes between update and count."""
    step_done = resolve_name(STEP_DONE)

    def late(self: Any, losses: Any, step_losses: Any, n_steps: int, told: Any = None) -> None:
        self._call.n_steps = 0
        resolve_name("anyaccel.interrupts").check()
        step_done(self, losses, step_losses, n_steps, told)

    with mock.patch(STEP_DONE, late):
        yield


@contextmanager
def _lost() -> Iterator[None]:
    """A signal is deferred and forgotten."""
    with mock.patch(DELIVER, lambda signals: signals.waiting.clear()):
        yield


@contextmanager
def _error_in_thread() -> Iterator[None]:
    def fails() -> None:
        raise ValueError("planted")

    with _at_the_end(lambda: threading.Thread(target=fails).start())():
        yield


FAULTS: dict[str, tuple[Callable[[], AbstractContextManager[Any]], str]] = {
    "thread": (_at_the_end(_thread), "left ['thread planted"),
    "process": (_at_the_end(_process), "time.sleep(30)  # planted"),
    "shared memory": (_at_the_end(_shared_memory), "left ['/dev/shm/planted_"),
    "file": (_at_the_end(_file), "/planted"),
    "step ahead": (_step_ahead, ", told "),
    "lost signal": (_lost, "was lost"),
    "error in a thread": (_error_in_thread, "(fails), started"),
}
"""How each is planted, and what is then said."""
