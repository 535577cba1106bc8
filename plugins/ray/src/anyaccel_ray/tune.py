"""TuneReportCallback: reports the epochs of a phase to Ray Tune, with a folder of the trained graph."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anyaccel.arguments import flag, shown
from anyaccel.call_hints import constructor_hints
from anyaccel.errors import PhaseError
from anyaccel.phases import Callback
from anyaccel.phases.callbacks import monitored_value

_WHERE = "TuneReportCallback: "


@constructor_hints
class TuneReportCallback(Callback):
    """Report the values of each epoch to Ray Tune, with a checkpoint of the graph.

    Use it in the function that `ray.tune.Tuner` runs. Schedulers such as `ASHAScheduler` then end trials early. Load a
    checkpoint with `anyaccel.ModelGraph.load(folder)`, or continue from it with `graph.load_state`.

    Args:
        metrics: Names of values to report; or a mapping from a name in Tune to a name of an epoch, such as
            `{"error": "val_loss"}`. By default all values: `loss`, `val_loss`, `val_accuracy`, ...
        save_checkpoints: Whether to save the graph after each epoch, with weights and optimizer state. Limit the number
            that Tune keeps with `ray.tune.CheckpointConfig(num_to_keep=...)`.

    Raises:
        PhaseError: `metrics` does not consist of names; when an epoch ends, the phase has no such value.

    Example:
        >>> import anyaccel as aa
        >>> from anyaccel_ray import TuneReportCallback
        >>> def train(config):
        ...     aa.fit(
        ...         aa.SequentialMLP(hidden_dim=config["hidden_dim"]),
        ...         data,
        ...         loss="mse",
        ...         validation=0.2,
        ...         callbacks=[TuneReportCallback()],
        ...     )
    """

    def __init__(
        self, metrics: str | Sequence[str] | Mapping[str, str] | None = None, *, save_checkpoints: bool = True
    ) -> None:
        names = [metrics] if isinstance(metrics, str) else metrics
        self.metrics = names if names is None or isinstance(names, Mapping) else {name: name for name in _listed(names)}
        texts = [*self.metrics.items()] if self.metrics is not None else []
        if not all(isinstance(text, str) for pair in texts for text in pair):
            raise _no_names(metrics)
        self.save_checkpoints = flag(PhaseError, _WHERE, "save_checkpoints", save_checkpoints)

    def epoch_end(self, run: Any) -> None:
        """Report the epoch, and wait until Tune has stored it; Tune may end the trial here."""
        from ray import tune

        if not run.is_main_process:
            return
        figures = run.history[-1].figures
        if self.metrics is not None:
            values = {key: monitored_value("TuneReportCallback", name, run) for key, name in self.metrics.items()}
            figures = {key: value for key, value in values.items() if value is not None}
        if not self.save_checkpoints:
            tune.report(dict(figures))
            return
        with tempfile.TemporaryDirectory() as folder:
            run.graph.save(Path(folder, "graph"))
            tune.report(dict(figures), checkpoint=tune.Checkpoint.from_directory(str(Path(folder, "graph"))))


def _listed(names: Any) -> list[Any]:
    """Return the names as a list.

    Raises:
        PhaseError: They are not a list or tuple.
    """
    if not isinstance(names, (list, tuple)):
        raise _no_names(names)
    return [*names]


def _no_names(metrics: Any) -> PhaseError:
    problem = f"{_WHERE}metrics={shown(metrics)} does not consist of names"
    return PhaseError(problem, hint="write metrics=['val_loss'], or leave it out to report all values")
