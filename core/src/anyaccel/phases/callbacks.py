"""Callbacks: the moments of one phase, for code that is no plugin."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from anyaccel.errors import PhaseError
from anyaccel.suggestions import did_you_mean

if TYPE_CHECKING:
    from anyaccel.graph.plan import Plan
    from anyaccel.phases.phase import Phase
    from anyaccel.phases.run import Run


class Callback:
    """Derive from this and write the moments you want; they are those of `anyaccel.hookspecs`, after the plugins'.

    A method may leave out arguments that it does not want: `def phase_end(self, error)`.
    """

    def phase_start(self, phase: Phase, run: Run) -> None:
        """The phase begins."""

    def before_placement(self, phase: Phase, plan: Plan, run: Run) -> None:
        """The plan is made; nothing has moved."""

    def after_placement(self, phase: Phase, plan: Plan, run: Run) -> None:
        """Every model is where the plan says."""

    def after_loading(self, phase: Phase, plan: Plan, run: Run) -> None:
        """The data are where the plan says."""

    def epoch_start(self, run: Run) -> None:
        """An epoch begins."""

    def step_end(self, run: Run) -> None:
        """A step is done. Writing this makes every step a call of its own."""

    def epoch_end(self, run: Run) -> None:
        """An epoch is done; `run.history[-1]` has its losses."""

    def phase_end(self, phase: Phase, plan: Plan | None, run: Run, error: BaseException | None) -> None:
        """The phase has ended, well or not."""


class EarlyStopping(Callback):
    """Stop when a figure has not become better for some epochs.

    Args:
        monitor: name of a figure of an epoch: `loss`, `loss.LABEL`, `val_loss`, `val_METRIC`, ...
        patience: epochs without a better figure after which the run stops.
        min_delta: by how much it must be better to count.
        mode: `"min"` or `"max"`.
        restore_best: go back to the parameters and optimizer state of the best epoch when the run stops or ends well.

    `best` is the best figure so far, NaN before there is one, and `best_epoch` its epoch within the run, or -1.

    Raises:
        PhaseError: a setting out of range; or, when the first epoch ends, a figure that there is not.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        *,
        patience: int = 5,
        min_delta: float = 0.0,
        mode: str = "min",
        restore_best: bool = False,
    ) -> None:
        if mode not in ("min", "max"):
            raise PhaseError(f"EarlyStopping: mode={mode!r}", available="'min' and 'max'")
        if not (patience >= 1 and min_delta >= 0):
            raise PhaseError(
                f"EarlyStopping: patience={patience!r} and min_delta={min_delta!r}",
                available="patience from 1, min_delta from 0",
            )
        self.monitor = monitor
        self.patience = patience
        self.min_delta = min_delta
        self.sign = 1.0 if mode == "min" else -1.0
        self.restore_best = restore_best
        self._forget()

    def _forget(self) -> None:
        self.best, self.best_epoch, self.waited = math.nan, -1, 0

    def after_loading(self, phase: Phase, plan: Plan, run: Run) -> None:
        """Begin anew with every phase."""
        self._forget()

    def epoch_end(self, run: Run) -> None:
        """Look at the figure, and stop the run if it is time."""
        figures = run.history[-1].figures
        if self.monitor not in figures:
            if run.phase.validation is not None and self.monitor.startswith("val_") and not run.history[-1].validated:
                return
            raise self._no_figure(run, figures)
        if self._is_better(figures[self.monitor]):
            self.best, self.best_epoch, self.waited = figures[self.monitor], run.epoch, 0
            if self.restore_best:
                run.return_to(run.snapshot())
            return
        self.waited += 1
        if self.waited >= self.patience:
            now = ", and is not a number (NaN) now" if math.isnan(figures[self.monitor]) else ""
            run.stop(f"{self.monitor} has not become better for {self.patience} epochs{now}")

    def _no_figure(self, run: Run, figures: Mapping[str, float]) -> PhaseError:
        otherwise = "monitor one of these, or give the validation a metric"
        remedy = did_you_mean(self.monitor, figures, otherwise, cutoff=0.75)
        if self.monitor.startswith("val_") and run.phase.validation is None:
            remedy = "give the phase a validation: TrainPhase(validation='SPLIT'), or an EvalPhase with metrics"
        return PhaseError(
            f"EarlyStopping watches {self.monitor!r}, which an epoch of {run.phase.label!r} does not have",
            available=", ".join(figures),
            hint=remedy,
        )

    def _is_better(self, value: float) -> bool:
        if math.isnan(self.best):
            return not math.isnan(value)
        return self.sign * value < self.sign * self.best - self.min_delta
