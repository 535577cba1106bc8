"""What is written of one run, and when: texts as it begins, figures after each epoch, the outcome at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anyaccel.errors import PhaseError
from anyaccel_tensorboard import text_summaries
from anyaccel_tensorboard.device_stats import Gauges, gauges, memory
from anyaccel_tensorboard.event_file import EventFile
from anyaccel_tensorboard.learning_rates import Rate, rates
from anyaccel_tensorboard.run_dirs import claim


class Log:
    """The event file of one run, in a folder of its own: `ROOT/EXPERIMENT/PHASE-N`.

    Raises:
        PhaseError: the folder cannot be written.
    """

    def __init__(self, run: Any, root: Path) -> None:
        self._run = run
        self._rates: tuple[Rate, ...] = ()
        self._gauges = Gauges()
        self._plans, self._steps, self._done = 0, 0, 0
        try:
            self._file = EventFile(claim(root, run.experiment or run.graph.label, run.phase.label))
        except OSError as error:
            raise PhaseError(
                f"phase {run.phase.label!r} cannot be logged: TensorBoard's folder {str(root)!r} cannot be written "
                f"({error})",
                hint="log to another folder, or to none",
            ) from error

    def settings(self) -> None:
        """What was asked for."""
        self._file.text("settings", text_summaries.settings(self._run))

    def plan(self) -> None:
        """What was decided, on what graph; a FitPhase whose estimators wait for each other has several plans."""
        self._file.text("plan", text_summaries.plan(self._run), self._plans)
        self._file.text("graph", text_summaries.graph(self._run), self._plans)
        self._plans += 1
        self._rates = rates(self._run)

    def step(self, every: int) -> None:
        """One in `every` steps is written, by its number within the run."""
        self._steps += 1
        if self._steps % every == 0:
            losses = self._run.step_losses()
            self._file.scalars(self._steps - 1, {f"step/loss.{label}": value for label, value in losses.items()})

    def epoch(self) -> None:
        """All figures of the last epoch, by its number, as one event."""
        run, epoch = self._run, self._run.history[-1]
        if len(run.history) == 1:
            self._gauges = gauges(run.plan)  # not before: a framework may initialise a device to say which it is
        self._done += epoch.steps
        values = {
            **({"train/loss": epoch.loss} if epoch.losses else {}),
            **{f"train/loss.{label}": value for label, value in epoch.losses.items()},
            **{rate.tag: rate.after(self._done) for rate in self._rates},
            **{f"validation/{name}": value for name, value in epoch.validation.items()},
            "speed/epoch_seconds": epoch.seconds,
            "speed/steps_per_second": epoch.steps / max(epoch.seconds, 1e-9),
            **memory(run.plan),
            **self._gauges.read(),
        }
        self._file.scalars(epoch.number, values)

    def end(self, error: BaseException | None) -> None:
        """What came of it, and no more."""
        run = self._run
        try:
            if run.evaluation is not None:  # by how far the graph was trained
                named = {f"evaluation/{name}": value for name, value in run.evaluation.named.items()}
                self._file.scalars(sum(run.graph.progress.values()), named)
            if run.fitted:
                self._file.text("fitted", text_summaries.fitted(run))
            if run.stop_reason:
                self._file.text("stopped", text_summaries.block(run.stop_reason))
            if error is not None:
                self._file.text("error", text_summaries.error(error))
        finally:
            self._close()

    def _close(self) -> None:
        try:
            self._file.close()
        finally:
            self._gauges.close()


class Tracker:
    """Hears the moments of any number of runs, at once too; of those that it was not told to start it does nothing."""

    def __init__(self) -> None:
        self._logs: dict[Any, Log] = {}

    def start(self, run: Any, folder: Path) -> None:
        """Open a file for a run below `folder`, and write its settings.

        Raises:
            PhaseError: the folder cannot be written; the run is being logged by this tracker already.
        """
        from anyaccel_tensorboard.run_logger import Log  # imports TensorBoard

        if run in self._logs:
            raise PhaseError(
                f"phase {run.phase.label!r} has one TensorBoard callback twice",
                hint="give it to the experiment or to the phase, not to both",
            )
        self._logs[run] = log = Log(run, folder)
        log.settings()

    def planned(self, run: Any) -> None:
        """The plan is made."""
        if run in self._logs:
            self._logs[run].plan()

    def step(self, run: Any, every: int) -> None:
        """A step is done, and one in `every` is written."""
        if run in self._logs:
            self._logs[run].step(every)

    def epoch(self, run: Any) -> None:
        """An epoch is done."""
        if run in self._logs:
            self._logs[run].epoch()

    def end(self, run: Any, error: BaseException | None) -> None:
        """The phase has ended; its file is closed."""
        log = self._logs.pop(run, None)
        if log is not None:
            log.end(error)
