"""TensorBoard: logs one phase, or one experiment, as a callback."""

from __future__ import annotations

import os
from typing import Any

from anyaccel.call_hints import constructor_hints
from anyaccel.errors import PhaseError
from anyaccel.phases import TrackerCallback
from anyaccel_tensorboard.run_dirs import as_folder
from anyaccel_tensorboard.tracking import NAME, run_logger


@constructor_hints
class TensorBoard(TrackerCallback):
    """Log phases to TensorBoard: a phase whose callback this is, or all phases of `Experiment(..., callbacks=[...])`.

    Args:
        folder: Each run gets a new folder `EXPERIMENT/PHASE-N` in this one, as with `log_to`.
        every_n_steps: Also write the mean losses every `every_n_steps` steps of an epoch. They are written for many
            steps at once, which waits for the device. None, the default, writes no steps.

    Raises:
        ConfigError: `folder` is not a local folder.
        PhaseError: `every_n_steps` is not a positive int; or, when a phase begins, the folder cannot be written.
    """

    def __init__(self, folder: str | os.PathLike[str], *, every_n_steps: int | None = None) -> None:
        self.folder = as_folder(folder, "TensorBoard").absolute()
        super().__init__(run_logger, NAME, self.folder)
        self._every_n = every_n_steps
        if every_n_steps is None:
            return
        if not isinstance(every_n_steps, int) or isinstance(every_n_steps, bool) or every_n_steps < 1:
            raise PhaseError(f"TensorBoard: every_n_steps={every_n_steps!r} is not an int of at least 1")
        vars(self)["steps_done"] = self._steps  # not on the class: a callback that has it is called after steps

    def __repr__(self) -> str:
        steps = f", every_n_steps={self._every_n}" if self._every_n is not None else ""
        return f"TensorBoard({str(self.folder)!r}{steps})"

    def _steps(self, run: Any, steps: Any) -> None:
        self.trackers.call(run, lambda logger: logger.write_steps(steps, self._every_n or 1))
