"""Non-finite losses: warns of the first loss of a run that is NaN or infinite, and stops the run if it should."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping

from anyaccel.errors import NaNWarning
from anyaccel.phases.loop_extension import LoopExtension
from anyaccel.phases.loss_accumulator import LossAccumulator
from anyaccel.phases.run import Run
from anyaccel.printable import printable
from anyaccel.user_level import user_level

_HINT = "lower lr, set clip_norm=1.0 of the Optimizer, or look for NaN in the data and in your own losses"


class NonFiniteLosses(LoopExtension):
    """Acts on NaN and infinite losses as `TrainPhase.on_nan` says; looks at whole epochs, on the host.

    Args:
        run: Run of a TrainPhase.
        warned: Whether a warning of NaN in the data was issued already.
    """

    def __init__(self, run: Run, *, warned: bool = False) -> None:
        self._run = run
        self._warned = warned
        self._nodes = {loss.label: loss.on for loss in run.phase.all_losses}

    def steps_end(self, losses: LossAccumulator, means: Mapping[str, float]) -> None:
        """Look at the losses of training: the first step that is not finite in each, or that nothing counted."""
        if all(map(math.isfinite, means.values())):
            return
        first = losses.first_not_finite()
        if first:
            step = min(step for step, _ in first.values())
            values = {label: value for label, (at, value) in first.items() if at == step}
            self._found(values, f"at step {step + 1} of epoch {self._run.epoch + 1}", hint=_HINT)
        elif losses.weightless:
            values = dict.fromkeys(losses.weightless, math.nan)
            where = f"in epoch {self._run.epoch + 1}, because nothing counts: all weights are 0"
            self._found(values, where, hint="look at sample_weight, mask, class_weights and ignore_index of the loss")

    def validation(self, values: Mapping[str, float]) -> None:
        """Check the losses among the values of a validation; metrics may be NaN."""
        losses = {label: values.get(f"loss.{label}", 0.0) for label in self._nodes}
        not_finite = {label: value for label, value in losses.items() if not math.isfinite(value)}
        if not_finite:
            self._found(not_finite, f"in the validation after epoch {self._run.epoch + 1}", hint=_HINT)

    def _found(self, values: Mapping[str, float], where: str, *, hint: str) -> None:
        on_nan = self._run.phase.on_nan
        named = [f"{self._name(label)} is {value}" for label, value in values.items()]
        problem = f"{' and '.join(named)} {where}"
        if on_nan == "stop":
            self._run.stop(problem)
        if on_nan != "ignore" and not self._warned:
            self._warned = True
            label = self._run.phase.label
            stop = (
                ""
                if on_nan == "stop"
                else "; on_nan='stop' ends the run when this happens, on_nan='ignore' silences this warning"
            )
            message = f"phase {label!r}: {problem}. Hint: {hint}{stop}"
            warnings.warn(printable(message), NaNWarning, stacklevel=user_level())

    def _name(self, label: str) -> str:
        node = self._nodes.get(label)
        return f"the figure {label!r} of your step" if node is None else f"loss {label!r} on node {node!r}"
