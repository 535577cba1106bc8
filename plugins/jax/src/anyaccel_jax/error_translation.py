"""What goes wrong in JAX, told as anyaccel tells it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from anyaccel.errors import AnyaccelError, DeviceMismatchError, OutOfMemoryError

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_NO_ROOM = ("RESOURCE_EXHAUSTED", "Out of memory", "out of memory")


@contextmanager
def telling(what: str) -> Iterator[None]:
    """Inside, a lack of memory becomes `OutOfMemoryError`, and arrays on several devices `DeviceMismatchError`.

    Args:
        what: what takes the room, such as `"an array of 8 bytes on gpu:0"`.
    """
    try:
        yield
    except (RuntimeError, ValueError) as error:
        told = _told(error, what)
        if told is None:
            raise
        raise told from error


def told(function: Callable[..., Any], what: str) -> Callable[..., Any]:
    """The function, with errors as `telling` tells them; costs nothing while there are none."""

    @wraps(function)
    def run(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except (RuntimeError, ValueError) as error:
            found = _told(error, what)
            if found is None:
                raise
            raise found from error

    return run


def first_line(error: BaseException) -> str:
    """What an error says first, past what Keras writes above its own; JAX appends whole paragraphs to some."""
    lines = [_COLOUR.sub("", line).strip() for line in str(error).splitlines()]
    found = [line for line in lines if line and not line.startswith("Exception encountered when calling")]
    return found[0] if found else type(error).__name__


def _told(error: Exception, what: str) -> AnyaccelError | None:
    words = str(error)
    if isinstance(error, AnyaccelError):
        return None
    if any(mark in words for mark in _NO_ROOM):
        remedy = "use smaller batches, free memory on the device, or choose a device with more"
        return OutOfMemoryError(f"no room for {what}", available=first_line(error), hint=remedy)
    if "incompatible devices" in words:
        remedy = "put them on one with anyaccel.move(obj, device)"
        return DeviceMismatchError(f"{what}: arrays are on several devices", available=first_line(error), hint=remedy)
    return None
