"""AnyaccelPruningCallback: reports the epochs of a phase to a trial of Optuna, and ends a trial that is pruned."""

from __future__ import annotations

from typing import Any

from anyaccel import arguments
from anyaccel.arguments import shown
from anyaccel.call_hints import constructor_hints
from anyaccel.errors import PhaseError
from anyaccel.launched import launched
from anyaccel.metrics import is_higher_better
from anyaccel.phases import Callback
from anyaccel.phases.callbacks import monitored_value

_WHERE = "AnyaccelPruningCallback: "
_REASON = "pruned by Optuna"


@constructor_hints
class AnyaccelPruningCallback(Callback):
    """Report a value of each epoch to a trial, and raise `optuna.TrialPruned` if the study's pruner ends the trial.

    The run stops after the epoch and ends without an error: checkpoints are written, trackers are closed, devices are
    released. Then `TrialPruned` leaves `run_phase` or `aa.fit`, and Optuna records the trial as pruned.

    Several training phases of one trial can share the callback; their epochs are counted on.

    Args:
        trial: The trial that Optuna passes to the objective.
        monitor: Name of a value of an epoch: `loss`, `loss.LABEL`, `val_loss`, `val_METRIC`, ...

    Raises:
        PhaseError: `trial` is not a trial; its study has several objectives, or the direction in which `monitor` gets
            worse; or several processes train the trial, and each would decide alone.

    Example:
        >>> import optuna
        >>> import anyaccel as aa
        >>> from anyaccel_optuna import AnyaccelPruningCallback
        >>> def objective(trial):
        ...     lr = trial.suggest_float("lr", 1e-4, 1e-1, log=True)
        ...     fit = aa.fit(
        ...         aa.SequentialMLP(),
        ...         data,
        ...         loss="mse",
        ...         validation=0.2,
        ...         optimizer=aa.Optimizer("adam", lr=lr),
        ...         callbacks=[AnyaccelPruningCallback(trial, "val_loss")],
        ...     )
        ...     return min(fit.results.figure("val_loss"))
    """

    def __init__(self, trial: Any, monitor: str = "val_loss") -> None:
        self.monitor = arguments.text(PhaseError, _WHERE, "monitor", monitor, "the name of a value", "'val_loss'")
        _check(trial, monitor)
        self.trial = trial
        self._pruned_by = ""
        self._n_epochs = 0

    def epoch_end(self, run: Any) -> None:
        """Report the value of the epoch, and stop the run if the trial is to be pruned."""
        value = monitored_value("AnyaccelPruningCallback", self.monitor, run)
        if value is None:  # of a validation that did not run after this epoch
            return
        self.trial.report(value, self._n_epochs + run.epoch)
        if self.trial.should_prune():
            self._pruned_by = f"{self.monitor} was {value:.6g} in epoch {self._n_epochs + run.epoch + 1}"
            run.stop(_REASON)

    def phase_end(self, phase: Any, plan: Any, run: Any, error: BaseException | None) -> None:
        """Raise `optuna.TrialPruned` if the trial was pruned.

        A run that is resumed after it was pruned has the reason in its checkpoint, and stops again.

        Raises:
            TrialPruned: The trial was pruned, and the run has ended without an error.
        """
        self._n_epochs += len(run.history)
        if error is None and (self._pruned_by or run.stop_reason == _REASON):
            from optuna import TrialPruned

            raise TrialPruned(self._pruned_by or _REASON)


def _check(trial: Any, monitor: str) -> None:
    """Raise PhaseError if a callback cannot prune this trial by this value."""
    if not all(callable(getattr(trial, name, None)) for name in ("report", "should_prune")):
        problem = f"{_WHERE}{shown(trial)} is not a trial"
        raise PhaseError(problem, hint="pass the argument of the objective: def objective(trial)")
    directions = [direction.name.lower() for direction in getattr(getattr(trial, "study", None), "directions", ())]
    if len(directions) > 1:
        raise PhaseError(
            f"{_WHERE}the study has {len(directions)} objectives, and Optuna prunes studies with one only",
            hint="leave the callback out, or create the study with direction='minimize'",
        )
    higher = is_higher_better(monitor)
    better = None if higher is None else "maximize" if higher else "minimize"
    if directions and better and directions != [better]:
        raise PhaseError(
            f"{_WHERE}the study is to {directions[0]}, and the pruner would stop the trials with the best {monitor!r}",
            hint=f"create the study with direction={better!r}, or monitor the value that the objective returns",
        )
    place = launched()
    if place is None:
        return
    from optuna.trial import Trial

    if isinstance(trial, Trial):
        raise PhaseError(
            f"{_WHERE}{place.size} processes train this trial, and each would decide alone whether it ends",
            hint="let the first process decide: optuna_integration.TorchDistributedTrial(trial)",
        )
