"""Loss scale report: restore the scale of an earlier run, and report skipped steps."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from anyaccel.errors import NaNWarning
from anyaccel.phases.executor.cross_segment import LossScaling
from anyaccel.phases.loop_extension import LoopExtension
from anyaccel.phases.loss_accumulator import LossAccumulator
from anyaccel.phases.run import Run
from anyaccel.precision import LossScaleState
from anyaccel.printable import printable
from anyaccel.user_level import user_level


class LossScaleReport(LoopExtension):
    """Count the steps whose scaled gradients were not finite, epoch by epoch.

    Args:
        run: The run, which receives the reports.
        scaling: Loss scales of all programs.
        resumed: Position of an earlier run; None if this one starts from scratch, or losses were not scaled.
    """

    def __init__(self, run: Run, scaling: LossScaling, resumed: LossScaleState | None) -> None:
        self._run, self._scaling, self._resumed = run, scaling, resumed
        self._skipped_before = self._n_skipped = 0

    def run_begins(self) -> None:
        if self._resumed is not None:
            self._scaling.load(self._resumed)

    def steps_begin(self, losses: LossAccumulator) -> None:
        self._skipped_before = self._scaling.state.skipped

    def steps_end(self, losses: LossAccumulator, means: Mapping[str, float]) -> None:
        n_skipped = self._scaling.state.skipped - self._skipped_before
        if n_skipped > 0:
            self._n_skipped += n_skipped
            self._run.log_event(
                "precision",
                f"{n_skipped} of {self._run.step} steps were skipped because gradients were not finite; "
                f"losses are now scaled by {self._scaling.scale:g}",
            )

    def run_ends(self) -> None:
        """Warn where all steps were skipped."""
        n_steps = sum(epoch.steps for epoch in self._run.history)
        if self._n_skipped < n_steps or not n_steps or self._run.phase.on_nan == "ignore":
            return
        label = self._run.phase.label
        problem = (
            f"phase {label!r}: all of its {n_steps} steps were skipped because gradients were not finite in float16"
        )
        hint = (
            "Hint: train for more steps, because each skipped step halves the scale, or set a "
            "smaller loss_scale=; if values exceed 65504, scale the data, or use precision='bf16-mixed', which has "
            "the range of float32"
        )
        warnings.warn(printable(f"{problem}: nothing was learned. {hint}"), NaNWarning, stacklevel=user_level())
