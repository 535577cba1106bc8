"""The runs that are being logged, each with its file, from the start of its phase to the end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyaccel.errors import PhaseError

if TYPE_CHECKING:
    from anyaccel_tensorboard.log import Log


class Tracker:
    """Hears the moments of any number of runs, at once too; of those that it was not told to start it does nothing."""

    def __init__(self) -> None:
        self._logs: dict[Any, Log] = {}

    def start(self, run: Any, folder: Path) -> None:
        """Open a file for a run below `folder`, and write its settings.

        Raises:
            PhaseError: the folder cannot be written; the run is being logged by this tracker already.
        """
        from anyaccel_tensorboard.log import Log  # imports TensorBoard

        if run in self._logs:
            raise PhaseError(
                f"phase {run.phase.label!r} has one TensorBoard callback twice",
                remedy="give it to the experiment or to the phase, not to both",
            )
        self._logs[run] = log = Log(run, folder)
        log.settings()

    def planned(self, run: Any) -> None:
        """The plan is made."""
        if run in self._logs:
            self._logs[run].plan()

    def step(self, run: Any, every: int) -> None:
        """A step is done, and one in `every` is written."""
        if run in self._logs:
            self._logs[run].step(every)

    def epoch(self, run: Any) -> None:
        """An epoch is done."""
        if run in self._logs:
            self._logs[run].epoch()

    def end(self, run: Any, error: BaseException | None) -> None:
        """The phase has ended; its file is closed."""
        log = self._logs.pop(run, None)
        if log is not None:
            log.end(error)
