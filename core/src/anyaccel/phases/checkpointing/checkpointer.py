"""Checkpointer: writes the checkpoints of a running phase when they are due, and finds where an earlier run was."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from anyaccel.arguments import shown
from anyaccel.errors import ConfigError, PhaseError, StateError
from anyaccel.graph import ModelGraph, state_dict
from anyaccel.phases.callbacks import Callback, mode_of, unknown_mode
from anyaccel.phases.checkpointing.checkpoint import Checkpoint
from anyaccel.phases.checkpointing.position import Position
from anyaccel.phases.checkpointing.run_folder import RunFolder
from anyaccel.phases.checkpointing.run_settings import (
    different_data,
    different_settings,
    optimizers_of,
    sample_of,
    settings_of,
)
from anyaccel.phases.checkpointing.termination import Termination
from anyaccel.phases.checkpointing.writer import BackgroundWriter
from anyaccel.phases.executor.pipeline import Pipeline
from anyaccel.phases.loading.loader import BatchLoader
from anyaccel.phases.loss_accumulator import LossAccumulator
from anyaccel.phases.monitoring import monitored_value
from anyaccel.phases.run import Run

CallbackStates = list[tuple[str, dict[str, Any]]]
RESUME = ("auto", "never")


class Checkpointer:
    """Writes the checkpoints of one run, and lets it go on where an earlier one was.

    Args:
        checkpoint: as given to the phase.
        run: whose graph is loaded with the state of the newest checkpoint, if it goes on.
        callbacks: all of the run, whose state is part of a checkpoint.
        resume: `"auto"` goes on from the newest checkpoint, if there is one; `"never"` starts anew.

    Attributes:
        resumed: where the earlier run was; None if this one starts anew.

    Raises:
        PhaseError: another run writes into the folder; or it has checkpoints and this run is to start anew; or they
            are of another phase.
        StateError: the state does not fit the graph, or no checkpoint can be read.
        ConfigError: they were written by a newer version.
    """

    def __init__(self, checkpoint: Checkpoint, run: Run, callbacks: Sequence[Callback], resume: str) -> None:
        self._checkpoint, self._run, self._callbacks = checkpoint, run, tuple(callbacks)
        self._folder = RunFolder(checkpoint.folder)
        self._writer = BackgroundWriter()
        self._last = time.monotonic()
        self._best: tuple[Any, Mapping[str, np.ndarray]] | None = None
        self._termination: Termination | None = None
        self._callbacks_before: CallbackStates | None = None
        self._written = ""  # name of the last position
        self._counted_epoch, self._counted_steps = 0, 0
        self._has_warned = False
        self.resumed: Position | None = None
        self._folder.lock()
        try:
            self._settings, self._optimizers = settings_of(run.phase), optimizers_of(run.graph)
            self._parts = _graph_part(run)
            self.resumed = self._resume(resume)
        except BaseException:
            self._folder.unlock()
            raise
        self._termination = Termination()

    def _resume(self, resume: str) -> Position | None:
        names, path = self._folder.names(), str(self._folder.path)
        if resume == "never" and names:
            raise PhaseError(
                f"{path!r} has checkpoints of an earlier run",
                available=", ".join(names),
                hint="go on from them: run_phase(phase, resume='auto'); or give this run another folder",
            )
        found = self._folder.newest()
        self._run.graph.shapes  # noqa: B018 - builds the models, which a state is loaded into
        if found is None:
            return None
        position, state, failures = found
        for failure in failures:
            self._warn(f"a newer checkpoint is left out: {failure}")
        label = self._run.phase.label
        if position.phase != label:
            problem = f"{path!r} has checkpoints of phase {position.phase!r}, not of {label!r}"
            raise PhaseError(problem, hint="give each phase a folder of its own")
        if position.settings:
            self._compare(position, different_settings(position.settings, self._settings))
        own_seed = self._run.graph.seed
        self._run.graph.load_state(state)
        self._run.graph.progress[label] = position.number
        self._warn_of_changes(position, own_seed)
        others = self._other_frameworks(position)
        since = f"; {others}, so that what models draw (dropout) differs from now on" if others else ""
        self._run.log_event("checkpoint", f"goes on from {path}, {position.name}{since}")
        self._written = position.name
        return position

    def _other_frameworks(self, position: Position) -> str:
        """The nodes whose framework is not that of the checkpoint, as text."""
        now, before = _frameworks(self._run), position.frameworks
        changed = [label for label in now if label in before and now[label] != before[label]]
        return ", ".join(f"{label!r} was {before[label]} and is {now[label]}" for label in changed)

    def _compare(self, position: Position, differences: Sequence[str]) -> None:
        """Between two epochs a run may go on with other settings; within one, rows would be left out or come twice.

        Raises:
            PhaseError: the checkpoint is within an epoch.
        """
        if not differences:
            return
        shown_differences = "; ".join(differences)
        if position.step:
            raise PhaseError(
                f"the checkpoint {position.name} is within an epoch, and its run is not this one: {shown_differences}",
                hint="go on with what the run had to the end of the epoch, or start anew in another folder",
            )
        self._warn(f"goes on after an epoch with another run: {shown_differences}")

    def _warn_of_changes(self, position: Position, own_seed: int) -> None:
        if self._run.graph.seed != own_seed:
            self._warn(f"the seed of the graph is that of the checkpoint, {self._run.graph.seed}, not {own_seed}")
        changed = different_settings(position.optimizers, self._optimizers) if position.optimizers else []
        if changed:
            self._warn(f"goes on with other optimizers: {'; '.join(changed)}")

    # -- going on --------------------------------------------------------------------------------------------------

    @cached_property
    def _sample(self) -> dict[str, np.ndarray]:
        return sample_of(self._run)

    def restore_run(self) -> None:
        """Set the records of the run, and give the callbacks their states, after these were told of the beginning.

        Raises:
            PhaseError: the checkpoint is within an epoch, and the data have changed.
            StateError: the run has other callbacks, or one does not take its state.
        """
        if self.resumed is None:
            return
        self._compare(self.resumed, different_data(self.resumed.data, self._sample))
        saved, now = [kind for kind, _ in self.resumed.callbacks], [_kind(each) for each in self._callbacks]
        if saved != now:
            raise StateError(
                f"the checkpoint is of a run with other callbacks: {', '.join(saved) or 'none'}",
                available=", ".join(now) or "none",
                hint="give the run the same callbacks in the same order",
            )
        for callback, (kind, state) in zip(self._callbacks, self.resumed.callbacks, strict=True):
            try:
                callback.load_state_dict(state)
            except (KeyError, TypeError, ValueError) as error:
                problem = f"callback {kind} does not take its state: {type(error).__name__}: {error}"
                raise StateError(problem, hint="let load_state_dict take what state_dict() gives") from error
        self._run.history.extend(self.resumed.history)
        self._run.final_state = self.resumed.best
        if self.resumed.stop_reason:
            self._run.stop(self.resumed.stop_reason)

    def restore_random(self, pipeline: Pipeline) -> None:
        """Let random streams go on within an epoch."""
        if self.resumed is None or self.resumed.random is None or self._other_frameworks(self.resumed):
            return
        try:
            pipeline.load_random_state(self.resumed.random)
        except StateError as error:
            self._warn(f"random streams begin anew within epoch {self.resumed.epoch}: {error.problem}")

    # -- writing ---------------------------------------------------------------------------------------------------

    def steps_until_due(self, step: int) -> int | None:
        """How many steps of an epoch may be done in one call after its first `step` ones; None for any number."""
        every = self._checkpoint.every_n_steps
        return None if every is None else every - (self._steps_before_epoch() + step) % every

    def after_step(self, pipeline: Pipeline, losses: LossAccumulator, loader: BatchLoader) -> None:
        """So many steps are done, and `run.step` says how many: write if it is time."""
        self._warn_of_unsaved(loader)
        every = self._checkpoint.every_n_steps
        if self._is_time() or (every is not None and (self._steps_before_epoch() + self._run.step) % every == 0):
            self._write(self._position(pipeline, losses, source_draws=loader.draws), wait=self._checkpoint.wait)

    def _steps_before_epoch(self) -> int:
        """Of the run, up to the epoch that is going on; counted once for each."""
        epoch = self._run.epoch
        if self._counted_epoch != epoch:
            self._counted_epoch = epoch
            self._counted_steps = sum(each.steps for each in self._run.history[:epoch])
        return self._counted_steps

    def epoch_ends(self) -> None:
        """The steps of an epoch are done: what comes now (validation, callbacks) is done again if it is broken off."""
        self._callbacks_before = self._callback_states()

    def after_epoch(self) -> None:
        """An epoch is done, and everybody was told: write if it is time."""
        self._callbacks_before = None
        given = self._checkpoint
        after_each = given.keep_best is not None or (given.every_n_steps is None and given.every_seconds is None)
        if after_each or self._is_time():
            self._write(self._position(), wait=given.wait)

    def _is_time(self) -> bool:
        seconds = self._checkpoint.every_seconds
        return seconds is not None and not self._writer.is_busy and time.monotonic() - self._last >= seconds

    def after_error(self, pipeline: Pipeline, losses: LossAccumulator | None, loader: BatchLoader) -> None:
        """The run ends early, and the values are those of whole steps: write, and wait for it."""
        if self._termination is not None:
            self._termination.begin_last()
        within = None if losses is None else pipeline
        self._write(self._position(within, losses, source_draws=loader.draws), wait=True)

    def end(self) -> None:
        """All epochs are done; models still have the values of the last one: write, unless that is done."""
        position = self._position()
        if position.name != self._written:
            self._write(position, wait=False)

    def close(self) -> None:
        """Wait for what is being written, and let go of the folder and of signals."""
        try:
            self._guarded(self._writer.wait)
        finally:
            self._folder.unlock()
            if self._termination is not None:
                self._termination.close()

    def _warn_of_unsaved(self, loader: BatchLoader) -> None:
        if loader.unsaved_draws and not self._has_warned:
            self._has_warned = True
            names = " and ".join(loader.unsaved_draws)
            self._warn(
                f"the data draws from {names}, whose state no checkpoint has: a run that goes on draws other numbers. "
                "Hint: draw from a generator that is made of the row's number and the epoch"
            )

    def _position(
        self, pipeline: Pipeline | None = None, losses: LossAccumulator | None = None, *, source_draws: bool = False
    ) -> Position:
        """Where the run is: within an epoch if there are losses of it, else between two."""
        run, label = self._run, self._run.phase.label
        history = run.history if losses is None else run.history[: run.epoch]
        return Position(
            phase=label,
            epoch=len(history),
            number=run.graph.progress.get(label, 0) - (len(run.history) - len(history)),
            step=0 if losses is None else run.step,
            history=tuple(history),
            losses={} if losses is None else losses.sums(),
            random=None if pipeline is None else pipeline.random_state(),
            source_draws=source_draws,
            frameworks=_frameworks(run),
            callbacks=self._callback_states() if self._callbacks_before is None else self._callbacks_before,
            best=self._best_state(),
            stop_reason=run.stop_reason if losses is None else "",
            score=self._score(),
            settings=self._settings,
            optimizers=self._optimizers,
            data=self._sample,
        )

    def _callback_states(self) -> CallbackStates:
        return [(_kind(callback), dict(callback.state_dict())) for callback in self._callbacks]

    def _best_state(self) -> Mapping[str, np.ndarray] | None:
        """The state of the graph that the run returns to; made once for each snapshot."""
        snapshot = self._run.final_snapshot
        if snapshot is None:
            return self._run.final_state
        if self._best is None or self._best[0] is not snapshot:
            now = self._run.snapshot()
            self._run.restore(snapshot)
            try:
                self._best = snapshot, _state_of(self._run.graph)
            finally:
                self._run.restore(now)
        return self._best[1]

    def _score(self) -> float | None:
        name = self._checkpoint.keep_best
        if name is None or not self._run.history:
            return None
        value = monitored_value("Checkpoint(keep_best=...)", name, self._run)
        mode = mode_of(name, "auto", "Checkpoint: ")
        if not mode:
            raise unknown_mode(name, "Checkpoint: ")
        return None if value is None or math.isnan(value) else value if mode == "min" else -value

    def _write(self, position: Position, *, wait: bool) -> None:
        given = self._checkpoint
        write = partial(self._folder.write, position, self._parts, _state_of(self._run.graph), given.keep)
        self._last, self._written = time.monotonic(), position.name
        self._guarded(partial(self._writer.start, write))
        if wait:
            self._guarded(self._writer.wait)

    def _guarded(self, act: Callable[[], object]) -> None:
        """Do something that fails with what writing a checkpoint has raised: warn of it, or let it end the run."""
        try:
            act()
        except (OSError, StateError, ConfigError) as error:
            if self._checkpoint.on_failure == "stop" and self._run.error is None:
                raise
            self._warn(f"a checkpoint could not be written to {str(self._folder.path)!r}: {error}")

    def _warn(self, message: str) -> None:
        self._run.log_event("checkpoint", message)
        warnings.warn(f"phase {self._run.phase.label!r}: {message}", RuntimeWarning, stacklevel=2)


def checkpointer_for(
    run: Run, callbacks: Sequence[Callback], resume: str, learners: Sequence[str]
) -> Checkpointer | None:
    """What writes the checkpoints of a run; None without any.

    Args:
        run: whose phase has a Checkpoint, or has none.
        callbacks: of the run.
        resume: as of Checkpointer.
        learners: labels of the estimators that learn in the phase.

    Raises:
        PhaseError: a run without checkpoints is to go on from one, or estimators learn in it; or as of Checkpointer.
    """
    checkpoint = getattr(run.phase, "checkpoint", None)
    if checkpoint is None:
        if resume == "auto":
            problem = f"phase {run.phase.label!r} has no checkpoint to go on from"
            raise PhaseError(problem, hint="write TrainPhase(..., checkpoint=Checkpoint('runs/a'))")
        return None
    if learners:
        raise PhaseError(
            f"phase {run.phase.label!r} has a checkpoint, and the estimator {learners[0]!r} learns in it, which only "
            "pickle could write",
            hint="leave checkpoint out, or freeze the node",
        )
    return Checkpointer(checkpoint, run, callbacks, resume)


def _state_of(graph: ModelGraph) -> dict[str, np.ndarray]:
    """The state of a graph, copied once: what a running phase gives out is not changed by its steps."""
    if graph.refresh is None:
        return graph.state()
    graph.refresh()
    return state_dict.state(graph, copy=False)


def _frameworks(run: Run) -> dict[str, str]:
    return {label: backend.framework for label, backend in run.graph.shapes.backends.items()}


def _kind(callback: Callback) -> str:
    return type(callback).__name__


def _graph_part(run: Run) -> dict[str, Any]:
    """The configuration of the graph, for `ModelGraph.load`; nothing if it has none."""
    try:
        return {"graph": run.graph.saved_config()}
    except ConfigError:
        return {}


def checked_resume(given: Any) -> str:
    """The argument `resume`.

    Raises:
        PhaseError: unknown.
    """
    if given in RESUME and isinstance(given, str):
        return given
    hint = "write resume='auto'"
    raise PhaseError(f"unknown resume={shown(given)}", available=", ".join(map(repr, RESUME)), hint=hint)
