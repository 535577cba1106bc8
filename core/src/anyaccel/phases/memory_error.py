"""Memory that ran out, in any of its ways, as anyaccel's error."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import FrameType

from anyaccel.errors import OutOfMemoryError


def as_out_of_memory(error: MemoryError) -> OutOfMemoryError:
    """Return an anyaccel error for an out-of-memory error; one of Python or NumPy is about host memory.

    The frames of such an error release their content.
    """
    if isinstance(error, OutOfMemoryError):
        return error
    release_frames(error)
    said = str(error).partition("\n")[0]
    return OutOfMemoryError(
        f"not enough host memory: {said}" if said else "not enough host memory",
        hint="use smaller batches, or free host memory",
    )


# -- Traceback cleanup: drop what the frames of an error hold, so that it does not keep tensors on a device alive ------


_PACKAGE = "anyaccel"


def release_frames(error: BaseException) -> None:
    """Clear the local variables of an error's finished frames.

    Only frames of anyaccel and its plugins, so that those of a failed model or callback can still be inspected. Of an
    OutOfMemoryError all frames, as tensors in those of the frameworks fill the memory.
    """
    for frame in _frames(error, set()):
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if isinstance(error, MemoryError) or package == _PACKAGE or package.startswith(f"{_PACKAGE}_"):
            with contextlib.suppress(RuntimeError):  # it is still running
                frame.clear()


def release_callers(error: BaseException) -> None:
    """Clear the finished frames that called the current exception handler, because the error holds them and their
    locals.
    """
    frame = None if error.__traceback__ is None else error.__traceback__.tb_frame.f_back
    while frame is not None:
        try:
            frame.clear()
        except RuntimeError:  # it is still running, and so are those above it
            return
        frame = frame.f_back


def _frames(error: BaseException | None, seen: set[int]) -> Iterator[FrameType]:
    """Yield the frames of the error, its cause and its context."""
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next
    yield from _frames(error.__cause__, seen)
    yield from _frames(error.__context__, seen)
