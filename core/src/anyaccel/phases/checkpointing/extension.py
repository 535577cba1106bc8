"""Checkpoints in the training loop: a run goes on where an earlier one was, and writes where it is."""

from __future__ import annotations

from collections.abc import Mapping

from anyaccel.phases.checkpointing.checkpointer import Checkpointer
from anyaccel.phases.checkpointing.position import Position
from anyaccel.phases.executor.pipeline import Pipeline
from anyaccel.phases.loading.loader import LoadedRows
from anyaccel.phases.loop_extension import UNLIMITED, Call, CallInProgress, LoopExtension
from anyaccel.phases.loss_accumulator import LossAccumulator
from anyaccel.phases.run import Run


class CheckpointWrites(LoopExtension):
    """Writes checkpoints when they are due, at the end, and after an error.

    Args:
        run: its position.
        checkpointer: writes them.
        pipeline: the programs, of whose random streams a checkpoint within an epoch has the states.
        rows: of which a checkpoint tells where their source is.
        in_progress: says after an error whether values are those of whole steps.

    Attributes:
        awaits_rest: whether values are those within an epoch whose other steps have not begun. What it began with is
            already written.
    """

    def __init__(
        self, run: Run, checkpointer: Checkpointer, pipeline: Pipeline, rows: LoadedRows, in_progress: CallInProgress
    ) -> None:
        self._run, self._checkpointer, self._pipeline = run, checkpointer, pipeline
        self._rows, self._in_progress = rows, in_progress
        self._losses: LossAccumulator | None = None  # of the epoch that is running
        self.awaits_rest = False

    def run_begins(self) -> None:
        self._rows.loader.keep_positions()

    def steps_begin(self, losses: LossAccumulator) -> None:
        self._losses, self.awaits_rest = losses, False

    def most_steps(self, call: Call) -> int:
        return self._checkpointer.steps_until_due(self._run.step) or UNLIMITED

    def after_call(self, losses: LossAccumulator) -> None:
        self._checkpointer.after_step(self._pipeline, losses, self._rows.loader)

    def steps_end(self, losses: LossAccumulator, means: Mapping[str, float]) -> None:
        self._checkpointer.epoch_ends()

    def epoch_ends(self) -> None:
        self._losses = None
        self._checkpointer.after_epoch(self._rows.loader)

    def run_ends(self) -> None:
        self._checkpointer.end(self._rows.loader)

    def run_fails(self, error: BaseException) -> None:
        """Write where the run is, if the values are those of whole steps."""
        if not self._in_progress.is_whole or self.awaits_rest:
            return
        try:
            self._checkpointer.after_error(self._pipeline, self._losses, self._rows.loader)
        except Exception as failure:
            error.add_note(f"the last checkpoint could not be written: {type(failure).__name__}: {failure}")


class Resumption(LoopExtension):
    """Lets a run go on where an earlier one was.

    Args:
        run: has no epochs yet.
        resumed: where that was.
        writes: of this run; they are of the whole epoch with which it begins.
        checkpointer, pipeline, rows: see `CheckpointWrites`.
    """

    def __init__(
        self,
        run: Run,
        resumed: Position,
        writes: CheckpointWrites,
        checkpointer: Checkpointer,
        pipeline: Pipeline,
        rows: LoadedRows,
    ) -> None:
        self._run, self._resumed, self._writes = run, resumed, writes
        self._checkpointer, self._pipeline, self._rows = checkpointer, pipeline, rows
        self._is_over = False

    def run_begins(self) -> None:
        self._rows.loader.keep_positions()
        self._checkpointer.restore_run()
        self._checkpointer.restore_source(self._rows.loader)
        self._run.step = self._resumed.step
        self._writes.awaits_rest = self._resumed.step > 0

    def steps_begin(self, losses: LossAccumulator) -> None:
        """Of the first epoch alone: add to what was counted, and go on with random streams."""
        if self._is_over:
            return
        self._is_over = True
        losses.go_on_after(self._resumed.losses)
        self._writes.steps_begin(losses)
        self._checkpointer.restore_random(self._pipeline)
