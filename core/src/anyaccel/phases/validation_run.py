"""Validation of a training: an evaluation after epochs."""

from __future__ import annotations

from dataclasses import replace

from anyaccel.phases.evaluation import Evaluation
from anyaccel.phases.loop_extension import LoopExtension
from anyaccel.phases.non_finite_losses import NonFiniteLosses
from anyaccel.phases.progress import Progress
from anyaccel.phases.run import Run


class Validation(LoopExtension):
    """Evaluates after every so many epochs, and after the last; an epoch is complete, whatever comes of this.

    Args:
        run: has its values in the record of the epoch.
        evaluation: what is computed.
        non_finite: looks at its losses.
        progress: is told that it runs.
    """

    def __init__(self, run: Run, evaluation: Evaluation, non_finite: NonFiniteLosses, progress: Progress) -> None:
        self._run, self._evaluation, self._non_finite, self._progress = run, evaluation, non_finite, progress

    def epoch_ends(self) -> None:
        run, n_done = self._run, self._run.epoch + 1
        if n_done % run.phase.validate_every and n_done < run.phase.n_epochs:
            return
        self._progress.doing("validating")
        values = self._evaluation.run().named
        run.history[-1] = replace(run.history[-1], validation=values)
        self._non_finite.validation(values)
        self._progress.doing("")
