"""Calls off the main thread: Ctrl-C must not interrupt the start or end of worker processes halfway."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from anyaccel import interrupts

T = TypeVar("T")

THREAD_NAME = "anyaccel-workers"
_POLL_SECONDS = 0.2
"""Where a wait cannot be interrupted it ends this often, to let an interrupt through."""


def call_off_main_thread(function: Callable[[], T], undo: Callable[[T], Any] | None = None) -> T:
    """Call a function in a separate thread, and wait for it. Ctrl-C ends the wait, and the function continues.

    Args:
        function: The function.
        undo: Function called in the thread with the result, if no one waits for it any more.
    """
    if threading.current_thread() is not threading.main_thread():
        return function()
    results: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
    taken: queue.SimpleQueue[bool] = queue.SimpleQueue()
    thread = threading.Thread(target=_run, args=(function, undo, results, taken), name=THREAD_NAME, daemon=True)
    with interrupts.deferred():
        is_taken = False
        try:
            thread.start()
            result, error = _next(results)
            is_taken = True
        finally:
            taken.put(is_taken)
    try:
        if error is not None:
            raise error
        value: T = result
        return value
    finally:
        del error, result  # an error and its frames would keep each other alive


def _run(
    function: Callable[[], Any],
    undo: Callable[[Any], Any] | None,
    results: queue.SimpleQueue[tuple[Any, BaseException | None]],
    taken: queue.SimpleQueue[bool],
) -> None:
    try:
        result = function()
    except BaseException as error:  # raised again in the thread that waits
        results.put((None, error))
        return
    results.put((result, None))
    if not taken.get() and undo is not None:
        undo(result)


def _next(results: queue.SimpleQueue[tuple[Any, BaseException | None]]) -> tuple[Any, BaseException | None]:
    while True:
        with contextlib.suppress(queue.Empty), interrupts.allowed():
            return results.get(timeout=_POLL_SECONDS)
