"""The same for one phase, or one experiment, without the plugin."""

from __future__ import annotations

import os
from typing import Any

from anyaccel.errors import PhaseError
from anyaccel.phases import Callback
from anyaccel_tensorboard.run_dirs import checked
from anyaccel_tensorboard.run_logger import Tracker


class TensorBoard(Callback):
    """Logs the phases that it is a callback of; those of a whole experiment with `Experiment(..., callbacks=[...])`.

    Args:
        folder: where to; each run gets a folder of its own below it, as with `log_to`.
        every_n_steps: also write the losses of one step in so many, which makes each step a call of its own and waits
            for the device; None, the default, leaves the steps alone.

    Raises:
        ConfigError: `folder` is no folder of this machine.
        PhaseError: `every_n_steps` is no number of steps; and, when a phase begins, the folder cannot be written.
    """

    def __init__(self, folder: str | os.PathLike[str], *, every_n_steps: int | None = None) -> None:
        self.folder = checked(folder, "TensorBoard").absolute()
        self.every_n_steps = every_n_steps
        self._tracker = Tracker()
        if every_n_steps is None:
            return
        if not isinstance(every_n_steps, int) or isinstance(every_n_steps, bool) or every_n_steps < 1:
            raise PhaseError(f"TensorBoard: every_n_steps={every_n_steps!r} is not an int of at least 1")
        vars(self)["step_end"] = self._step  # on this object alone: whoever writes the method asks for every step

    def __repr__(self) -> str:
        steps = "" if self.every_n_steps is None else f", every_n_steps={self.every_n_steps}"
        return f"TensorBoard({str(self.folder)!r}{steps})"

    def phase_start(self, phase: Any, run: Any) -> None:
        """Open a file for the run."""
        self._tracker.start(run, self.folder)

    def before_placement(self, phase: Any, plan: Any, run: Any) -> None:
        """Write the plan and the graph."""
        self._tracker.planned(run)

    def _step(self, run: Any) -> None:
        self._tracker.step(run, self.every_n_steps or 1)

    def epoch_end(self, run: Any) -> None:
        """Write the figures of an epoch."""
        self._tracker.epoch(run)

    def phase_end(self, phase: Any, plan: Any, run: Any, error: BaseException | None) -> None:
        """Write what came of it, and close the file."""
        self._tracker.end(run, error)
