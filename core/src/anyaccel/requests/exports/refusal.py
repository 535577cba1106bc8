"""Refusal: the error for a wish that a scheduler has no words for."""

from __future__ import annotations

from anyaccel.errors import ConfigError
from anyaccel.requests.entry import RequestEntry


def refused(entry: RequestEntry, scheduler: str, why: str, available: str = "", hint: str = "") -> ConfigError:
    """The error: a scheduler cannot be asked for a wish."""
    problem = f"{scheduler} cannot be asked for {str(entry)!r}: {why}"
    return ConfigError(problem, available=available, hint=hint or "leave this wish out of the request that is exported")
