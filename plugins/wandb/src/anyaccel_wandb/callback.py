"""WandbLogger: tracks one phase, or one experiment, as a callback."""

from __future__ import annotations

from collections.abc import Sequence

from anyaccel.call_hints import constructor_hints
from anyaccel.phases import TrackerCallback
from anyaccel_wandb import NAME, Project, WandbRun, project_of


@constructor_hints
class WandbLogger(TrackerCallback):
    """Log the phases that have this callback to Weights & Biases.

    Args:
        project: Name of the project; None for the default of W&B (`WANDB_PROJECT`, or the open run).
        entity: User or team.
        name: Name of the run; by default the label of the phase.
        group: Group of the run; by default the label of the experiment.
        tags: Tags of the run.
        mode: `"online"`, `"offline"` or `"disabled"`; by default the value of `WANDB_MODE`.
        log_model: Whether to log the trained graph of a TrainPhase as an artifact.

    Raises:
        ConfigError: `project` is not a name.
        PhaseError: When a phase begins: W&B cannot start a run.
    """

    def __init__(
        self,
        project: str | None = None,
        *,
        entity: str | None = None,
        name: str | None = None,
        group: str | None = None,
        tags: Sequence[str] = (),
        mode: str | None = None,
        log_model: bool = False,
    ) -> None:
        settings = {"entity": entity, "name": name, "group": group, "tags": [*tags] or None, "mode": mode}
        arguments = {key: value for key, value in settings.items() if value is not None}
        named = None if project is None else project_of(project, "WandbLogger").name
        super().__init__(WandbRun, NAME, Project(named, arguments, log_model))

    def __repr__(self) -> str:
        return f"WandbLogger(project={self._target.name!r})"
