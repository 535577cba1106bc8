"""ProcessSetting: a setting of a whole process, which phases of several threads hold together or not at all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from anyaccel.errors import PhaseError


class ProcessSetting:
    """A global setting of a framework. Threads hold it together where they want one value, and else are refused.

    The last one to release it restores the value from before the first.

    Args:
        name: Name for messages.
        read: Function that reads the current value.
        write: Function that sets it.
    """

    def __init__(self, name: str, read: Callable[[], Any], write: Callable[[Any], object]) -> None:
        self._name, self._read, self._write = name, read, write
        self._lock = threading.Lock()
        self._held: list[tuple[int, Any]] = []  # by threads, in the order in which they took it
        self._before: Any = None

    @contextmanager
    def hold(self, value: Any) -> Iterator[None]:
        """Inside, it has this value; inside of another `hold` of the same thread it may be another.

        Raises:
            PhaseError: another thread holds another value.
        """
        entry = threading.get_ident(), value
        with self._lock:
            self._check(entry)
            if not self._held:
                self._before = self._read()
            self._write(value)
            self._held.append(entry)
        try:
            yield
        finally:
            with self._lock:
                last = len(self._held) - 1 - self._held[::-1].index(entry)
                del self._held[last]
                self._write(self._held[-1][1] if self._held else self._before)

    def _check(self, entry: tuple[int, Any]) -> None:
        thread, value = entry
        other = next((held for holder, held in self._held if holder != thread and held != value), None)
        if other is not None:
            raise PhaseError(
                f"{self._name}={value!r} is requested while a phase in another thread has {other!r}",
                cause="one value at a time: the setting applies to the whole process",
                hint="run the phases one at a time, or use the same value in both",
            )
