"""Out-of-memory recovery: stream rows, then compute fewer at once, from a snapshot; finally raise an error with all
causes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from anyaccel import interrupts
from anyaccel.backend import Memory
from anyaccel.errors import AnyaccelError, EstimatorError, OutOfMemoryError
from anyaccel.phases.callbacks import Callback
from anyaccel.phases.executor.pipeline import ChunkRunner, Pipeline
from anyaccel.phases.loading.epoch_plan import StepRange, StepRows, StepSize
from anyaccel.phases.loading.loader import BatchLoader, LoadedRows
from anyaccel.phases.loading.residency import LoaderFactory, Place, free_memory, state_slots
from anyaccel.phases.loop_extension import CallInProgress, LoopExtension
from anyaccel.phases.loss_accumulator import LossAccumulator
from anyaccel.phases.memory_error import as_out_of_memory, release_frames
from anyaccel.phases.run import Run
from anyaccel.phases.settings import PhaseSettings
from anyaccel.printable import size
from anyaccel.registry import registry
from anyaccel.results.events import LogEvent

_SNAPSHOT_SHARE = 0.002
"""The part of a loop's time that snapshots may take. They also drive what steps use out of the caches."""


_WORTHWHILE_SHARE = 0.1
"""Snapshots are given up only if they take at least this share of the memory that is free."""
Result = TypeVar("Result")


class OutOfMemoryRecovery(LoadedRows):
    """The rows of one phase or of its validation, and the measures when they do not fit.

    Args:
        name: Name of the phase, for events.
        loader: Loader of the rows.
        report: Creator of the error that ends the phase; it knows the rows.
        log_event: Function that receives the measures.

    Attributes:
        batch_size: Largest number of rows of one feature set in a step.
        snapshots: Snapshots that may be released to free memory; or None.
    """

    def __init__(self, *, name: str, loader: BatchLoader, report: OutOfMemoryReport, log_event: LogEvent) -> None:
        super().__init__(loader)
        self.batch_size = report.factory.batch_size
        self.snapshots: EpochRecovery | None = None
        self._name, self._report, self._log_event = name, report, log_event

    def make_room(self, error: MemoryError, n_rows: int = 0) -> None:
        """Take the next measure after `n_rows` rows, computed at once, have failed; 0 for whole steps.

        Raises:
            OutOfMemoryError: no measure is left; reports what fills the memory, and what would fit.
        """
        _release(error)
        error = as_out_of_memory(error)
        if self._report.may_stream and self.loader.residency != "streamed":
            self.loader.close()
            self.loader = self._report.factory.streamed()
            if self.max_rows:
                self.loader.limit_rows(self.max_rows)
            self._log(error, "rows are streamed from now on")
            return
        shrunk = self.loader.shrink()
        n_rows = n_rows or self.batch_size
        at_once = min(self.max_rows or n_rows, n_rows)
        indivisible = at_once <= 1 or bool(self._report.couplings)
        if not indivisible and self._gives_up_snapshots(at_once):
            self._log(error, "snapshots are no longer taken, because whole steps do not fit next to them")
        elif not indivisible:
            self.max_rows = smaller(n_rows, at_once)
            self.loader.limit_rows(self.max_rows)
            self._log(error, f"{self.max_rows} of {n_rows} rows at a time from now on")
        elif shrunk:
            self._log(error, "rows are streamed in smaller blocks from now on")
        elif self._snapshots_hold(unknown=True) and self.snapshots is not None and self.snapshots.give_up():
            self._log(error, "snapshots are no longer taken, to save memory")
        else:
            raise self.final_error(error, at_once) from None

    def _gives_up_snapshots(self, at_once: int) -> bool:
        """Return whether current steps fit without snapshots, which were then released.

        Right after a restore, a state of immutable arrays is the snapshot itself, and they use memory once: steps that
        fit now fit without snapshots. If a snapshot is a copy, dropping it makes room for the steps. Otherwise
        snapshots are kept, because no failing step can be retried without them. Streamed blocks are then made as small
        as possible, for a margin.
        """
        snapshots = self.snapshots
        if snapshots is None or not (self.loader.repeatable and self._snapshots_hold(unknown=False)):
            return False
        if not snapshots.after_trial(partial(self._report.fits, self.loader, at_once)):
            return False
        while self.loader.shrink():
            pass
        return snapshots.give_up()

    def _snapshots_hold(self, *, unknown: bool) -> bool:
        """Return whether they use a worthwhile part of the free memory of some device; `unknown` if devices do not
        report it.
        """
        sizes = [(nbytes, free_memory(place)) for place, nbytes in self._report.snapshot_bytes().items()]
        measured = [(nbytes, free) for nbytes, free in sizes if free is not None]
        return any(nbytes >= _WORTHWHILE_SHARE * free for nbytes, free in measured) or (
            unknown and len(measured) < len(sizes)
        )

    def final_error(self, error: OutOfMemoryError, n_rows: int) -> OutOfMemoryError:
        """Return the error that ends the phase after a step of `n_rows` rows has failed."""
        _release(error)
        n_rows = n_rows or self.batch_size
        return self._report.error(error, min(self.max_rows or n_rows, n_rows), self.loader)

    def close(self) -> None:
        """Release all rows on devices."""
        self.loader.close()

    def _log(self, error: OutOfMemoryError, measure: str) -> None:
        self._log_event("memory", f"{self._name}: memory ran out ({error.problem}); {measure}")


def _release(error: MemoryError) -> None:
    """Release everything that an error holds: its frames keep values of inner functions, even when they are cleared."""
    release_frames(error)
    error.__traceback__ = error.__context__ = error.__cause__ = None


def smaller(batch_size: int, at_once: int) -> int:
    """Return about half of `at_once`: the largest divisor of the batch that is not below a quarter, otherwise half of
    it.
    """
    half = -(-at_once // 2)
    return next((size for size in range(half, max(at_once // 4, 1) - 1, -1) if batch_size % size == 0), half)


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """A position to resume an epoch from: completed steps, entries of the losses, and states, including those of
    callbacks.
    """

    step: int
    n_losses: int
    state: Any
    heard: list[dict[str, Any]]


class EpochRecovery(LoopExtension):
    """Restore a snapshot in a training if memory ran out, or if an error interrupted a step.

    Snapshots are taken at the start of each epoch and then, if the loader can continue at any step, at intervals that
    cost little time.

    Args:
        run: The run, which counts steps.
        pipeline: The programs, which count their completed steps.
        room: Measures if rows do not fit.
        callbacks: Callbacks, which are restored, too: they receive the repeated steps again.
        in_progress: The call that an error ends.
        steps_before: Steps of an earlier run, which the programs do not count.
        takes_snapshots: Whether there may be room for them.
        goes_on: Whether a step is done again after memory ran out; other processes may wait in the failed step.
    """

    def __init__(
        self,
        run: Run,
        pipeline: Pipeline,
        room: OutOfMemoryRecovery,
        callbacks: Sequence[Callback],
        in_progress: CallInProgress,
        *,
        steps_before: int = 0,
        takes_snapshots: bool = True,
        goes_on: bool = True,
    ) -> None:
        self._run, self._pipeline, self._room, self._in_progress = run, pipeline, room, in_progress
        self._callbacks, self._steps_before, self._goes_on = tuple(callbacks), steps_before, goes_on
        self._takes_snapshots, self._within_epoch = takes_snapshots, room.loader.repeatable
        self._last: _Snapshot | None = None
        self._seconds, self._taken_at = 0.0, 0.0
        room.snapshots = self

    def after_call(self, losses: LossAccumulator) -> None:
        """Take a snapshot if it is time.

        Raises:
            OutOfMemoryError: a step did not fit; the previous snapshot is kept.
        """
        pause = time.perf_counter() - self._taken_at
        if self._within_epoch and self._last is not None and pause > self._seconds / _SNAPSHOT_SHARE:
            self.steps_begin(losses)

    def steps_end(self, losses: LossAccumulator, means: Mapping[str, float]) -> None:
        self._last = None  # a validation may need the room

    def ended(self) -> None:
        self._last = self._room.snapshots = None  # they would hold each other, and the programs, until collected

    def steps_begin(self, losses: LossAccumulator) -> None:
        """Take a snapshot after the steps so far, of which these are the losses; also within an epoch."""
        if not self._takes_snapshots:
            return
        began = time.perf_counter()
        self._pipeline.synchronize()  # a step may have failed that was launched since the old one, which is good
        self._last = None  # it makes room
        try:
            heard = []
            for callback in self._callbacks:
                heard.append(callback.state_dict())
            self._last = _Snapshot(self._run.step, len(losses), self._pipeline.snapshot(), heard)
        except (MemoryError, EstimatorError) as error:  # without a copy, a later failure is final
            release_frames(error)
        self._taken_at = time.perf_counter()
        self._seconds = self._taken_at - began

    def restore(self, losses: LossAccumulator) -> int | None:
        """Restore the last snapshot and return its number of completed steps; None if there is no snapshot."""
        if self._last is None:
            return None
        self._pipeline.restore(self._last.state)
        for callback, state in zip(self._callbacks, self._last.heard, strict=True):
            if state:
                callback.load_state_dict(state)
        losses.truncate(self._last.n_losses, self._last.step)
        return self._last.step

    def after_trial(self, trial: Callable[[], bool]) -> bool:
        """Return the result of a trial, whose steps are undone; False without a snapshot."""
        if self._last is None:
            return False
        try:
            return trial()
        finally:
            self._pipeline.restore(self._last.state)

    def give_up(self) -> bool:
        """Stop taking snapshots, which need memory themselves; return False if none were taken."""
        gave_up, self._takes_snapshots, self._last = self._takes_snapshots, False, None
        return gave_up

    def failed(self, failure: BaseException, losses: LossAccumulator) -> bool:
        """Free memory and restore a snapshot after an out-of-memory error; otherwise record which whole steps the
        values belong to.

        Raises:
            OutOfMemoryError: memory ran out, and no snapshot exists, or no measure is left.
        """
        if not isinstance(failure, MemoryError):
            failed_in_step = isinstance(failure, AnyaccelError) and not self._pipeline.is_updating
            self._settle(failure, losses)
            if failed_in_step:
                failure.add_note(f"it was step {self._run.step + 1} of epoch {self._run.epoch + 1}")
            return False
        failure = as_out_of_memory(failure)
        release_frames(failure)  # what it holds would be in the way
        tried_rows = self._in_progress.rows_at_once
        resumed = self.restore(losses) if self._goes_on else None
        if resumed is None:
            self._in_progress.is_whole = False
            raise self._room.final_error(failure, tried_rows) from None
        try:
            self._room.make_room(failure, tried_rows)
        finally:  # its events say at which step memory ran out
            self._run.step, self._in_progress.n_steps = resumed, 0
        return True

    def _settle(self, error: BaseException, losses: LossAccumulator) -> None:
        """Count the steps that were done before an error, or restore a snapshot if one failed or may be half done.

        A note of the error reports whether the run was restored.
        """
        run, call = self._run, self._in_progress
        try:
            if self._last is not None:
                self._pipeline.synchronize()
        except Exception as earlier:  # a launched step has failed
            release_frames(earlier)
            with suppress(MemoryError):  # without room for the values, closing the programs says that they are lost
                run.step, call.n_steps = self.restore(losses) or 0, 0
                error.add_note(f"a step before it failed too: values are those after {run.step} steps of this epoch")
        if not call.n_steps:
            return
        try:
            if not interrupts.was_forced() and not self._pipeline.is_updating:
                earlier_steps = sum(epoch.steps for epoch in run.history) - self._steps_before
                n_done = self._pipeline.count_steps() - earlier_steps - run.step
                run.step += min(max(n_done, 0), call.n_steps)
            elif (resumed := self.restore(losses)) is not None:
                run.step = resumed
                error.add_note(f"a step was broken off: values are those after {run.step} steps of this epoch")
            else:
                call.is_whole = False
                error.add_note("a step was broken off, and there is no snapshot: values may be those of two steps")
        except Exception as failure:  # the error itself matters more
            call.is_whole = False
            error.add_note(f"the steps of the last call could not be counted: {type(failure).__name__}: {failure}")


# -- Out-of-memory report: the error that says what did not fit, what fills the memory, and what would fit -------------


_MAX_TRIALS = 10

Trial = Callable[[StepRows, int | None], None]
"""Computes some rows of a step, so many at once, and raises if they do not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemoryReport:
    """Create the error that ends a phase.

    Attributes:
        part: The phase, or its validation.
        may_stream: Whether the phase allows streaming of rows.
        learners: Labels of the estimators that learn from each batch of a training.
        factory: Factory of the loaders of the rows.
        pipeline: The programs.
        may_try: Whether steps may be tried to find how many rows fit; others would take their gradients for real ones.
    """

    part: PhaseSettings
    may_stream: bool
    learners: Sequence[str]
    factory: LoaderFactory
    pipeline: Pipeline
    may_try: bool = True

    @property
    def couplings(self) -> list[str]:
        """The reasons why a step is not computed in micro-batches; empty if it may be.

        Models report what makes the rows of a training batch depend on each other (batch normalization). For a custom
        loss function or class, it is unknown whether it is a mean over independent rows.
        """
        phase, stages = self.part, self.pipeline.stages
        if phase.step is not None:
            return ["the custom step"]
        if phase.trains and phase.microbatching == "approximate":
            return []
        couplings: dict[str, None] = {}
        for stage in stages if phase.trains else ():
            for operation in stage.segment.operations:
                if operation.trainable and operation.model is not None:
                    why = stage.backend.batch_coupling(operation.model)
                    if why:
                        couplings[f"{why} in node {operation.label!r}"] = None
        terms = [term for stage in stages for term in stage.segment.losses]
        learn = self.learners if phase.trains else ()
        return [
            *couplings,
            *(f"the custom loss {term.label!r}" for term in terms if term.loss.own is not None),
            *(f"the estimator {label!r}, which learns from each batch" for label in learn),
        ]

    def error(self, cause: OutOfMemoryError, n_rows: int, loader: BatchLoader) -> OutOfMemoryError:
        """Return the error after `n_rows` rows, computed at once, did not fit."""
        fitting = self._largest_batch(loader, n_rows)
        parts = [] if fitting is None else ["not even one row fits" if fitting == 0 else f"{_rows(fitting)} would fit"]
        couplings = self.couplings
        why = f", and micro-batches are ruled out by {' and '.join(couplings)}" if couplings else ""
        doing = "to train" if self.part.trains else "for"
        smaller = "a smaller batch" if fitting is None else f"batches of at most {fitting}"
        hints = ["use a smaller model" if fitting == 0 else f"use {smaller} or a smaller model"]
        if not self.may_stream:
            hint = "set residency='auto' to stream rows that do not fit"
            hints.append(hint)
        if self.part.trains and couplings:
            hint = "set microbatching='approximate' to allow micro-batches anyway"
            hints.append(hint)
        return OutOfMemoryError(
            f"phase {self.part.label!r}: not enough memory {doing} {_rows(n_rows)} at once{why}: {cause.problem}",
            cause="; ".join([*self._memory_use(loader.residency), *parts]),
            hint=", or ".join(hints),
        )

    def _memory_use(self, residency: str) -> Iterator[str]:
        """Yield the known contents of each device, by category."""
        groups = [group for stage in self.pipeline.stages for group in stage.segment.groups]
        optimizers = {node: group.optimizer for group in groups for node in group.nodes}
        assignments, data = self.factory.plan.assignments, self.factory.nbytes()
        for place in dict.fromkeys((assignment.framework, assignment.device) for assignment in assignments):
            here = [assignment for assignment in assignments if (assignment.framework, assignment.device) == place]
            trained = [assignment for assignment in here if assignment.node in optimizers]
            categories = {
                "parameters": sum(assignment.nbytes for assignment in here),
                "gradients": sum(assignment.nbytes for assignment in trained),
                "optimizer state": sum(
                    assignment.nbytes * state_slots(optimizers[assignment.node]) for assignment in trained
                ),
                "data" if residency == "resident" else f"data ({residency})": data.get(place, 0),
            }
            parts = ", ".join(f"{name} {size(nbytes)}" for name, nbytes in categories.items() if nbytes)
            memory = registry().find(place[0], place[1].kind).capability(Memory)
            now = None if memory is None else memory.memory(place[1])
            rest = "not measured there"
            if now is not None and now.total:
                rest = f"the remainder of {size(now.total)} ({size(now.free)} are free now)"
            yield f"{place[1]} ({place[0]}): {parts}; activations and the rest: {rest}"

    def _largest_batch(self, loader: BatchLoader, n_rows: int) -> int | None:
        """Return the most rows that fit at once, by at most `_MAX_TRIALS` trials that change nothing; None if
        unknown.
        """
        if not self._can_try:
            return None
        try:
            snapshot = self.pipeline.snapshot()
            try:
                return self._first_step(loader, partial(_search, n_rows=n_rows))
            finally:
                self.pipeline.restore(snapshot)
        except (AnyaccelError, MemoryError) as error:  # no room for a copy or for rows, or they cannot be loaded again
            release_frames(error)
            return None

    def fits(self, loader: BatchLoader, n_rows: int) -> bool:
        """Whether training steps fit now with that many rows at once; the caller restores a snapshot afterwards.

        They are whole steps: between micro-batches gradients take memory, and more where the last one is smaller.
        """
        if not self._can_try:
            return False
        try:
            return self._first_step(loader, partial(_step_fits, at_once=n_rows))
        except (AnyaccelError, MemoryError) as error:
            release_frames(error)
            return False

    @property
    def _can_try(self) -> bool:
        return self.may_try and all(stage.program.raises_out_of_memory for stage in self.pipeline.stages)

    def _first_step(self, loader: BatchLoader, judge: Callable[[Trial, StepRange], Result]) -> Result:
        """Return the result of `judge` for the first step of an epoch, given a function that computes some of its
        rows.
        """
        with closing(loader.chunks(0)) as chunks:
            chunk = next(chunks)
            return judge(partial(self._compute, self.pipeline.runner(chunk.columns)), chunk.steps[0])

    def _compute(self, runner: ChunkRunner, rows: StepRows, at_once: int | None) -> None:
        """Compute some rows, in training at most `at_once` together, and wait for the results."""
        if self.part.trains:
            n_rows = max(stop - start for start, stop in rows.values())
            runner.try_step(rows, StepSize(n_rows, at_once))
            self.pipeline.synchronize()
            return
        values, step_losses = runner.evaluate(rows)
        for name, value in values.items():
            if value is not None:
                self.pipeline.to_host(name, value)
        losses = LossAccumulator()
        losses.add(step_losses)
        losses.means()

    def snapshot_bytes(self) -> dict[Place, int]:
        """Return bytes of a snapshot: parameters that are trained, and their optimizer state, by framework and
        device.
        """
        groups = [group for stage in self.pipeline.stages for group in stage.segment.groups]
        slots = {node: state_slots(group.optimizer) for group in groups for node in group.nodes}
        nbytes: dict[Place, int] = {}
        for assignment in self.factory.plan.assignments:
            if assignment.node in slots:
                place = (assignment.framework, assignment.device)
                nbytes[place] = nbytes.get(place, 0) + assignment.nbytes * (1 + slots[assignment.node])
        return nbytes


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"


def _search(trial: Trial, step: StepRange, n_rows: int) -> int:
    low, high = 0, n_rows
    for _ in range(_MAX_TRIALS):
        middle = (low + high) // 2
        if middle == low:
            break
        if _fits(trial, _first_rows(step, middle)):
            low = middle
        else:
            high = middle
    return low


def _first_rows(step: StepRange, n: int) -> StepRows:
    """Return the first `n` rows of each feature set of a step, or as many as it takes."""
    return {name: (start, min(start + n, stop)) for name, (start, stop) in step.rows.items()}


def _step_fits(trial: Trial, step: StepRange, at_once: int) -> bool:
    """Return whether a step fits in micro-batches, including a smaller last one, as in a last, partial batch."""
    n_rows = step.batch_size
    sizes = [n_rows] if at_once >= n_rows else [n_rows, n_rows - 1]
    return all(_fits(trial, _first_rows(step, size), at_once) for size in sizes)


def _fits(trial: Trial, rows: StepRows, at_once: int | None = None) -> bool:
    try:
        trial(rows, at_once)
    except Exception as error:  # some models take no single row, say: a size that does not fit
        release_frames(error)
        return False
    return True
