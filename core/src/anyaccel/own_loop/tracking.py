"""Tracking: the values that a loop logs, in memory, as lines of JSON in a folder, and in installed trackers."""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anyaccel.extensions import extensions


class Tracking:
    """The values that one run has logged.

    A distribution with a tracker extends the point `loop_trackers` by a function of the folder. The function returns an
    object with `log(values, step)` and `close()`, or None if its tracking is off.

    Args:
        folder: Folder to write to; None stores the values in memory.
        writes: Whether this process writes.

    Attributes:
        history: The logged values, each with its step.
    """

    def __init__(self, folder: str | os.PathLike[str] | None, *, writes: bool) -> None:
        self.history: list[dict[str, Any]] = []
        self._folder = None if folder is None or not writes else Path(folder)
        self._trackers: list[Any] | None = None

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Record and write values."""
        self.history.append({"step": step, **values})
        if self._folder is None:
            return
        if self._trackers is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            offered = [make(self._folder) for make in extensions("loop_trackers")]
            self._trackers = [tracker for tracker in offered if tracker is not None]
            self._closing = weakref.finalize(self, _close, self._trackers)  # with the loop, or at the end of Python
        with (self._folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")
        for tracker in self._trackers:
            tracker.log(values, step)

    def close(self) -> None:
        """Let trackers write their values."""
        if self._trackers is not None:
            self._closing()
        self._trackers = None


def _close(trackers: Sequence[Any]) -> None:
    for tracker in trackers:
        tracker.close()
