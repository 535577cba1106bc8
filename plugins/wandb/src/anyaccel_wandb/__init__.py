"""Weights & Biases for anyaccel: every phase becomes a run, or logs into the run that is open.

Tracking is off until you turn it on: with `ANYACCEL_WANDB=PROJECT` in the environment, with `log_to("PROJECT")`, or
with `WandbLogger(project="PROJECT")` among the callbacks of a phase or an experiment. `wandb` is imported when the
first tracked phase begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from anyaccel.call_hints import call_hints
from anyaccel.errors import ConfigError, PhaseError
from anyaccel.lazy_attributes import lazy_attributes
from anyaccel.trackers import Tracker, TrackerSwitch, TrackingScope, settings_of

if TYPE_CHECKING:
    from anyaccel_wandb.callback import WandbLogger as WandbLogger

__all__ = ["WandbLogger", "before_placement", "epoch_end", "log_to", "phase_end", "phase_start"]

NAME, VARIABLE = "Weights & Biases", "ANYACCEL_WANDB"


@dataclass(frozen=True)
class Project:
    """Project of the runs, and arguments of `wandb.init`."""

    name: str | None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    log_model: bool = False


class WandbRun(Tracker):
    """A phase in Weights & Biases; an open run (`wandb.run`) is used, and not closed."""

    def __init__(self, run: Any, target: Project) -> None:
        import wandb

        self.saves_model = target.log_model
        self._label = run.phase.label
        settings = settings_of(run)
        self._is_open = wandb.run is not None
        self._run = cast("Any", wandb.run)
        if self._is_open:
            self._run.config.update({self._label: settings}, allow_val_change=True)
        else:
            arguments = {
                "project": target.name,
                "group": run.experiment or run.graph.label,
                "name": self._label,
                "job_type": run.phase.kind,
                "config": settings,
                "reinit": "create_new",
                **target.arguments,
            }
            try:
                self._run = wandb.init(**arguments)
            except Exception as error:
                raise PhaseError(
                    f"phase {self._label!r} cannot be logged to Weights & Biases: {error}",
                    hint="log in with `wandb login`, or write to a local folder: WandbLogger(..., mode='offline')",
                ) from error
        self._defined: set[str] = set()

    def log_plan(self, plan: Any) -> None:
        """Add the plan to the configuration of the run."""
        name = f"{self._label}_plan" if self._is_open else "plan"
        self._run.config.update({name: plan.to_dict()}, allow_val_change=True)

    def log(self, figures: Mapping[str, float], step: int) -> None:
        """Log the figures of an epoch, with `epoch` as the x-axis."""
        log_by(self._run, self._defined, figures, "epoch", step)

    def log_model(self, folder: Path) -> None:
        """Log the saved graph as an artifact of the type `model`."""
        import wandb

        artifact = wandb.Artifact(f"{self._label}-{self._run.id}", type="model")
        artifact.add_dir(str(folder))
        self._run.log_artifact(artifact)

    def finish(self, error: BaseException | None) -> None:
        """Close the run, as failed after an error; a run that was open before stays open."""
        if self._is_open:
            return
        if error is not None:
            self._run.summary["error"] = f"{type(error).__name__}: {error}"
        self._run.finish(exit_code=0 if error is None else 1)


def project_of(name: Any, setting: str, **settings: Any) -> Project:
    """Return the project with this name.

    Raises:
        ConfigError: It is not a name.
    """
    if not isinstance(name, str) or not name.strip():
        raise ConfigError(f"{setting}: {name!r} is not the name of a project", hint="write the name, such as 'digits'")
    return Project(name.strip(), **settings)


switch = TrackerSwitch(__name__, NAME, WandbRun, VARIABLE, project_of, "WandbLogger(PROJECT)")
phase_start, before_placement, epoch_end, phase_end = switch.phase_start, switch.plan, switch.epoch, switch.end


@call_hints
def log_to(project: str | None, *, log_model: bool = False) -> TrackingScope:
    """Track every phase that begins from now on in this process; as a context manager, those that begin in the block.

    Args:
        project: Name of the project. None turns tracking off, regardless of the environment.
        log_model: Whether to log the trained graph of each TrainPhase as an artifact.

    Raises:
        ConfigError: `project` is not a name.
        PluginError: The plugin is not loaded, so that no phase would be tracked.
    """
    return switch.log_to(project, log_model=log_model)


def log_by(run: Any, defined: set[str], figures: Mapping[str, float], axis: str, step: int) -> None:
    """Log numbers over an axis that is not W&B's step, which may only grow: a second phase begins at epoch 0 again."""
    for name in figures.keys() - defined:
        run.define_metric(name, step_metric=axis, step_sync=False)
        defined.add(name)
    run.log({**figures, axis: step})


class LoopRun:
    """The values that an `anyaccel.Loop` with a log folder logs, in the open run or in a new one."""

    def __init__(self, run: Any, *, closes: bool) -> None:
        self._run, self._closes = run, closes
        self._defined: set[str] = set()

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log numbers of one step by name."""
        log_by(self._run, self._defined, values, "step", step)

    def close(self) -> None:
        """Close the run, unless it was open before."""
        if self._closes:
            self._run.finish()


def loop_tracker(folder: Path) -> LoopRun | None:
    """Return a tracker for the values that a loop logs, or None where tracking is off."""
    target = switch.target()
    if target is None:
        return None
    import wandb

    is_open = wandb.run is not None
    run = wandb.run if is_open else wandb.init(project=target.name, name=folder.name, reinit="create_new")
    return LoopRun(run, closes=not is_open)


__getattr__, __dir__ = lazy_attributes(__name__, {"WandbLogger": ".callback"})
