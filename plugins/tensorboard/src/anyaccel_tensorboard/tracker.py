"""RunTracker: which runs are being logged, and where the calls of their hooks go."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyaccel.errors import PhaseError

if TYPE_CHECKING:
    from anyaccel_tensorboard.run_logger import RunLogger


class RunTracker:
    """Pass hook calls on to the loggers of any number of runs, also at the same time; runs not started here are
    ignored.

    Importing this module imports no TensorBoard.
    """

    def __init__(self) -> None:
        self._loggers: dict[Any, RunLogger] = {}

    def start(self, run: Any, folder: Path) -> None:
        """Open an event file for a run below `folder`, and write its settings; of several replicas the first alone.

        Raises:
            PhaseError: the folder cannot be written, or this tracker logs the run already.
        """
        if not run.is_main_process:
            return
        from anyaccel_tensorboard.run_logger import RunLogger

        if run in self._loggers:
            raise PhaseError(
                f"phase {run.phase.label!r} has the same TensorBoard callback twice",
                hint="give it to the experiment or to the phase, not to both",
            )
        self._loggers[run] = logger = RunLogger(run, folder)
        logger.write_settings()

    def write_plan(self, run: Any) -> None:
        """Write the plan and the graph, once there is a plan."""
        if run in self._loggers:
            self._loggers[run].write_plan()

    def write_steps(self, run: Any, steps: Any, every_n: int) -> None:
        """Write the mean losses of every so many steps."""
        if run in self._loggers:
            self._loggers[run].write_steps(steps, every_n)

    def write_epoch(self, run: Any) -> None:
        """Write the figures of an epoch."""
        if run in self._loggers:
            self._loggers[run].write_epoch()

    def end(self, run: Any, error: BaseException | None) -> None:
        """Write the outcome of a phase, and close its file."""
        logger = self._loggers.pop(run, None)
        if logger is not None:
            logger.end(error)
