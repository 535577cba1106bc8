"""MLflowLogger: tracks one phase, or one experiment, as a callback."""

from __future__ import annotations

from anyaccel.call_hints import constructor_hints
from anyaccel.phases import TrackerCallback
from anyaccel_mlflow import MLflowRun, Target, target_of


@constructor_hints
class MLflowLogger(TrackerCallback):
    """Log the phases that have this callback to MLflow.

    Args:
        experiment: Name of the MLflow experiment; None for the current one.
        log_model: Whether to log the trained graph of a TrainPhase as artifacts.

    Raises:
        ConfigError: `experiment` is not a name.
        PhaseError: When a phase begins: the store cannot be reached.
    """

    def __init__(self, experiment: str | None = None, *, log_model: bool = False) -> None:
        target = Target(None, log_model) if experiment is None else target_of(experiment, "MLflowLogger")
        super().__init__(MLflowRun, "MLflow", Target(target.name, log_model))

    def __repr__(self) -> str:
        return f"MLflowLogger({self._target.name!r})"
