"""Checkpointer: writes the checkpoints of a running phase on schedule, and finds the position of an earlier run."""

from __future__ import annotations

import math
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from anyaccel import interrupts
from anyaccel.errors import ConfigError, PhaseError, StateError
from anyaccel.graph.serialization import versions_of
from anyaccel.phases.callbacks import Callback, monitored_value, unknown_mode
from anyaccel.phases.checkpointing.checkpoint import Checkpoint
from anyaccel.phases.checkpointing.position import (
    BestState,
    CallbackStates,
    Position,
    callback_states,
    changed_frameworks,
    different_data,
    different_settings,
    frameworks_of,
    graph_part,
    live_state_of,
    load_callback_states,
    optimizers_of,
    sample_of,
    settings_of,
    translated,
)
from anyaccel.phases.checkpointing.run_folder import RunFolder
from anyaccel.phases.executor.pipeline import Pipeline
from anyaccel.phases.loading.loader import BatchLoader, LoadedRows
from anyaccel.phases.loop_extension import UNLIMITED, Call, CallInProgress, LoopExtension
from anyaccel.phases.loss_accumulator import LossAccumulator, LossSums
from anyaccel.phases.process_group import ProcessGroup, SingleProcess
from anyaccel.phases.run import Run

_PAUSES_OF_INTERVAL = 0.25  # a checkpoint is on the disk long before the next is due


class Checkpointer:
    """Write the checkpoints of a run, and let it continue from those of an earlier run.

    Args:
        checkpoint: Argument of the phase.
        run: The run. If it continues, its graph is loaded with the state of the newest checkpoint.
        callbacks: All callbacks of the run; their state is part of a checkpoint.
        resume: `"auto"` continues from the newest checkpoint, if there is one; `"never"` starts from scratch.
        writes: Whether this process writes; of several replicas the first one does, and all read.

    Attributes:
        resumed: Position of the earlier run; None if this one starts from scratch.

    Raises:
        PhaseError: estimators learn in the run; or another run writes into the folder; or it has checkpoints and this
            run is to start from scratch; or they are of another phase.
        StateError: the state does not fit the graph, or no checkpoint can be read.
        ConfigError: they were written by a newer version.
    """

    def __init__(
        self, checkpoint: Checkpoint, run: Run, callbacks: Sequence[Callback], resume: str, *, writes: bool = True
    ) -> None:
        learners = run.phase.learners(run.graph)
        if learners:
            raise PhaseError(
                f"phase {run.phase.label!r} has a checkpoint, and the estimator {learners[0]!r} learns in it, but its "
                "state could only be pickled",
                hint="leave checkpoint out, or freeze the node",
            )
        self._checkpoint, self._run, self._callbacks = checkpoint, run, tuple(callbacks)
        self._writes = writes
        self._group: ProcessGroup = SingleProcess()
        self._drawing: ProcessGroup = self._group  # those that draw other random numbers each
        self._folder = RunFolder(checkpoint.location)
        self._writer = BackgroundWriter()
        self._schedule = CheckpointSchedule(checkpoint, run)
        self._best = BestState()
        self._termination: Termination | None = None
        self._callbacks_before: CallbackStates | None = None
        self._written = ""  # name of the last position
        self.resumed: Position | None = None
        if writes:
            self._folder.lock()
        try:
            self._settings, self._optimizers = settings_of(run.phase), optimizers_of(run.graph)
            self._parts = graph_part(run)
            self.resumed = self._resume(resume)
        except BaseException:
            self._folder.unlock()
            raise
        if writes:
            self._termination = Termination()

    def join(self, group: ProcessGroup) -> None:
        """The processes of the run are joined: they write after the same steps.

        Raises:
            PhaseError: they continue from different checkpoints.
        """
        self._group = group
        if group.size > 1:
            self._schedule = AgreedSchedule(self._checkpoint, self._run, group.first)
        if not group.reads_all_rows:
            self._drawing = group
        group.check_same(
            {"the checkpoint to resume from": "none" if self.resumed is None else self.resumed.name},
            when="before the first step",
            hint="write checkpoints into a folder that all replicas see",
        )

    def _resume(self, resume: str) -> Position | None:
        names, path = self._folder.names(), str(self._folder.path)
        if resume == "never" and names:
            raise PhaseError(
                f"{path!r} has checkpoints of an earlier run",
                available=", ".join(names),
                hint="resume from them: run_phase(phase, resume='auto'); or use another folder for this run",
            )
        newest = self._folder.newest()
        self._run.graph.shapes  # noqa: B018 - builds the models, which a state is loaded into
        if newest is None:
            return None
        position, state, failures = newest
        for failure in failures:
            self._warn(f"a newer checkpoint is skipped: {failure}")
        label = self._run.phase.label
        if position.phase != label:
            problem = f"{path!r} has checkpoints of phase {position.phase!r}, not of {label!r}"
            raise PhaseError(problem, hint="use a separate folder for each phase")
        epochs = self._run.phase.epochs
        if position.step and position.epoch >= epochs:  # the values would have more steps than the results
            raise PhaseError(
                f"the checkpoint {position.name} is within epoch {position.epoch + 1} of its run, but phase {label!r} "
                f"has epochs={epochs}",
                hint=f"write epochs={position.epoch + 1}, which ends this epoch, or more; or start again in another "
                "folder",
            )
        if position.settings:
            self._compare(position, different_settings(position.settings, self._settings))
        others = ", ".join(changed_frameworks(self._run, position).values())
        position, state = translated(self._run, self._checkpoint, position, state)
        own_seed = self._run.graph.seed
        self._run.graph.load_state(state)
        self._run.graph.progress[label] = position.number
        if self._run.graph.seed != own_seed:
            self._warn(f"the seed of the graph comes from the checkpoint: {self._run.graph.seed}, not {own_seed}")
        changed = different_settings(position.optimizers, self._optimizers) if position.optimizers else []
        if changed:
            self._warn(f"resumes with other optimizers: {'; '.join(changed)}")
        since = f"; {others}, so random numbers of models (dropout) differ from now on" if others else ""
        if position.stop_reason and not position.step:
            since += f"; it trains no more epochs, because it was stopped: {position.stop_reason}"
        self._run.log_event("checkpoint", f"resumes from {path}, {position.name}{since}")
        self._written = position.name
        return position

    def _compare(self, position: Position, differences: Sequence[str]) -> None:
        """Between two epochs a run may continue with other settings; within one, rows would be left out or come twice.

        Raises:
            PhaseError: the checkpoint is within an epoch.
        """
        if not differences:
            return
        shown_differences = "; ".join(differences)
        if position.step:
            raise PhaseError(
                f"the checkpoint {position.name} is within an epoch, but this run differs from its run: "
                f"{shown_differences}",
                hint="resume with the old settings until the end of the epoch, or start again in another folder",
            )
        self._warn(f"resumes after an epoch with other settings: {shown_differences}")

    # -- going on --------------------------------------------------------------------------------------------------

    @cached_property
    def _sample(self) -> dict[str, np.ndarray]:
        return sample_of(self._run)

    def restore_run(self) -> None:
        """Restore the records of the run, and the states of the callbacks, after the callbacks have seen the beginning.

        Raises:
            PhaseError: the checkpoint is within an epoch, and the data have changed.
            StateError: the run has other callbacks, or one does not take its state.
        """
        if self.resumed is None:
            return
        self._compare(self.resumed, different_data(self.resumed.data, self._sample))
        load_callback_states(self._callbacks, self.resumed.callbacks)
        self._run.history.extend(self.resumed.history)
        self._run.final_state = self.resumed.best
        if self.resumed.stop_reason:
            self._run.stop(self.resumed.stop_reason)

    def restore_source(self, loader: BatchLoader) -> None:
        """Continue the source from its position, and compare its last step, in the process that wrote the source's."""
        if self.resumed is None or self.resumed.source is None:
            return
        source, size = self.resumed.source, self._drawing.size
        if not self._writes or size != self.resumed.replicas:  # another share of the batch
            source = replace(source, sample={})
        loader.go_on(source)

    def restore_random(self, pipeline: Pipeline) -> None:
        """Let random streams continue within an epoch."""
        resumed = self.resumed
        if resumed is None or resumed.random is None or changed_frameworks(self._run, resumed):
            return
        rank, size = self._drawing.rank, self._drawing.size
        try:
            if size != resumed.replicas:
                raise StateError(f"they belong to {resumed.replicas} replicas, but now there are {size}")
            n_programs = len(resumed.random) // size
            pipeline.load_random_state(resumed.random[rank * n_programs : (rank + 1) * n_programs])
        except StateError as error:
            self._warn(f"random streams start again within epoch {resumed.epoch}: {error.problem}")

    # -- writing ---------------------------------------------------------------------------------------------------

    def steps_until_due(self, step: int) -> int | None:
        """Return the most steps of one call after the first `step` steps of an epoch; None for any number."""
        return self._schedule.steps_until_due(step)

    def after_step(self, pipeline: Pipeline, losses: LossAccumulator, loader: BatchLoader) -> None:
        """Write if it is time, after steps were done; `run.step` is their number."""
        if self._schedule.is_due_after_step(is_busy=self._writer.is_busy):
            sums, random = losses.sums(), self._drawing.arrays_of_all(pipeline.random_state())  # all replicas take part
            if self._takes_part:
                self._write(self._position(loader, sums, random), is_last=False)

    def epoch_ends(self) -> None:
        """Mark the steps of an epoch as done; an interrupted validation or callback will be run again."""
        self._callbacks_before = callback_states(self._callbacks)

    def after_epoch(self, loader: BatchLoader) -> None:
        """Write if it is time, after an epoch is done and all listeners were notified."""
        self._callbacks_before = None
        if not self._takes_part:
            return
        due = self._schedule.is_due_after_epoch(is_busy=self._writer.is_busy)
        if self._group.sharded:
            due = self._group.first(due)
        if due:
            self._write(self._position(loader), is_last=False)

    @property
    def _takes_part(self) -> bool:
        """Whether this process reads values: it writes, or it has a shard of the parameters."""
        return self._writes or self._group.sharded

    def after_error(self, pipeline: Pipeline, losses: LossAccumulator | None, loader: BatchLoader) -> None:
        """Write after an early end of the run, if the values belong to whole steps, and wait for it.

        Several replicas do not write: the others are at other steps, or have ended, and the last scheduled checkpoint
        exists.
        """
        if self._group.size > 1:
            return
        if self._termination is not None:
            self._termination.begin_last()
        within = (None, None) if losses is None else (losses.sums(), pipeline.random_state())
        position = self._position(loader, *within)
        if position.name != self._written:  # a run that fails to go on leaves what it would have gone on from
            self._write(position)
        self._guarded(self._writer.wait)

    def end(self, loader: BatchLoader) -> None:
        """All epochs are done; models still have the values of the last one: write, unless that is done.

        Of several replicas the first one waits, as the others may read it next.
        """
        if not self._takes_part:
            return
        position = self._position(loader)
        if position.name != self._written:
            self._write(position)
        if self._group.size > 1:
            self._guarded(self._writer.wait)

    def close(self) -> None:
        """Wait for the current write, and release the folder and the signal handlers."""
        try:
            self._guarded(self._writer.close)
        finally:
            self._folder.unlock()
            if self._termination is not None:
                self._termination.close()

    def _position(
        self,
        loader: BatchLoader,
        sums: LossSums | None = None,
        random: Sequence[Mapping[str, np.ndarray]] | None = None,
    ) -> Position:
        """Return the position of the run: within an epoch if there are sums of its losses, otherwise between two."""
        run, label = self._run, self._run.phase.label
        history = run.history if sums is None else run.history[: run.epoch]
        number, step = (
            run.graph.progress.get(label, 0) - (len(run.history) - len(history)),
            0 if sums is None else run.step,
        )
        return Position(
            phase=label,
            epoch=len(history),
            number=number,
            step=step,
            history=tuple(history),
            losses=sums or {},
            random=random,
            replicas=self._drawing.size,
            source=loader.position(number, step),
            frameworks=frameworks_of(run),
            callbacks=callback_states(self._callbacks) if self._callbacks_before is None else self._callbacks_before,
            best=self._best.of(run),
            stop_reason=run.stop_reason if sums is None else "",
            score=self._score(),
            loss_scale=run.loss_scale,
            settings=self._settings,
            optimizers=self._optimizers,
            data=self._sample,
        )

    def _score(self) -> float | None:
        name = self._checkpoint.keep_best
        if name is None or not self._run.history:
            return None
        value = monitored_value("Checkpoint(keep_best=...)", name, self._run)
        mode = self._checkpoint.mode
        if not mode:
            raise unknown_mode(name, "Checkpoint: ")
        return None if value is None or math.isnan(value) else value if mode == "min" else -value

    def _write(self, position: Position, *, is_last: bool = True) -> None:
        """Write in the background, with pauses if the loop continues at the same time."""
        checkpoint, seconds = self._checkpoint, self._schedule.written()
        pauses = 0.0 if is_last or checkpoint.wait else seconds * _PAUSES_OF_INTERVAL
        graph = self._run.graph
        versions = versions_of(graph.shapes.backends.values())
        arrays = live_state_of(graph)  # of shards, in all processes
        self._written = position.name
        if not self._writes:
            return
        self._guarded(self._writer.wait)  # for the copies of the previous checkpoint
        state = dict(arrays) if checkpoint.wait else self._writer.copies(arrays)
        self._writer.start(partial(self._folder.write, position, self._parts, state, checkpoint.keep, versions), pauses)
        if checkpoint.wait:  # nothing changes the state meanwhile
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
        if self._writes:
            warnings.warn(f"phase {self._run.phase.label!r}: {message}", RuntimeWarning, stacklevel=2)


# -- Background writer: writes one checkpoint at a time in a thread of its own, with pauses for the loop's sake --------


_SHARE = 0.02  # of the time; at full rate it takes up to a third of the rate of the loop (docs/benchmarks.md)
Write = Callable[[Callable[[], object] | None], object]


class BackgroundWriter:
    """Call one function at a time in a thread; its exception is raised by the next call of this object."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None
        self._hurry = threading.Event()
        self._copies: dict[str, np.ndarray] = {}

    @property
    def is_busy(self) -> bool:
        """Whether a function is running."""
        return self._thread is not None and self._thread.is_alive()

    def copies(self, arrays: Iterable[tuple[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """Return copies of arrays by name for the next function, in the memory of the previous copies, if they fit.

        The system clears every page of new memory, which takes several times as long as copying. `close` releases it.

        Raises:
            Exception: the exception of the previous function, which reads the previous copies until it has ended.
        """
        self.wait()
        previous, self._copies = self._copies, {}
        for name, array in arrays:
            copy = previous.pop(name, None)
            if copy is None or (copy.shape, copy.dtype) != (array.shape, array.dtype):
                memory = bytearray(array.nbytes)  # np.empty asks for huge pages, which can take seconds to find
                copy = np.ndarray(array.shape, array.dtype, buffer=memory)
            np.copyto(copy, array)
            self._copies[name] = copy
        return dict(self._copies)

    def start(self, write: Write, pauses: float = 0.0) -> None:
        """Call a function as soon as the previous one has ended.

        Args:
            write: Function whose argument is a function that pauses, to call about once per millisecond of work, or
                None.
            pauses: Maximum seconds of all pauses together; they end when another thread waits.

        Raises:
            Exception: the exception of the previous function.
        """
        self.wait()
        self._hurry.clear()
        pause = _Pace(self._hurry, pauses).pause if pauses else None
        self._thread = threading.Thread(target=self._run, args=(write, pause), name="anyaccel-checkpoint", daemon=False)
        self._thread.start()

    def wait(self) -> None:
        """Wait until nothing runs any more.

        Raises:
            Exception: the exception of the function.
        """
        if self._thread is not None:
            self._hurry.set()
            self._thread.join()
            self._thread = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Wait, and release the memory of the copies.

        Raises:
            Exception: the exception of the function.
        """
        try:
            self.wait()
        finally:
            self._copies.clear()

    def _run(self, write: Write, pause: Callable[[], object] | None) -> None:
        try:
            write(pause)
        except Exception as failure:
            self._failure = failure


class _Pace:
    """Pauses after pieces of work, so that the work takes only a fraction of the time."""

    def __init__(self, hurry: threading.Event, seconds: float) -> None:
        self._hurry, self._left = hurry, seconds
        self._since = time.perf_counter()

    def pause(self) -> None:
        """A piece is done: wait in proportion to the time it took, while there is time left and no one waits."""
        worked = time.perf_counter() - self._since
        seconds = min(worked * (1 - _SHARE) / _SHARE, self._left)
        if seconds > 0:
            self._left -= seconds
            self._hurry.wait(seconds)
        self._since = time.perf_counter()


# -- Termination: a process that is asked to end (SIGTERM) ends its step, writes a last checkpoint and exits with 143


TERMINATED = 128 + 15
"""Exit status of a process that was asked to end (SIGTERM), as shells tell it."""


class Termination:
    """Handle SIGTERM from the creation to `close`, unless the program does so itself.

    Python handles signals in the main thread alone: in another thread SIGTERM ends the process at once, and the last
    checkpoint that was due is the newest.
    """

    def __init__(self) -> None:
        self._old_handler: Any = None
        self._has_raised = self._is_ending = False
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            self._old_handler = signal.signal(signal.SIGTERM, self._terminate)
            interrupts.renew()

    def begin_last(self) -> None:
        """The last checkpoint is written now: if that is because of SIGTERM, another does not break it off."""
        self._is_ending = self._has_raised

    def close(self) -> None:
        """Restore the previous signal handler."""
        if self._old_handler is not None:
            signal.signal(signal.SIGTERM, self._old_handler)
            self._old_handler = None

    def _terminate(self, number: int, frame: object) -> None:
        if not self._is_ending:
            self._has_raised = True
            raise SystemExit(TERMINATED)


# -- Checkpoint schedule: when the checkpoints of a run are due; several processes agree on it -------------------------


_LEAST_PART = 16
"""Processes ask each other at most about so often in one interval, besides twice as many steps apart each time."""


class CheckpointSchedule:
    """Decide when the checkpoints of one run are written.

    Args:
        checkpoint: The Checkpoint of the phase.
        run: The run, with its position.
    """

    def __init__(self, checkpoint: Checkpoint, run: Run) -> None:
        self._checkpoint, self._run = checkpoint, run
        self._last = time.monotonic()
        self._counted_epoch, self._counted_steps = -1, 0

    def written(self) -> float:
        """A checkpoint is written now; gives the seconds since the one before."""
        before, self._last = self._last, time.monotonic()
        return self._last - before

    def steps_until_due(self, step: int) -> int | None:
        """Return the most steps of one call after the first `step` steps of an epoch; None for any number."""
        every = self._checkpoint.every_n_steps
        return None if every is None else every - self._steps_of_run(step) % every

    def is_due_after_step(self, *, is_busy: bool) -> bool:
        """Return whether to write a checkpoint now; `is_busy` is true while another is being written."""
        every = self._checkpoint.every_n_steps
        return self._is_time(is_busy=is_busy) if every is None else self._steps_of_run(self._run.step) % every == 0

    def is_due_after_epoch(self, *, is_busy: bool) -> bool:
        """Return whether to write one after an epoch; nothing is exchanged between processes here."""
        checkpoint = self._checkpoint
        after_each = checkpoint.keep_best is not None or (
            checkpoint.every_n_steps is None and checkpoint.every_seconds is None
        )
        return after_each or self._is_time(is_busy=is_busy)

    def _is_time(self, *, is_busy: bool) -> bool:
        seconds = self._checkpoint.every_seconds
        return seconds is not None and not is_busy and time.monotonic() - self._last >= seconds

    def _steps_of_run(self, step: int) -> int:
        """Steps of the run that are done after that many of the epoch in progress; those before it count once."""
        epoch = self._run.epoch
        if self._counted_epoch != epoch:
            self._counted_epoch = epoch
            self._counted_steps = sum(record.steps for record in self._run.history[:epoch])
        return self._counted_steps + step


class AgreedSchedule(CheckpointSchedule):
    """Decide when the checkpoints of several processes are written: by time, the first process decides.

    The others ask it after numbers of steps that it announced, so that all write, or take part, after the same step.

    Args:
        checkpoint, run: See `CheckpointSchedule`.
        agree: Function that all processes call after the same step; it returns the first one's argument.
    """

    def __init__(self, checkpoint: Checkpoint, run: Run, agree: Callable[[Any], Any]) -> None:
        super().__init__(checkpoint, run)
        self._agree = agree
        self._asked, self._asked_at = 0, self._last
        self._ask_at, self._apart = 0, 1

    def steps_until_due(self, step: int) -> int | None:
        if self._checkpoint.every_seconds is None:
            return super().steps_until_due(step)
        return max(1, self._ask_at - self._steps_of_run(step))

    def is_due_after_step(self, *, is_busy: bool) -> bool:
        if self._checkpoint.every_seconds is None:
            return super().is_due_after_step(is_busy=is_busy)
        done = self._steps_of_run(self._run.step)
        if done < self._ask_at:
            return False
        # They ask again after the steps in about half of the rest of the interval, by the speed since they asked last.
        is_time, now, interval = self._is_time(is_busy=is_busy), time.monotonic(), self._checkpoint.every_seconds or 0.0
        left = max(self._last + interval - now, interval / _LEAST_PART) / 2
        per_step = (now - self._asked_at) / max(done - self._asked, 1)
        n_steps = max(1, min(int(left / max(per_step, 1e-9)), 2 * self._apart))
        due, self._apart = self._agree([is_time, n_steps])
        self._asked, self._asked_at, self._ask_at = done, time.monotonic(), done + self._apart
        return bool(due)


# -- Checkpoints in the training loop: a run goes on where an earlier one was, and writes where it is ------------------


class CheckpointWrites(LoopExtension):
    """Write checkpoints on schedule, at the end, and after an error.

    Args:
        run: The run, with its position.
        checkpointer: The writer.
        pipeline: The programs; a checkpoint within an epoch stores the states of their random streams.
        rows: The rows; a checkpoint stores the position of their source.
        in_progress: Tells after an error whether values belong to whole steps.

    Attributes:
        awaits_rest: Whether values belong to an epoch whose remaining steps have not begun. The state at its beginning
            is already written.
    """

    def __init__(
        self, run: Run, checkpointer: Checkpointer, pipeline: Pipeline, rows: LoadedRows, in_progress: CallInProgress
    ) -> None:
        self._run, self._checkpointer, self._pipeline = run, checkpointer, pipeline
        self._rows, self._in_progress = rows, in_progress
        self._losses: LossAccumulator | None = None  # of the epoch that is running
        self.awaits_rest = False

    def run_begins(self) -> None:
        self._rows.loader.keep_positions()

    def steps_begin(self, losses: LossAccumulator) -> None:
        self._losses, self.awaits_rest = losses, False

    def most_steps(self, call: Call) -> int:
        return self._checkpointer.steps_until_due(self._run.step) or UNLIMITED

    def after_call(self, losses: LossAccumulator) -> None:
        self._checkpointer.after_step(self._pipeline, losses, self._rows.loader)

    def steps_end(self, losses: LossAccumulator, means: Mapping[str, float]) -> None:
        self._checkpointer.epoch_ends()

    def epoch_ends(self) -> None:
        self._losses = None
        self._checkpointer.after_epoch(self._rows.loader)

    def run_ends(self) -> None:
        self._checkpointer.end(self._rows.loader)

    def run_fails(self, error: BaseException) -> None:
        """Write the position of the run, if the values belong to whole steps."""
        if not self._in_progress.is_whole or self.awaits_rest:
            return
        try:
            self._checkpointer.after_error(self._pipeline, self._losses, self._rows.loader)
        except Exception as failure:
            error.add_note(f"the last checkpoint could not be written: {type(failure).__name__}: {failure}")


class Resumption(LoopExtension):
    """Continue a run from the position of an earlier one.

    Args:
        run: The run, without epochs yet.
        resumed: The position of the earlier run.
        writes: Checkpoint writes of this run; they cover the whole first epoch.
        checkpointer, pipeline, rows: See `CheckpointWrites`.
    """

    def __init__(
        self,
        run: Run,
        resumed: Position,
        writes: CheckpointWrites,
        checkpointer: Checkpointer,
        pipeline: Pipeline,
        rows: LoadedRows,
    ) -> None:
        self._run, self._resumed, self._writes = run, resumed, writes
        self._checkpointer, self._pipeline, self._rows = checkpointer, pipeline, rows
        self._is_over = False

    def run_begins(self) -> None:
        self._rows.loader.keep_positions()
        self._checkpointer.restore_run()
        self._checkpointer.restore_source(self._rows.loader)
        self._run.step = self._resumed.step
        self._writes.awaits_rest = self._resumed.step > 0

    def steps_begin(self, losses: LossAccumulator) -> None:
        """Add to the counted losses, and continue the random streams, in the first epoch only."""
        if self._is_over:
            return
        self._is_over = True
        losses.go_on_after(self._resumed.losses)
        self._writes.steps_begin(losses)
        self._checkpointer.restore_random(self._pipeline)
