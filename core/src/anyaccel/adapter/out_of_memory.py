"""The error of a plugin whose framework ran out of memory, in one wording for all of them."""

from __future__ import annotations

from anyaccel.errors import OutOfMemoryError


def out_of_memory(subject: str, message: str) -> OutOfMemoryError:
    """The error to raise from the framework's own.

    Args:
        subject: what there is not enough memory for, such as `"an array of 8 bytes on gpu:0"`.
        message: what the framework said, in one line.
    """
    return OutOfMemoryError(
        f"not enough memory for {subject}: {message}",
        hint="use smaller batches, free memory on the device, or choose a device with more",
    )
