"""What is made ahead of its use, by a thread that ends with the loop that uses it."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Generator
from contextlib import closing
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 0.7
"""Seconds for which the end of a loop waits for the thread: its maker may wait for a disk or a worker for long."""
_POLL = 0.05
_LISTEN = 0.2
"""Where a wait cannot be interrupted, it ends so often, to let an interrupt through."""


def ahead(make: Callable[[], Generator[T]], depth: int = 1, name: str = "anyaccel-ahead") -> Generator[T]:
    """What a generator yields, made in a thread up to `depth` (and one more) before it is asked for.

    An error of the maker is raised when its turn comes. When the caller is done, ends early or is interrupted, the
    generator is closed by its thread and the thread is waited for, at most `PATIENCE` seconds: one whose maker does
    not come back by then ends as soon as it does, and does not keep the process alive.

    Args:
        make: called in the thread.
        depth: how many may wait.
        name: of the thread.
    """
    found: queue.Queue[tuple[T | None, BaseException | None, bool]] = queue.Queue(depth)
    stop = threading.Event()
    thread = threading.Thread(target=_work, args=(make, found, stop), name=name, daemon=True)
    try:
        thread.start()
        while True:
            one, error, last = _next(found)
            if error is not None:
                raise error
            if last:
                return
            yield one  # type: ignore[misc]
            del one  # a block on a device must not outlive the next
    finally:
        stop.set()
        _drain(found)
        if thread.is_alive():  # it is not, where an interrupt came before it was started
            thread.join(PATIENCE)
        _drain(found)  # what was put there in between: an error there, and its frames, would keep each other


def _drain(found: queue.Queue[T]) -> None:
    with contextlib.suppress(queue.Empty):
        while True:
            found.get_nowait()


def _next(found: queue.Queue[T]) -> T:
    while True:
        with contextlib.suppress(queue.Empty):
            return found.get(timeout=_LISTEN)


def _work(make: Callable[[], Generator[T]], found: queue.Queue[object], stop: threading.Event) -> None:
    error: BaseException | None = None
    try:
        with closing(make()) as made:
            for one in made:
                if not _put(found, (one, None, False), stop):
                    return
                del one
    except BaseException as failure:  # the thread that waits for it must hear of anything
        error = failure
    _put(found, (None, error, True), stop)
    del error  # a circle


def _put(found: queue.Queue[object], one: object, stop: threading.Event) -> bool:
    while not stop.is_set():
        with contextlib.suppress(queue.Full):
            found.put(one, timeout=_POLL)
            return not stop.is_set()
    return False
