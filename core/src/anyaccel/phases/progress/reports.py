"""Progress reports: what a training loop tells a Progress."""

from __future__ import annotations

from anyaccel.phases.checkpointing.position import Position
from anyaccel.phases.executor.stage import Losses
from anyaccel.phases.loading.loader import LoadedRows
from anyaccel.phases.loop_extension import Call, LoopExtension
from anyaccel.phases.progress.base import Progress
from anyaccel.phases.run import Run


class ProgressReports(LoopExtension):
    """Tells how far a training is.

    Args:
        run: the training.
        progress: is told.
        rows: of it.
        begins: where it begins.
    """

    def __init__(self, run: Run, progress: Progress, rows: LoadedRows, begins: Position) -> None:
        self._run, self._progress, self._rows, self._begins = run, progress, rows, begins

    def run_begins(self) -> None:
        """Tell of what an earlier run has done, too."""
        self._progress.start(self._run.phase.label, self._run.phase.n_epochs, self._rows.loader.n_steps)
        for epoch in self._begins.history:
            self._progress.advance(epoch.steps)
            self._progress.epoch(epoch.figures)
        if self._begins.step:
            self._progress.advance(self._begins.step)

    def call_done(self, call: Call, first: int, step_losses: list[Losses]) -> None:
        if not call.n_counted:
            self._progress.advance(call.n_steps)

    def went_back(self, n_steps: int) -> None:
        self._progress.advance(-n_steps)

    def epoch_ends(self) -> None:
        self._progress.epoch(self._run.history[-1].figures)

    def ended(self) -> None:
        self._progress.stop()
