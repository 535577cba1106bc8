"""RunLogger: writes a run to its event file: texts when it begins, figures after each epoch, the outcome at the end."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from anyaccel.errors import PhaseError
from anyaccel_tensorboard import text_summaries
from anyaccel_tensorboard.device_stats import NvidiaStats, nvidia_stats, speed_and_memory
from anyaccel_tensorboard.event_file import EventFile
from anyaccel_tensorboard.learning_rates import ScheduledRate, scheduled_rates
from anyaccel_tensorboard.run_dirs import create_run_dir


class RunLogger:
    """The event file of one run, in a folder of its own: `ROOT/EXPERIMENT/PHASE-N`.

    Raises:
        PhaseError: the folder cannot be written.
    """

    def __init__(self, run: Any, root: Path) -> None:
        self._run = run
        self._rates: tuple[ScheduledRate, ...] = ()
        self._nvidia = NvidiaStats()
        self._n_plans, self._n_epoch_steps = 0, 0
        self._unwritten: list[dict[str, float]] = []  # losses of the steps since some were written
        try:
            self._file = EventFile(create_run_dir(root, run.experiment or run.graph.label, run.phase.label))
        except OSError as error:
            raise PhaseError(
                f"phase {run.phase.label!r} cannot be logged: TensorBoard's folder {str(root)!r} cannot be written "
                f"({error})",
                hint="log to another folder, or turn logging off",
            ) from error

    def write_settings(self) -> None:
        """The settings of experiment, graph and phase."""
        self._file.text("settings", text_summaries.settings(self._run))

    def write_plan(self) -> None:
        """The plan and the graph; a FitPhase whose estimators depend on each other has several plans."""
        self._file.text("plan", text_summaries.plan(self._run), self._n_plans)
        self._file.text("graph", text_summaries.graph(self._run), self._n_plans)
        self._n_plans += 1
        self._rates = scheduled_rates(self._run)

    def write_steps(self, steps: Any, every_n: int) -> None:
        """The mean losses of every so many steps of an epoch, by the number of the last one within the run.

        Args:
            steps: those that are done since the last call; the loss of each is read from its device.
            every_n: of how many steps a mean is written.
        """
        losses = steps.losses()
        for i, number in enumerate(steps.numbers):
            if number % every_n == 0:
                self._unwritten = []
            self._unwritten.append({label: float(values[i]) for label, values in losses.items()})
            if (number + 1) % every_n == 0:
                means = {
                    f"step/loss.{label}": _mean(row[label] for row in self._unwritten if label in row)
                    for label in losses
                }
                self._file.scalars(self._n_epoch_steps + number, means)

    def write_epoch(self) -> None:
        """All figures of the last epoch, by its number, as one event."""
        run, epoch = self._run, self._run.history[-1]
        if len(run.history) == 1:
            self._nvidia = nvidia_stats(run.plan)  # not earlier: device_info may initialise a device
        self._n_epoch_steps += epoch.steps
        values = {
            **({"train/loss": epoch.loss} if epoch.losses else {}),
            **{f"train/loss.{label}": value for label, value in epoch.losses.items()},
            **{rate.tag: rate.after(self._n_epoch_steps) for rate in self._rates},
            **{f"validation/{name}": value for name, value in epoch.validation.items()},
            "speed/epoch_seconds": epoch.seconds,
            **speed_and_memory(run.stats),
            **self._nvidia.read(),
        }
        self._file.scalars(epoch.number, values)

    def end(self, error: BaseException | None) -> None:
        """The outcome; then close the file."""
        run = self._run
        try:
            if run.evaluation is not None:  # its step is the number of epochs the graph was trained
                scalars = {f"evaluation/{name}": value for name, value in run.evaluation.named.items()}
                self._file.scalars(sum(run.graph.progress.values()), scalars)
            if run.fitted:
                self._file.text("fitted", text_summaries.fitted(run))
            if run.stop_reason:
                self._file.text("stopped", text_summaries.code_block(run.stop_reason))
            if error is not None:
                self._file.text("error", text_summaries.error(error))
        finally:
            try:
                self._file.close()
            finally:
                self._nvidia.close()


def _mean(values: Iterable[float]) -> float:
    """The mean of those that are numbers: a step without rows for a loss has none. NaN if there are none."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan
