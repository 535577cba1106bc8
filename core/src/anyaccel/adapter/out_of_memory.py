"""The error of a plugin whose framework ran out of memory, in one wording for all plugins."""

from __future__ import annotations

from anyaccel.errors import OutOfMemoryError


def out_of_memory(subject: str, message: str) -> OutOfMemoryError:
    """Return the error to raise from the framework's own.

    Args:
        subject: The object that does not fit, such as `"an array of 8 bytes on gpu:0"`.
        message: The framework's message, in one line.
    """
    return OutOfMemoryError(
        f"not enough memory for {subject}: {message}",
        hint="use smaller batches, free memory on the device, or choose a device with more",
    )
