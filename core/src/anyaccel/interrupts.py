"""Interrupts: while a phase runs, Ctrl-C and other signals wait until the values are complete.

Python runs the handler of a signal between any two instructions of the main thread, and most handlers raise an
exception there: in the middle of a training step, or of a function that cleans up. Inside `deferred`, handlers are
called only by `check` and inside `allowed`; inside `allowed`, not while a module is imported, because it might be left
unusable, nor while a plugin is called, because it would be blamed for the handler's exception. In other threads, which
receive no signals, nothing here has an effect.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from types import FrameType, TracebackType
from typing import Any, TypeAlias

Handler: TypeAlias = "Callable[[int, FrameType | None], Any]"

FORCE_SECONDS = 0.3
"""A signal that comes again so long after the first, which still waits, is not deferred any more."""
WHOLE = "_UNBROKEN"
"""A module that has this name is never broken off by a first signal while its functions run; nor are imports."""
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGBREAK", "SIGALRM", "SIGUSR1", "SIGUSR2", "SIGCHLD")
_SIGNALS = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]


class _MainThread:
    """The state of the signals of the main thread.

    `held` and `depth` are changed by plain assignments, between which Python calls no handler.
    """

    def __init__(self) -> None:
        self.held = self.forced = False
        self.depth = 0
        self.waiting: dict[int, Callable[[], None]] = {}
        self.boundary = 0  # the id of the frame that entered `allowed`; those of its callers do not count
        self.raised: tuple[BaseException, int, Handler] | None = (
            None  # by a handler, and not known to have come through
        )
        self._since: dict[int, float] = {}
        self._installed: set[int] = set()
        self._hook = self._unraisable
        self._other_hook: Callable[[Any], Any] | None = None

    def install(self) -> None:
        """Put this object before the handlers of all signals that are Python functions."""
        if self._other_hook is None:
            self._other_hook, sys.unraisablehook = sys.unraisablehook, self._hook
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler):
                self._installed.add(number)
                if self._deferring(handler) is None:
                    signal.signal(number, partial(self._receive, handler))

    def uninstall(self) -> None:
        """Restore the handlers that this object replaced."""
        for number in sorted(self._installed, reverse=True):  # Ctrl-C is among the last
            handler = self._deferring(signal.getsignal(number))
            if handler is not None:
                signal.signal(number, handler)
        self._installed.clear()
        if sys.unraisablehook is self._hook and self._other_hook is not None:
            sys.unraisablehook, self._other_hook = self._other_hook, None
        self.raised = None

    def _unraisable(self, args: Any) -> None:
        """Raise a signal again that arrived while an object was freed, because Python ignores exceptions there."""
        if self.raised is not None and args.exc_value is self.raised[0]:
            _, number, handler = self.raised
            self.raised = None
            self.wait(number, handler)
        else:
            (self._other_hook or sys.__unraisablehook__)(args)

    def _deferring(self, handler: Any) -> Handler | None:
        """Return the handler that one of this object's handlers replaces; None for others.

        A callback that sets a handler and later restores the previous one may have received one of this object's.
        """
        is_ours = isinstance(handler, partial) and handler.func == self._receive
        return handler.args[0] if is_ours else None

    def _receive(self, handler: Handler, number: int, frame: FrameType | None) -> None:
        if not self.held and number not in self.waiting and not self._is_whole(frame):
            self._raise(handler, number, frame)
        elif number not in self.waiting:
            self.wait(number, handler)
        elif time.monotonic() - self._since[number] > FORCE_SECONDS:
            self.waiting.pop(number)
            try:
                self._raise(handler, number, frame)
            except BaseException:
                self.forced = self.forced or self.held
                raise

    def wait(self, number: int, handler: Handler) -> None:
        self._since[number] = time.monotonic()
        self.waiting[number] = partial(self._raise, handler, number, None)  # a frame would be kept alive

    def _is_whole(self, frame: FrameType | None) -> bool:
        """Whether a frame belongs to code that must not be interrupted."""
        while frame is not None and id(frame) != self.boundary:
            if WHOLE in frame.f_globals or frame.f_globals.get("__name__") == "importlib._bootstrap":
                return True
            frame = frame.f_back
        return False

    def _raise(self, handler: Handler, number: int, frame: FrameType | None) -> None:
        try:
            handler(number, frame)
        except BaseException as error:
            # torch raises in any place of the main thread that a worker of some DataLoader has died. The loader that
            # waits for it raises the same, and there it is known which batch of which source is missing.
            if isinstance(error, Exception) and number == getattr(signal, "SIGCHLD", None):
                return
            self.raised = error, number, handler
            raise

    def deliver(self) -> None:
        """Call the handlers of signals that wait; one that raises leaves the others waiting."""
        while self.waiting:
            self.waiting.pop(next(iter(self.waiting)))()

    def forget(self) -> None:
        """Stop deferring signals in a forked process."""
        self.held, self.depth = False, 0
        self.waiting.clear()


_main = _MainThread()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_main.forget)


def _on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def check() -> None:
    """Call the handlers of signals that wait, which may raise. Called where the values are complete."""
    if _main.waiting and _on_main_thread():
        _main.deliver()


def was_forced() -> bool:
    """Whether the handler of a signal that came a second time has raised, so that a step may have been broken off."""
    return _main.forced and _on_main_thread()


def renew() -> None:
    """Defer also signals whose handlers were set by others inside `deferred`."""
    if _main.depth and _on_main_thread():
        _main.install()


# Both are classes, as a generator of contextlib could be left between its steps by the very exceptions they are about.
class deferred(AbstractContextManager[None]):
    """Context that delays signals until `check`, `allowed`, or the end.

    The same signal is not deferred twice: pressing Ctrl-C again raises a KeyboardInterrupt immediately.
    """

    def __enter__(self) -> None:
        self._active = _on_main_thread()
        if self._active:
            self._outer, _main.held = _main.held, True
            _main.depth += 1
            if _main.depth == 1:
                _main.forced = False
                _main.install()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._active:
            return
        _main.held = True
        try:
            if _main.depth == 1:
                _main.uninstall()
        finally:
            _main.held = self._outer
            _main.depth = max(_main.depth - 1, 0)  # 0 in a process that was forked inside
        if not _main.held:
            check()


class allowed(AbstractContextManager[None]):
    """Context that does not defer signals: for long code that changes no values, and for hooks.

    Args:
        may_catch: Whether code inside may catch the exception of a handler. If not, a signal whose exception was
            caught, or replaced by an error, waits again: compilers catch everything.
    """

    def __init__(self, *, may_catch: bool = True) -> None:
        self._may_catch = may_catch

    def __enter__(self) -> None:
        self._active = _on_main_thread()
        if self._active:
            self._outer, self._boundary = _main.held, _main.boundary
            if _main.waiting:
                _main.deliver()
            _main.boundary = id(sys._getframe(1))  # noqa: SLF001
            _main.held = False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._active:
            _main.held, _main.boundary = self._outer, self._boundary
            if error is None or (not self._may_catch and isinstance(error, Exception)):
                raised, _main.raised = _main.raised, None
                if raised is not None and not self._may_catch:
                    _main.wait(raised[1], raised[2])
