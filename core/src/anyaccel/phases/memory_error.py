"""Memory that ran out, in any of its ways, as anyaccel's error."""

from __future__ import annotations

from anyaccel.errors import OutOfMemoryError
from anyaccel.phases.traceback_cleanup import release_frames


def as_out_of_memory(error: MemoryError) -> OutOfMemoryError:
    """anyaccel's error as it is; one of Python or NumPy, which is about host memory, in anyaccel's words.

    What the frames of the latter hold is let go.
    """
    if isinstance(error, OutOfMemoryError):
        return error
    release_frames(error)
    said = str(error).partition("\n")[0]
    return OutOfMemoryError(
        f"not enough host memory: {said}" if said else "not enough host memory",
        hint="use smaller batches, or free memory of the process",
    )
