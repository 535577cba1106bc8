"""What a failure keeps alive: results hold the error, the error its frames, and these columns and activations."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import FrameType

_OURS = "anyaccel"


def forget(error: BaseException) -> None:
    """Let the finished frames of an error drop their values, so that nothing stays on a device for its sake.

    Only frames of anyaccel and its plugins: whoever looks into a failed model or callback still finds everything. When
    memory has run out, all of them: what fills it lies in the frameworks' frames.
    """
    for frame in _frames(error, set()):
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if isinstance(error, MemoryError) or package == _OURS or package.startswith(f"{_OURS}_"):
            with contextlib.suppress(RuntimeError):  # it is still at work
                frame.clear()


def _frames(error: BaseException | None, seen: set[int]) -> Iterator[FrameType]:
    """Of the error, and of those that it followed."""
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next
    yield from _frames(error.__cause__, seen)
    yield from _frames(error.__context__, seen)
