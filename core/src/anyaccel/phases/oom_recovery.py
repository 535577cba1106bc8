"""Out-of-memory recovery: stream rows, then compute fewer at once, from a snapshot; else one error that says all."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from anyaccel import interrupts
from anyaccel.errors import AnyaccelError, EstimatorError, OutOfMemoryError
from anyaccel.phases.callbacks import Callback
from anyaccel.phases.executor.pipeline import Pipeline
from anyaccel.phases.executor.stage import PipelineStage
from anyaccel.phases.loading.loader import BatchLoader, LoadedRows
from anyaccel.phases.loading.loader_factory import free_memory
from anyaccel.phases.loop_extension import CallInProgress, LoopExtension
from anyaccel.phases.loss_accumulator import LossAccumulator
from anyaccel.phases.memory_error import as_out_of_memory
from anyaccel.phases.oom_report import OutOfMemoryReport
from anyaccel.phases.run import Run
from anyaccel.phases.traceback_cleanup import release_frames
from anyaccel.results.events import LogEvent

_SNAPSHOT_SHARE = 0.002
"""The part of a loop's time that snapshots may take. They also drive what steps use out of the caches."""


_WORTHWHILE_SHARE = 0.1
"""Snapshots are given up only if they take at least this share of the memory that is free."""


class OutOfMemoryRecovery:
    """The rows of one phase or of its validation, and what is done when they do not fit.

    Args:
        name: whose rows, for events.
        loader: the rows.
        batch_size: the most rows of one feature set in a step.
        streamed: makes a loader of the same rows that needs less memory; None if they may not be streamed.
        report: makes the error that ends the phase.
        log_event: receives what is done.

    Attributes:
        rows: as they are taken now.
        batch_size: as given.
        snapshots: that may be given up to make room; None if there are none.
    """

    def __init__(
        self,
        *,
        name: str,
        loader: BatchLoader,
        batch_size: int,
        streamed: Callable[[], BatchLoader] | None,
        report: OutOfMemoryReport,
        log_event: LogEvent,
    ) -> None:
        self.rows = LoadedRows(loader)
        self.batch_size = batch_size
        self.snapshots: Snapshots | None = None
        self._name, self._streamed, self._report, self._log_event = name, streamed, report, log_event

    def make_room(self, error: OutOfMemoryError, n_rows: int) -> None:
        """Take the next measure after `n_rows` rows, computed at once, have failed.

        Raises:
            OutOfMemoryError: nothing is left to be done; says what fills the memory, and what would fit.
        """
        _release(error)
        if self._streamed is not None and self.rows.loader.residency != "streamed":
            self.rows.loader.close()
            self.rows.loader = self._streamed()
            if self.rows.microbatch_size:
                self.rows.loader.limit_rows(self.rows.microbatch_size)
            self._log(error, "rows are streamed from now on")
            return
        shrunk = self.rows.loader.shrink()
        n_rows = n_rows or self.batch_size
        at_once = min(self.rows.microbatch_size or n_rows, n_rows)
        indivisible = at_once <= 1 or bool(self._report.couplings)
        if not indivisible and self._gives_up_snapshots(at_once):
            self._log(error, "snapshots, beside which whole steps do not fit, are not taken any more")
        elif not indivisible:
            self.rows.microbatch_size = smaller(n_rows, at_once)
            self.rows.loader.limit_rows(self.rows.microbatch_size)
            self._log(error, f"{self.rows.microbatch_size} rows of {n_rows} at once now")
        elif shrunk:
            self._log(error, "rows are streamed in smaller blocks now")
        elif self._snapshots_hold(unknown=True) and self.snapshots is not None and self.snapshots.give_up():
            self._log(error, "snapshots, which need room, are not taken any more")
        else:
            raise self.final_error(error, at_once) from None

    def _gives_up_snapshots(self, at_once: int) -> bool:
        """Whether steps as they are fit without snapshots, so that these were given up.

        Just restored, a state of immutable arrays is the snapshot itself, and they take memory once: what fits now
        fits without snapshots. Where a snapshot is a copy, what fits beside it fits without. Otherwise they are kept:
        without one, a step that fails is the end. Streamed blocks are made as small as can be then, for a margin.
        """
        snapshots = self.snapshots
        if snapshots is None or not (self.rows.loader.repeatable and self._snapshots_hold(unknown=False)):
            return False
        if not snapshots.after_trial(partial(self._report.fits, self.rows.loader, at_once)):
            return False
        while self.rows.loader.shrink():
            pass
        return snapshots.give_up()

    def _snapshots_hold(self, *, unknown: bool) -> bool:
        """Whether they take a worthwhile share of what is free on some device; `unknown` if devices do not say."""
        sizes = [(nbytes, free_memory(place)) for place, nbytes in self._report.snapshot_bytes().items()]
        known = [(nbytes, free) for nbytes, free in sizes if free is not None]
        return any(nbytes >= _WORTHWHILE_SHARE * free for nbytes, free in known) or (
            unknown and len(known) < len(sizes)
        )

    def final_error(self, error: OutOfMemoryError, n_rows: int) -> OutOfMemoryError:
        """The error that ends the phase after a step of `n_rows` rows has failed."""
        _release(error)
        n_rows = n_rows or self.batch_size
        return self._report.error(error, min(self.rows.microbatch_size or n_rows, n_rows), self.rows.loader)

    def _log(self, error: OutOfMemoryError, measure: str) -> None:
        self._log_event("memory", f"{self._name}: memory ran out ({error.problem}); {measure}")


def _release(error: OutOfMemoryError) -> None:
    """Let go of all that an error holds: its frames keep what inner functions see, even when they are cleared."""
    release_frames(error)
    error.__traceback__ = error.__context__ = error.__cause__ = None


def smaller(batch_size: int, at_once: int) -> int:
    """About half of `at_once`: the largest that divides the batch and is not below a quarter, else half of it."""
    half = -(-at_once // 2)
    return next((size for size in range(half, max(at_once // 4, 1) - 1, -1) if batch_size % size == 0), half)


def training_couplings(stages: Sequence[PipelineStage]) -> list[str]:
    """What makes the rows of a training batch depend on each other, or may do so; empty if nothing does.

    Models say so themselves (batch normalization in training does); of a loss that is the user's own function or class
    it is not known whether it is a mean over independent rows.
    """
    return list(dict.fromkeys([*_coupled_models(stages), *custom_losses(stages)]))


def _coupled_models(stages: Sequence[PipelineStage]) -> Iterator[str]:
    for stage in stages:
        for operation in stage.segment.operations:
            if operation.trainable and operation.model is not None:
                why = stage.backend.batch_coupling(operation.model)
                if why:
                    yield f"{why} in node {operation.label!r}"


def custom_losses(stages: Sequence[PipelineStage]) -> list[str]:
    """The losses that are the user's own, which may not be means over rows."""
    terms = [term for stage in stages for term in stage.segment.losses]
    return [f"the loss {term.label!r}, which is your own" for term in terms if term.loss.own is not None]


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """Where an epoch can be resumed: steps that are done, entries of the losses, and states, also of callbacks."""

    step: int
    n_losses: int
    state: Any
    heard: list[dict[str, Any]]


class Snapshots:
    """Snapshots of one epoch: at its start, and then as often as they cost little of the time.

    Args:
        pipeline: the programs.
        within_epoch: whether an epoch can be resumed at any step, or only at its start.
        callbacks: go back too: they hear once more of the steps that are done again.
    """

    def __init__(self, pipeline: Pipeline, within_epoch: bool, callbacks: Sequence[Callback] = ()) -> None:
        self._pipeline, self._within_epoch, self._callbacks = pipeline, within_epoch, tuple(callbacks)
        self._last: _Snapshot | None = None
        self._seconds, self._taken_at = 0.0, 0.0
        self._given_up = False

    def begin_epoch(self, step: int = 0) -> None:
        """Take one at the start of an epoch, or after the steps that an earlier run has done."""
        self._take(step, 0)

    def after_step(self, step: int, losses: LossAccumulator) -> None:
        """So many steps are done: take one if it is time.

        Raises:
            OutOfMemoryError: one of them did not fit; the snapshot before is kept.
        """
        if not self._within_epoch or self._last is None:
            return
        if time.perf_counter() - self._taken_at > self._seconds / _SNAPSHOT_SHARE:
            self._take(step, len(losses))

    def _take(self, step: int, n_losses: int) -> None:
        if self._given_up:
            return
        began = time.perf_counter()
        self._pipeline.synchronize()  # a step may have failed that was launched since the old one, which is good
        self._last = None  # it makes room
        try:
            heard = [callback.state_dict() for callback in self._callbacks]
            self._last = _Snapshot(step, n_losses, self._pipeline.snapshot(), heard)
        except (MemoryError, EstimatorError) as error:  # without a copy, a later failure is final
            release_frames(error)
        self._taken_at = time.perf_counter()
        self._seconds = self._taken_at - began

    def restore(self, losses: LossAccumulator) -> int | None:
        """Go back to the last snapshot; the steps that were done by then. None if there is none."""
        if self._last is None:
            return None
        self._pipeline.restore(self._last.state)
        for callback, state in zip(self._callbacks, self._last.heard, strict=True):
            if state:
                callback.load_state_dict(state)
        losses.truncate(self._last.n_losses)
        return self._last.step

    def after_trial(self, trial: Callable[[], bool]) -> bool:
        """What a trial says, whose steps are undone; False without a snapshot."""
        if self._last is None:
            return False
        try:
            return trial()
        finally:
            self._pipeline.restore(self._last.state)

    def rescue(self, losses: LossAccumulator) -> int | None:
        """Go back to the last snapshot if steps that were launched have failed; the steps done by then, else None."""
        if self._last is None:
            return None
        try:
            self._pipeline.synchronize()
        except Exception as error:
            release_frames(error)
            with suppress(MemoryError):  # without room for the values, closing the programs says that they are lost
                return self.restore(losses)
        return None

    def give_up(self) -> bool:
        """Take no more snapshots, which need memory themselves; False if that is so already."""
        gave_up, self._given_up, self._last = not self._given_up, True, None
        return gave_up

    def clear(self) -> None:
        """Drop the last snapshot."""
        self._last = None


class EpochRecovery(LoopExtension):
    """Lets a training go back to a snapshot where memory ran out, or where an error broke a step off.

    Args:
        run: counts steps.
        pipeline: the programs, which count the steps that they have done.
        room: what is done where rows do not fit.
        callbacks: go back too.
        in_progress: the call that an error ends.
        steps_before: of an earlier run, which the programs do not count.
        takes_snapshots: whether there may be room for them.
        goes_on: whether a step is done again where memory ran out; others may wait in the one that failed.
    """

    def __init__(
        self,
        run: Run,
        pipeline: Pipeline,
        room: OutOfMemoryRecovery,
        callbacks: Sequence[Callback],
        in_progress: CallInProgress,
        *,
        steps_before: int,
        takes_snapshots: bool,
        goes_on: bool,
    ) -> None:
        self._run, self._pipeline, self._room, self._in_progress = run, pipeline, room, in_progress
        self._snapshots = room.snapshots = Snapshots(pipeline, room.rows.loader.repeatable, callbacks)
        self._steps_before, self._takes_snapshots, self._goes_on = steps_before, takes_snapshots, goes_on

    def steps_begin(self, losses: LossAccumulator) -> None:
        if self._takes_snapshots:
            self._snapshots.begin_epoch(self._run.step)

    def after_call(self, losses: LossAccumulator) -> None:
        self._snapshots.after_step(self._run.step, losses)

    def failed(self, failure: BaseException, losses: LossAccumulator) -> bool:
        """Make room and go back, where it was memory; else say of which whole steps the values are."""
        if isinstance(failure, MemoryError):
            self._go_back(as_out_of_memory(failure), losses)
            return True
        failed_in_step = isinstance(failure, AnyaccelError) and not self._pipeline.is_updating
        self._settle(failure, losses)
        if failed_in_step:
            failure.add_note(f"it was step {self._run.step + 1} of epoch {self._run.epoch + 1}")
        return False

    def _go_back(self, failure: OutOfMemoryError, losses: LossAccumulator) -> None:
        """Make room, and go back to the last snapshot.

        Raises:
            OutOfMemoryError: there is none, or nothing is left to be done.
        """
        release_frames(failure)  # what it holds would be in the way
        tried_rows = self._in_progress.rows_at_once
        resumed = self._snapshots.restore(losses) if self._goes_on else None
        if resumed is None:
            self._in_progress.is_whole = False
            raise self._room.final_error(failure, tried_rows) from None
        try:
            self._room.make_room(failure, tried_rows)
        finally:  # its events say at which step memory ran out
            self._run.step, self._in_progress.n_steps = resumed, 0

    def _settle(self, error: BaseException, losses: LossAccumulator) -> None:
        """Count the steps that were done before an error, or go back if one failed or may be done by half.

        Where the run went back, or could not, a note of the error says so.
        """
        run, call = self._run, self._in_progress
        rescued = self._snapshots.rescue(losses)
        if rescued is not None:
            run.step, call.n_steps = rescued, 0
            error.add_note(f"a step before it failed too: values are those after {rescued} steps of this epoch")
        if not call.n_steps:
            return
        try:
            if not interrupts.was_forced() and not self._pipeline.is_updating:
                earlier = sum(epoch.steps for epoch in run.history) - self._steps_before
                n_done = self._pipeline.count_steps() - earlier - run.step
                run.step += min(max(n_done, 0), call.n_steps)
            elif (resumed := self._snapshots.restore(losses)) is not None:
                run.step = resumed
                error.add_note(f"a step was broken off: values are those after {run.step} steps of this epoch")
            else:
                call.is_whole = False
                error.add_note("a step was broken off, and there is no snapshot: values may be those of two steps")
        except Exception as failure:  # the error itself matters more
            call.is_whole = False
            error.add_note(f"the steps of the last call could not be counted: {type(failure).__name__}: {failure}")

    def steps_end(self, losses: LossAccumulator, means: Mapping[str, float]) -> None:
        self._snapshots.clear()  # a validation may need the room

    def run_ends(self) -> None:
        self._snapshots.clear()

    def ended(self) -> None:
        self._snapshots.clear()
