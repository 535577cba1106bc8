"""What goes wrong in torch, told as anyaccel tells it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from anyaccel.errors import AnyaccelError, DeviceMismatchError, MoveError, OutOfMemoryError

_KERAS_FRAME = re.compile(r"^Exception encountered when calling [^\n]*\n+")
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_NO_ROOM = ("out of memory", "can't allocate memory", "not enough memory")
# torch has many words for it: those of most operators, of indices and recurrent layers, and of convolutions.
_ELSEWHERE = (
    *("on the same device", "at the same device", "on a different device"),
    *("but expected on ", "but expected it to be on ", "has not been allocated on MPS"),
)
_TYPES = re.compile(r"\((torch\.(?:\w+\.)?)\w+Tensor\) and \w+ type \((torch\.(?:\w+\.)?)\w+Tensor\)")


@contextmanager
def telling(what: str) -> Iterator[None]:
    """Inside, a lack of memory becomes `OutOfMemoryError`, an operation over several devices `DeviceMismatchError`,
    and a tensor without data `MoveError`; others pass.

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


def refuse_mixing(error: RuntimeError, who: str, inputs: Mapping[str, Any]) -> None:
    """Tell an operation over several devices with the name of who did it; do nothing if that is not what went wrong.

    Args:
        error: what torch said.
        who: a node or loss, and its device.
        inputs: what it was given, by name.

    Raises:
        DeviceMismatchError: it is.
    """
    if not _is_elsewhere(str(error)):
        return
    given = ", ".join(f"{name} on {getattr(tensor, 'device', 'no device')}" for name, tensor in inputs.items())
    raise DeviceMismatchError(
        f"{who} computes with tensors of several devices",
        available=f"its inputs are {given or 'none'}; torch says: {first_line(error)}",
        hint="make tensors inside it where its inputs are, as in torch.zeros(3, device=x.device), and keep those "
        "that stay with register_buffer",
    ) from error


def first_line(error: BaseException) -> str:
    """What an error says, without the trace that torch appends to some, and the frame that Keras puts around it."""
    words = _ESCAPES.sub("", _KERAS_FRAME.sub("", str(error)))
    return words.strip().partition("\n")[0]


def _told(error: RuntimeError, what: str) -> AnyaccelError | None:
    words = str(error)
    if any(mark in words for mark in _NO_ROOM):
        remedy = "use smaller batches, free memory on the device, or choose a device with more"
        return OutOfMemoryError(f"no room for {what}", available=first_line(error), hint=remedy)
    if _is_elsewhere(words):
        asked = f"{what}: tensors of several devices meet in one operation"
        remedy = "bring them to one device; what functions of your own make belongs where their inputs are"
        return DeviceMismatchError(asked, available=first_line(error), hint=remedy)
    if "meta tensor" in words:
        remedy = "give its parameters values first: model.to_empty(device='cpu'), then load or initialise them"
        return MoveError(f"{what}: there are no values to move, it is on torch's meta device", hint=remedy)
    return None


def _is_elsewhere(words: str) -> bool:
    types = _TYPES.search(words)
    return any(mark in words for mark in _ELSEWHERE) or (types is not None and types[1] != types[2])
