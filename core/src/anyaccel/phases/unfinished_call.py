"""Unfinished calls: what an error leaves that ends a call of programs, which takes several steps."""

from __future__ import annotations

from anyaccel import interrupts
from anyaccel.phases.executor.pipeline import Pipeline
from anyaccel.phases.loss_accumulator import LossAccumulator
from anyaccel.phases.oom_recovery import Snapshots
from anyaccel.phases.run import Run


class UnfinishedCall:
    """The steps of the call that is running, which the run has not counted yet.

    Args:
        run: counts steps.
        pipeline: the programs, which count the steps that they have done.
        snapshots: to go back to.

    Attributes:
        n_steps: of the call; 0 between calls.
        is_whole: whether values and records are those of whole steps.
        steps_before: steps of an earlier run, which the programs do not count.
    """

    def __init__(self, run: Run, pipeline: Pipeline, snapshots: Snapshots) -> None:
        self._run, self._pipeline, self._snapshots = run, pipeline, snapshots
        self.n_steps = 0
        self.is_whole = False
        self.steps_before = 0

    def settle(self, error: BaseException, losses: LossAccumulator) -> None:
        """Count the steps that were done before an error, or go back if one failed or may be done by half.

        Where the run went back, or could not, a note of the error says so.
        """
        rescued = self._snapshots.rescue(losses)
        if rescued is not None:
            self._run.step, self.n_steps = rescued, 0
            error.add_note(f"a step before it failed too: values are those after {rescued} steps of this epoch")
        if not self.n_steps:
            return
        try:
            if not interrupts.was_forced() and not self._pipeline.is_updating:
                self._run.step += min(max(self._steps_done(), 0), self.n_steps)
            elif (resumed := self._snapshots.restore(losses)) is not None:
                self._run.step = resumed
                error.add_note(f"a step was broken off: values are those after {self._run.step} steps of this epoch")
            else:
                self.is_whole = False
                error.add_note("a step was broken off, and there is no snapshot: values may be those of two steps")
        except Exception as failure:  # the error itself matters more
            self.is_whole = False
            error.add_note(f"the steps of the last call could not be counted: {type(failure).__name__}: {failure}")

    def _steps_done(self) -> int:
        """Steps that the programs have done and the run has not counted."""
        earlier = sum(epoch.steps for epoch in self._run.history) - self.steps_before
        return self._pipeline.count_steps() - earlier - self._run.step
