"""MLflow for anyaccel: every phase becomes a run, or logs into the active run; models for `mlflow models serve`.

Tracking is off until you turn it on: with `anyaccel_mlflow.autolog()`, with `ANYACCEL_MLFLOW=EXPERIMENT` in the
environment, with `log_to("EXPERIMENT")`, or with `MLflowLogger("EXPERIMENT")` among the callbacks of a phase or an
experiment. `MLFLOW_TRACKING_URI` and `mlflow.set_tracking_uri` work as always. `mlflow` is imported when the first
tracked phase begins.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyaccel.call_hints import call_hints
from anyaccel.errors import ConfigError, PhaseError
from anyaccel.lazy_attributes import lazy_attributes
from anyaccel.trackers import Tracker, TrackerSwitch, TrackingScope, flat, settings_of

if TYPE_CHECKING:
    from anyaccel_mlflow.callback import MLflowLogger as MLflowLogger
    from anyaccel_mlflow.models import load_model as load_model
    from anyaccel_mlflow.models import log_model as log_model
    from anyaccel_mlflow.models import save_model as save_model

__all__ = [
    "MLflowLogger",
    "autolog",
    "before_placement",
    "epoch_end",
    "load_model",
    "log_model",
    "log_to",
    "phase_end",
    "phase_start",
    "save_model",
]

VARIABLE = "ANYACCEL_MLFLOW"
_LONGEST, _MOST = 6000, 100  # characters of a parameter, and parameters of a request, that MLflow's stores take


@dataclass(frozen=True)
class Target:
    """Experiment of the runs; without a name, MLflow's current experiment."""

    name: str | None
    log_model: bool = False


class MLflowRun(Tracker):
    """A phase in MLflow; an active run (`mlflow.active_run()`) is used, and not closed."""

    def __init__(self, run: Any, target: Target) -> None:
        import mlflow

        self.saves_model = target.log_model
        self._label, self._mlflow = named(run.phase.label), mlflow
        parameters = flat(settings_of(run))
        active = mlflow.active_run()
        self._is_active = active is not None
        try:
            self._client = mlflow.MlflowClient()
            self._id = active.info.run_id if active is not None else self._new(run, target.name)
            if self._is_active:  # a parameter is written once: each phase has names with its label
                parameters = {f"{self._label}.{name}": value for name, value in parameters.items()}
                there = self._client.get_run(self._id).data.params
                parameters = {name: value for name, value in parameters.items() if name not in there}
            entities = mlflow.entities
            params = [entities.Param(named(name), str(value)[:_LONGEST]) for name, value in parameters.items()]
            for first in range(0, len(params), _MOST):
                self._client.log_batch(self._id, params=params[first : first + _MOST])
        except Exception as error:
            cause = " ".join(str(error).split())  # of several lines, from a database
            raise PhaseError(
                f"phase {self._label!r} cannot be logged to MLflow at {mlflow.get_tracking_uri()!r}: {cause}",
                hint="set another store: mlflow.set_tracking_uri('sqlite:///mlflow.db')",
            ) from error

    def _new(self, run: Any, name: str | None) -> str:
        """Start a run in an experiment, which is created if it does not exist."""
        tags = {"anyaccel.experiment": run.experiment or run.graph.label, "anyaccel.kind": run.phase.kind}
        if name is None:
            return started(self._mlflow, self._label, tags)
        experiment = self._client.get_experiment_by_name(name)
        number = self._client.create_experiment(name) if experiment is None else experiment.experiment_id
        return str(self._client.create_run(number, tags=tags, run_name=self._label).info.run_id)

    def log_plan(self, plan: Any) -> None:
        """Log the plan as the text `LABEL-plan.txt`."""
        self._client.log_text(self._id, str(plan), f"{self._label}-plan.txt")

    def log(self, figures: Mapping[str, float], step: int) -> None:
        """Log the figures of an epoch in one request."""
        self._client.log_batch(self._id, metrics=metrics_of(self._mlflow, figures, step))

    def log_model(self, folder: Path) -> None:
        """Log the saved graph as artifacts in the folder `LABEL-graph`."""
        self._client.log_artifacts(self._id, str(folder), f"{self._label}-graph")

    def finish(self, error: BaseException | None) -> None:
        """Close the run, as failed after an error; a run that was active before stays active."""
        if error is not None:
            self._client.set_tag(self._id, f"{self._label}.error", f"{type(error).__name__}: {error}"[:_LONGEST])
        if not self._is_active:
            self._client.set_terminated(self._id, "FINISHED" if error is None else "FAILED")


def started(mlflow: Any, name: str, tags: Mapping[str, str]) -> str:
    """Start a run in MLflow's current experiment, and return its id; it is not the active run afterwards."""
    run_id = str(mlflow.start_run(run_name=name, tags=tags).info.run_id)
    mlflow.end_run("RUNNING")
    return run_id


def named(name: str) -> str:
    """Return a name that MLflow takes: letters, digits and ` _-.` stay, and other characters become `_`."""
    return "".join(character if character.isalnum() or character in " _-." else "_" for character in name)


def metrics_of(mlflow: Any, figures: Mapping[str, float], step: int) -> list[Any]:
    """Return numbers as metrics of MLflow."""
    now = int(time.time() * 1000)
    return [mlflow.entities.Metric(named(name), float(value), now, step) for name, value in figures.items()]


def target_of(name: Any, setting: str, **settings: Any) -> Target:
    """Return the experiment with this name.

    Raises:
        ConfigError: It is not a name.
    """
    if isinstance(name, Target):
        return name
    if not isinstance(name, str) or not name.strip():
        raise ConfigError(
            f"{setting}: {name!r} is not the name of an experiment", hint="write the name, such as 'digits'"
        )
    return Target(name.strip(), **settings)


switch = TrackerSwitch(__name__, "MLflow", MLflowRun, VARIABLE, target_of, "MLflowLogger(EXPERIMENT)")
phase_start, before_placement, epoch_end, phase_end = switch.phase_start, switch.plan, switch.epoch, switch.end


@call_hints
def log_to(experiment: str | None, *, log_model: bool = False) -> TrackingScope:
    """Track every phase that begins from now on in this process; as a context manager, those that begin in the block.

    Args:
        experiment: Name of the MLflow experiment. None turns tracking off, regardless of the environment.
        log_model: Whether to log the trained graph of each TrainPhase as artifacts.

    Raises:
        ConfigError: `experiment` is not a name.
        PluginError: The plugin is not loaded, so that no phase would be tracked.
    """
    return switch.log_to(experiment, log_model=log_model)


@call_hints
def autolog(*, log_models: bool = True, disable: bool = False) -> None:
    """Track every phase from now on in MLflow's current experiment, like `mlflow.sklearn.autolog()`.

    Args:
        log_models: Whether to log the trained graph of each TrainPhase as artifacts.
        disable: Turn tracking off.

    Raises:
        PluginError: The plugin is not loaded, so that no phase would be tracked.
    """
    switch.log_to(None if disable else Target(None, log_models))


class LoopRun:
    """The values that an `anyaccel.Loop` with a log folder logs, in the active run or in a new one."""

    def __init__(self, mlflow: Any, run_id: str, *, closes: bool) -> None:
        self._mlflow, self._client = mlflow, mlflow.MlflowClient()
        self._id, self._closes = run_id, closes

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log numbers of one step by name."""
        self._client.log_batch(self._id, metrics=metrics_of(self._mlflow, values, step))

    def close(self) -> None:
        """Close the run, unless it was active before."""
        if self._closes:
            self._client.set_terminated(self._id, "FINISHED")


def loop_tracker(folder: Path) -> LoopRun | None:
    """Return a tracker for the values that a loop logs, or None where tracking is off."""
    target = switch.target()
    if target is None:
        return None
    import mlflow

    if target.name is not None:
        mlflow.set_experiment(target.name)
    active = mlflow.active_run()
    run_id = started(mlflow, folder.name, {}) if active is None else active.info.run_id
    return LoopRun(mlflow, run_id, closes=active is None)


__getattr__, __dir__ = lazy_attributes(
    __name__, {"MLflowLogger": ".callback", **dict.fromkeys(("load_model", "log_model", "save_model"), ".models")}
)
