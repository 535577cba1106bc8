"""What goes wrong in torch, told as anyaccel tells it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from anyaccel.errors import AnyaccelError, MoveError, OutOfMemoryError

_KERAS_FRAME = re.compile(r"^Exception encountered when calling [^\n]*\n+")
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_NO_ROOM = ("out of memory", "can't allocate memory", "not enough memory")


@contextmanager
def telling(what: str) -> Iterator[None]:
    """Inside, a lack of memory becomes `OutOfMemoryError`, and a tensor without data `MoveError`; others pass.

    Args:
        what: what takes the room, such as `"a tensor of 8 bytes on gpu:0"`.
    """
    try:
        yield
    except RuntimeError as error:
        told = _told(error, what)
        if told is None:
            raise
        raise told from error


def first_line(error: BaseException) -> str:
    """What an error says, without the trace that torch appends to some, and the frame that Keras puts around it."""
    words = _ESCAPES.sub("", _KERAS_FRAME.sub("", str(error)))
    return words.strip().partition("\n")[0]


def _told(error: RuntimeError, what: str) -> AnyaccelError | None:
    words = str(error)
    if any(mark in words for mark in _NO_ROOM):
        remedy = "use smaller batches, free memory on the device, or choose a device with more"
        return OutOfMemoryError(f"no room for {what}", there=first_line(error), remedy=remedy)
    if "meta tensor" in words:
        remedy = "give its parameters values first: model.to_empty(device='cpu'), then load or initialise them"
        return MoveError(f"{what}: there are no values to move, it is on torch's meta device", remedy=remedy)
    return None
