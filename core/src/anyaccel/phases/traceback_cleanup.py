"""Traceback cleanup: drop what the frames of an error hold, so that it does not keep tensors on a device alive."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import FrameType

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


def _frames(error: BaseException | None, seen: set[int]) -> Iterator[FrameType]:
    """Of the error, its cause and its context."""
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next
    yield from _frames(error.__cause__, seen)
    yield from _frames(error.__context__, seen)
