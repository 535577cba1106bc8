"""How results tell themselves: as plain data, and in a line of text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from anyaccel.phases.events import Event
from anyaccel.results.frames import is_part


def finite(figures: Mapping[str, float]) -> dict[str, float | None]:
    """Figures for JSON, which has no NaN: what is not finite is None."""
    return {name: value if math.isfinite(value) else None for name, value in figures.items()}


def when(number: int | None, started: datetime | None, seconds: float) -> dict[str, Any]:
    """The place of a run in its history, when it began and how long it took."""
    return {
        "number": number,
        "started": started.isoformat() if started is not None else None,
        **finite({"seconds": seconds}),
    }


def told(error: BaseException | None) -> str | None:
    """What ended a run, in words."""
    return None if error is None else f"{type(error).__name__}: {error}"


def shown(figures: Mapping[str, float]) -> str:
    """The figures that sum up, for a line of text."""
    return "".join(f", {name} {value:.4g}" for name, value in figures.items() if not is_part(name))


def ended(error: BaseException | None, events: Sequence[Event] = ()) -> str:
    """How often memory was short, and what ended a run, for the end of a line of text.

    What else was decided is not told there: it is in every run.
    """
    count = sum(event.what == "memory" for event in events)
    short = f", {count:,} times short of memory" if count > 1 else ", once short of memory" if count else ""
    return f"{short}, ended by {type(error).__name__}" if error is not None else short
