"""Prefetch: run a generator, or a single call, in a background thread ahead of its use."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any, Generic, TypeAlias, TypeVar

from anyaccel import interrupts
from anyaccel.adapter.outer_contexts import ThreadContexts, in_thread, thread_contexts

T = TypeVar("T")

# SimpleQueue is written in C: Python's own locks can be lost where an interrupt falls within a wait ("release unlocked
# lock").
_Entry: TypeAlias = "tuple[T | None, BaseException | None, bool]"
_Queue: TypeAlias = "queue.SimpleQueue[_Entry[T]]"

THREAD_NAME = "anyaccel-prefetch"
JOIN_SECONDS = 0.7
"""How long the end of a loop waits for the thread, whose generator may be blocked by a disk or a worker process."""
_POLL_SECONDS = 0.2
"""Where a wait cannot be interrupted it ends this often, to let an interrupt through."""


def prefetch(make: Callable[[], Generator[T]], depth: int = 1) -> Generator[T]:
    """Yield the items of a generator, computed in a thread up to `depth` (and one more) items ahead.

    An error of the generator is raised at its place in the sequence. When the caller is done, stops early or is
    interrupted, the thread closes the generator and is joined for at most `JOIN_SECONDS`; a generator that is blocked
    for longer ends as soon as it can, and does not keep the process alive.

    Args:
        make: Function called in the thread; it returns the generator.
        depth: Number of items that may wait.
    """
    items: _Queue[T] = queue.SimpleQueue()
    room: queue.SimpleQueue[bool] = queue.SimpleQueue()
    for _ in range(depth):
        room.put(True)
    args = make, items, room, thread_contexts()
    thread = threading.Thread(target=_produce, args=args, name=THREAD_NAME, daemon=True)
    try:
        try:
            thread.start()
        except RuntimeError as refused:  # Python's error where there is no memory for the stack of a thread
            raise MemoryError(str(refused)) from None
        while True:
            item, error, last = _next(items)
            room.put(True)
            if error is not None:
                raise error
            if last:
                return
            yield item  # type: ignore[misc]
            del item  # a block on a device must not outlive the next
    finally:
        _drain(room)
        room.put(False)
        _drain(items)
        if thread.is_alive():  # it is not if an interrupt came before it was started
            thread.join(JOIN_SECONDS)
        _drain(items)  # an error put there meanwhile and its frames would keep each other alive


def on_demand(make: Callable[[], Generator[T]]) -> Generator[T]:
    """Yield the items of a generator, each computed when it is requested, in the thread that requests it."""
    with closing(make()) as generator:
        while True:
            with interrupts.allowed():
                item = next(generator, None)
            if item is None:
                return
            yield item
            del item  # as in `prefetch`


def _drain(items: queue.SimpleQueue[Any]) -> None:
    with contextlib.suppress(queue.Empty):
        while True:
            items.get_nowait()


def _next(items: _Queue[T]) -> _Entry[T]:
    while True:
        with contextlib.suppress(queue.Empty), interrupts.allowed():
            return items.get(timeout=_POLL_SECONDS)


def _produce(
    make: Callable[[], Generator[T]], items: _Queue[T], room: queue.SimpleQueue[bool], contexts: ThreadContexts
) -> None:
    error: BaseException | None = None
    try:
        with in_thread(contexts), closing(make()) as generator:
            for item in generator:
                if not _has_room(room):
                    return
                items.put((item, None, False))
                del item
    except BaseException as failure:  # raised again in the thread that waits
        error = failure
    if _has_room(room):
        items.put((None, error, True))
    del error  # it would form a reference cycle with this frame


def _has_room(room: queue.SimpleQueue[bool]) -> bool:
    """Wait for room; False once the loop has ended, however often it is asked."""
    if room.get():
        return True
    room.put(False)
    return False


class BackgroundCall(threading.Thread, Generic[T]):
    """Run one call in a separate thread, started immediately; the result is in `result`, even if no thread could be
    started.
    """

    def __init__(self, function: Callable[..., T], *args: Any) -> None:
        super().__init__(name="anyaccel-row-order", daemon=True)
        self._function, self._args = function, args
        self._result: T
        self._error: BaseException | None = None
        self._starts = True
        try:
            self.start()
        except RuntimeError:
            self._starts = False

    def run(self) -> None:
        """Run the call; the thread calls this."""
        try:
            self._result = self._function(*self._args)
        except BaseException as error:  # raised by `result`
            self._error = error

    def result(self) -> T:
        """Wait for the call; its value, or its error raised."""
        if self._starts:
            self.join()
        else:
            self.run()
        if self._error is not None:
            raise self._error
        return self._result
