"""What goes wrong in TensorFlow, told as anyaccel tells it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from anyaccel.errors import AnyaccelError, DeviceUnavailableError, MoveError, OutOfMemoryError

# What Keras puts around the words of others, in bold; and the names that TensorFlow gives to nodes.
_AROUND = re.compile(r"^Exception encountered when calling [^\n]*\n+|\x1b\[\d*m|\{\{(?:function_)?node [^}]*\}\}")


@contextmanager
def telling(what: str) -> Iterator[None]:
    """Inside, a lack of memory, of a device, or of a kernel on it becomes a named error; others pass.

    Args:
        what: what was to be done, such as `"a tensor of shape [8] on gpu:0"`.
    """
    import tensorflow as tf

    try:
        yield
    except tf.errors.OpError as error:
        told = _told(error, what)
        if told is None:
            raise
        raise told from error


def first_line(error: BaseException) -> str:
    """What an error says, without the frames and node names that Keras and TensorFlow put around it."""
    line = _AROUND.sub("", str(error)).strip().partition("\n")[0]
    return re.sub(r"\s*(\[Op:\w+\])?( name: ?\S*)?\s*$", "", line).strip()


def _told(error: Exception, what: str) -> AnyaccelError | None:
    import tensorflow as tf

    words = first_line(error)
    if isinstance(error, tf.errors.ResourceExhaustedError):
        remedy = "use smaller batches, free memory on the device, or choose a device with more"
        return OutOfMemoryError(f"no room for {what}", available=words, hint=remedy)
    if isinstance(error, tf.errors.InvalidArgumentError) and "device specification" in words:
        return DeviceUnavailableError(
            f"{what}: TensorFlow has no such device",
            available=words.rpartition("All available devices")[2].strip(" []."),
            hint="run `anyaccel devices` to see what is there, and why not more",
        )
    if isinstance(error, tf.errors.InvalidArgumentError) and "conflicting devices" in words:
        return MoveError(
            f"{what}: its inputs are on different devices",
            available=words.partition("Tensors can be")[0].strip(),
            hint="move them to one device first: anyaccel.move(tensor, device)",
        )
    return None
