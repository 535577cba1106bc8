"""TrackerCallback: an experiment tracker as a callback of one phase, or of all phases of an experiment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anyaccel.phases.callbacks import Callback
from anyaccel.trackers import RunTrackers, Tracker


class TrackerCallback(Callback):
    """A tracker as a callback of one phase, or of all phases of an experiment.

    Args:
        make: See `RunTrackers`.
        name: Name of the tracker, for messages.
        target: Target, passed to `make`.

    Attributes:
        trackers: The trackers of the runs that are in progress.
    """

    def __init__(self, make: Callable[[Any, Any], Tracker], name: str, target: Any) -> None:
        self.trackers, self._target = RunTrackers(make, name), target

    def phase_start(self, phase: Any, run: Any) -> None:
        """Open the run."""
        self.trackers.start(run, self._target)

    def before_placement(self, phase: Any, plan: Any, run: Any) -> None:
        """Log the plan."""
        self.trackers.plan(run)

    def epoch_end(self, run: Any) -> None:
        """Log the figures of an epoch."""
        self.trackers.epoch(run)

    def phase_end(self, phase: Any, plan: Any, run: Any, error: BaseException | None) -> None:
        """Log the outcome, and close the run."""
        self.trackers.end(run, error)
