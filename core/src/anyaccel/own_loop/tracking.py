"""Tracking: the values that a loop logs, in memory and in a folder: as lines of JSON, and by installed trackers."""

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

    A distribution that has a tracker extends the point `loop_trackers` by a function that is given the folder, and
    returns an object with `log(values, step)` and `close()`, or None where its tracking is off.

    Args:
        folder: where to write; None keeps values in memory.
        writes: whether this process writes.

    Attributes:
        history: what was logged, each with its step.
    """

    def __init__(self, folder: str | os.PathLike[str] | None, *, writes: bool) -> None:
        self.history: list[dict[str, Any]] = []
        self._folder = None if folder is None or not writes else Path(folder)
        self._trackers: list[Any] | None = None

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Keep and write values."""
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
        """Let trackers write what they hold."""
        if self._trackers is not None:
            self._closing()
        self._trackers = None


def _close(trackers: Sequence[Any]) -> None:
    for tracker in trackers:
        tracker.close()
