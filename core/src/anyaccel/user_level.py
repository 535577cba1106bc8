"""User level: the position in the stack of the code that runs a phase; warnings point there."""

from __future__ import annotations

import inspect


def user_level() -> int:
    """Return the `stacklevel` of a warning, given by the caller, at the code that runs the phase."""
    level, frame = 0, inspect.currentframe()
    ours = ("anyaccel.", "anyaccel_")  # core, and the packages of its plugins
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith(ours):
        level, frame = level + 1, frame.f_back
    return level
