"""Soft placement and the device policy: changed while somebody needs it, and restored as the user had them."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf


class SharedSetting:
    """A setting of the whole process that several hold at once: set by the first, restored by the last.

    Args:
        get: Function that reads the setting.
        set_: Function that writes the setting.
        strict: Its value while somebody holds it.
    """

    def __init__(self, get: Callable[[], Any], set_: Callable[[Any], None], strict: Any) -> None:
        self._get, self._set, self._strict = get, set_, strict
        self._lock = threading.Lock()
        self._n_holders = 0
        self._before: Any  # while somebody holds it

    def acquire(self) -> None:
        """Hold it."""
        with self._lock:
            if self._n_holders == 0:
                self._before = self._get()
                self._set(self._strict)
            self._n_holders += 1

    def release(self) -> None:
        """Stop holding it; a value that the user has set in the meantime is kept."""
        with self._lock:
            self._n_holders -= 1
            if self._n_holders == 0 and self._get() == self._strict:
                self._set(self._before)


# With soft placement, an operation that a device lacks, or that names a missing device, silently runs on the CPU; with
# the silent policy, operands are silently copied between devices.
_SOFT_PLACEMENT = SharedSetting(tf.config.get_soft_device_placement, tf.config.set_soft_device_placement, False)
_POLICY = SharedSetting(tf.config.experimental.get_device_policy, tf.config.experimental.set_device_policy, "explicit")


@contextmanager
def hard_placement() -> Iterator[None]:
    """Inside, every operation runs on the device it names; for other threads too, as the setting is the process's."""
    _SOFT_PLACEMENT.acquire()
    try:
        yield
    finally:
        _SOFT_PLACEMENT.release()


@contextmanager
def silent_copies() -> Iterator[None]:
    """Inside, operands are copied to where they are needed."""
    before = tf.config.experimental.get_device_policy()
    tf.config.experimental.set_device_policy("silent")
    try:
        yield
    finally:
        tf.config.experimental.set_device_policy(before)


class StrictDevices:
    """Soft placement off and the device policy explicit, until `end` or until `owner` is garbage.

    Args:
        owner: The object that needs it.
    """

    def __init__(self, owner: object) -> None:
        _SOFT_PLACEMENT.acquire()
        _POLICY.acquire()
        self._end = weakref.finalize(owner, _release)
        self._end.atexit = False  # TensorFlow may be unloaded then

    def end(self) -> None:
        """Restore both; a second call does nothing."""
        self._end()


def _release() -> None:
    _POLICY.release()
    _SOFT_PLACEMENT.release()
