"""What is made ahead of its use, by a thread that ends with the loop that uses it."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")

# Queues in C: Python's own locks can be lost where an interrupt falls within a wait ("release unlocked lock").
_Found: TypeAlias = "tuple[T | None, BaseException | None, bool]"
_Queue: TypeAlias = "queue.SimpleQueue[_Found[T]]"

PATIENCE = 0.7
"""Seconds for which the end of a loop waits for the thread: its maker may wait for a disk or a worker for long."""
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
    found: _Queue[T] = queue.SimpleQueue()
    room: queue.SimpleQueue[bool] = queue.SimpleQueue()
    for _ in range(depth):
        room.put(True)
    thread = threading.Thread(target=_work, args=(make, found, room), name=name, daemon=True)
    try:
        thread.start()
        while True:
            one, error, last = _next(found)
            room.put(True)
            if error is not None:
                raise error
            if last:
                return
            yield one  # type: ignore[misc]
            del one  # a block on a device must not outlive the next
    finally:
        _drain(room)
        room.put(False)
        _drain(found)
        if thread.is_alive():  # it is not, where an interrupt came before it was started
            thread.join(PATIENCE)
        _drain(found)  # what was put there in between: an error there, and its frames, would keep each other


def _drain(found: queue.SimpleQueue[Any]) -> None:
    with contextlib.suppress(queue.Empty):
        while True:
            found.get_nowait()


def _next(found: _Queue[T]) -> _Found[T]:
    while True:
        with contextlib.suppress(queue.Empty):
            return found.get(timeout=_LISTEN)


def _work(make: Callable[[], Generator[T]], found: _Queue[T], room: queue.SimpleQueue[bool]) -> None:
    error: BaseException | None = None
    try:
        with closing(make()) as made:
            for one in made:
                if not _has_room(room):
                    return
                found.put((one, None, False))
                del one
    except BaseException as failure:  # the thread that waits for it must hear of anything
        error = failure
    if _has_room(room):
        found.put((None, error, True))
    del error  # a circle


def _has_room(room: queue.SimpleQueue[bool]) -> bool:
    """Waits for it; False once the loop has ended, however often it is asked."""
    if room.get():
        return True
    room.put(False)
    return False
