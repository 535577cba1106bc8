"""Soft placement and the device policy: borrowed from the user, given back as they were."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf


class Switch:
    """A setting of the whole process that several hold at once: set by the first, restored by the last.

    Args:
        get: reads the setting.
        set_: writes it.
        strict: its value while somebody holds it.
    """

    def __init__(self, get: Callable[[], Any], set_: Callable[[Any], None], strict: Any) -> None:
        self._get, self._set, self._strict = get, set_, strict
        self._lock = threading.Lock()
        self._holders = 0
        self._before: Any = None

    def take(self) -> None:
        """Hold it."""
        with self._lock:
            if self._holders == 0:
                self._before = self._get()
                self._set(self._strict)
            self._holders += 1

    def give_back(self) -> None:
        """Hold it no more; what the user has set meanwhile stays."""
        with self._lock:
            self._holders -= 1
            if self._holders == 0 and self._get() == self._strict:
                self._set(self._before)


# With soft placement, an operation that a device lacks or that names an absent device runs on the CPU, and nobody says
# so; with the silent policy, operands are copied between devices, and nobody says so.
_SOFT = Switch(tf.config.get_soft_device_placement, tf.config.set_soft_device_placement, False)
_POLICY = Switch(tf.config.experimental.get_device_policy, tf.config.experimental.set_device_policy, "explicit")


@contextmanager
def hard_placement() -> Iterator[None]:
    """Inside, nothing runs on another device than it was told; also for others, as TensorFlow has one setting only."""
    _SOFT.take()
    try:
        yield
    finally:
        _SOFT.give_back()


@contextmanager
def lenient() -> Iterator[None]:
    """Inside, operands are copied to where they are needed."""
    before = tf.config.experimental.get_device_policy()
    tf.config.experimental.set_device_policy("silent")
    try:
        yield
    finally:
        tf.config.experimental.set_device_policy(before)


class Hold:
    """Soft placement off and the device policy explicit, until `end` or until `owner` is no more.

    Args:
        owner: on whose behalf.
    """

    def __init__(self, owner: object) -> None:
        _SOFT.take()
        _POLICY.take()
        self._end = weakref.finalize(owner, _release)
        self._end.atexit = False  # TensorFlow may be gone then

    def end(self) -> None:
        """Give both back; does nothing twice."""
        self._end()


def _release() -> None:
    _POLICY.give_back()
    _SOFT.give_back()
