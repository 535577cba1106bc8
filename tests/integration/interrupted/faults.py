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

END, MAKE = "anyaccel.phases.runner.PhaseExecution.end", "anyaccel.phases.train_loop.TrainLoop._make"
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
    make = resolve_name(MAKE)

    def uncounted(self: Any, call: Any, losses: Any) -> Any:
        train = call.train

        def late(call: Any) -> Any:
            step_losses = train(call)
            self._in_progress.n_steps = 0
            resolve_name("anyaccel.interrupts").check()
            return step_losses

        call.train = late
        return make(self, call, losses)

    with mock.patch(MAKE, uncounted):
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
