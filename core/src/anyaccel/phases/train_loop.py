"""Train loop: epochs of steps; inside, nothing is looked up or waited for. Features are its extensions."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Any

from anyaccel import interrupts, rng
from anyaccel.phases.executor.cross_segment import Losses
from anyaccel.phases.executor.pipeline import Pipeline
from anyaccel.phases.loading.loader import Chunk, LoadedRows
from anyaccel.phases.loop_extension import Call, CallInProgress, LoopExtension
from anyaccel.phases.loss_accumulator import LossAccumulator
from anyaccel.phases.process_group import ProcessGroup
from anyaccel.phases.run import Run
from anyaccel.phases.settings import PhaseSettings
from anyaccel.results.records import Epoch


class TrainLoop:
    """The loop of one TrainPhase: epochs of chunks of rows, and calls of programs that run many steps each.

    Args:
        phase: The phase.
        run: Its record.
        pipeline: The programs.
        rows: Rows of the training.
        group: Processes that train together.
        in_progress: Record of the running call.
        extensions: Extensions that act at the moments of the loop, in this order.
    """

    def __init__(
        self,
        *,
        phase: PhaseSettings,
        run: Run,
        pipeline: Pipeline,
        rows: LoadedRows,
        group: ProcessGroup,
        in_progress: CallInProgress,
        extensions: Sequence[LoopExtension],
    ) -> None:
        self._phase, self._run, self._pipeline = phase, run, pipeline
        self._rows, self._group, self._in_progress = rows, group, in_progress
        self._at = Moments(extensions)
        self._pacing, self._pending = StepPacing(), PendingCalls()

    def run(self) -> None:
        """Run all remaining epochs, or fewer if the run is asked to stop."""
        run = self._run
        try:
            run.looping = True
            for begin in self._at.run_begins:
                begin()
            self._in_progress.is_whole, step = True, run.step
            for epoch in range(len(run.history), self._phase.epochs):
                if run.stop_reason:
                    break
                self._epoch(epoch, step)
                step = 0
            for end in self._at.run_ends:
                end()
            run.finalize()
        except BaseException as error:
            for fail in self._at.run_fails:
                fail(error)
            raise
        finally:
            for end in self._at.ended:
                end()
            self._rows.loader.prefetch(None)

    def _epoch(self, epoch: int, step: int) -> None:
        """Run one epoch; an earlier run may have done some of its steps."""
        run, label = self._run, self._phase.label
        run.epoch, run.step = epoch, step
        number = run.graph.progress.get(label, 0)
        for begin in self._at.epoch_begins:
            begin()
        if run.stop_reason:
            return
        began = time.perf_counter()
        self._pipeline.seed(rng.key(run.graph.seed, "steps", label, number, *self._group.random_key))
        losses = LossAccumulator(self._group.total)
        for begin in self._at.steps_begin:
            begin(losses)
        while True:
            means = self._attempt(number, losses)
            if not isinstance(means, BaseException):
                break
            failed_at = run.step
            if not any(failed(means, losses) for failed in self._at.failed):
                raise means
            self._pending.clear()
            for repeat in self._at.went_back:
                repeat(failed_at - run.step)
        self._record_times(are_read=True)
        for end in self._at.steps_end:
            end(losses, means)
        seconds = time.perf_counter() - began
        run.graph.progress[label] = number + 1
        trained, total = dict[str, float](), 0.0
        for loss in self._phase.losses:
            if loss.label in means:
                trained[loss.label] = means[loss.label]
                total += loss.weight * means[loss.label]
        total = total if trained else means.get("loss", math.nan)
        figures = {} if self._phase.step is None else means  # what a custom step returns, instead of losses
        run.history.append(Epoch(number, total, trained, run.step, seconds, step_figures=figures))
        run.timing = losses.timing(seconds)
        for end in self._at.epoch_ends:
            end()

    def _attempt(self, number: int, losses: LossAccumulator) -> dict[str, float] | BaseException:
        """The rest of an epoch; mean losses, or what ended it. It is over once all that was launched is computed."""
        self._in_progress.rows_at_once = 0
        loader = self._rows.loader
        prefetches = self._run.epoch + 1 < self._phase.epochs
        try:
            with closing(loader.chunks(number, self._run.step)) as chunks:
                for chunk in chunks:
                    if prefetches:  # once this epoch has its own order
                        loader.prefetch(number + 1)
                        prefetches = False
                    self._chunk(chunk, losses)
                    if not loader.reads_ahead:  # the next batch may be made by the models
                        self._pipeline.sync_values()
                    if self._run.stop_reason:
                        break
                    del chunk
            for end in self._at.rows_end:
                end()
            means = losses.means()
            self._pipeline.synchronize()
        except BaseException as error:  # returned, as what this frame holds may be in the way of what is done about it
            return error
        return means

    def _chunk(self, chunk: Chunk, losses: LossAccumulator) -> None:
        """Run the steps of a chunk: equal steps in calls of many steps each, other steps one by one."""
        run, at, runner = self._run, self._at, self._pipeline.runner(chunk.columns)
        for steps in chunk.steps:
            if run.stop_reason:
                break
            for begin in at.before_steps:
                begin(chunk, runner, steps)
            size, n_left = steps.size.at_most(self._rows.max_rows), steps.n_steps
            self._in_progress.rows_at_once = size.at_once
            if not steps.uniform:
                self._make(Call(runner, 0, 1, size, _train_step, n_steps=1, rows=steps.rows), losses)
                continue
            while n_left > 0 and not run.stop_reason:
                call = Call(runner, steps.start + (steps.n_steps - n_left) * size.rows, n_left, size, _train_steps)
                for agree in at.agree:
                    agree(call, self._most_steps(call))
                for prepare in at.before_call:
                    prepare(call)
                call.n_steps = call.n_steps or self._most_steps(call)
                began = time.perf_counter()
                step_losses = self._make(call, losses)
                self._pending.add(step_losses, call.n_steps, began)
                self._record_times()
                n_left -= call.n_steps

    def _most_steps(self, call: Call) -> int:
        """Return the number of steps of a call that the pacing and all extensions allow."""
        count = min(self._pacing.n_steps, call.n_left)
        for limit in self._at.most_steps:
            count = min(count, limit(call))
        return count

    def _make(self, call: Call, losses: LossAccumulator) -> list[Losses]:
        """Make a call, and count its steps."""
        run = self._run
        self._in_progress.n_steps = call.n_steps
        with ExitStack() as around:
            for enter in self._at.around_call:
                around.enter_context(enter(call))
            step_losses = call.train(call)
        first = run.step - call.n_counted
        self._in_progress.n_steps = 0
        try:
            losses.add(step_losses, first, call.n_steps, call.size.rows)
            for done in self._at.call_done:
                done(call, first, step_losses)
        finally:  # the steps are done, whatever others raise
            run.step = first + call.n_steps
        for after in self._at.after_call:
            after(losses)
        interrupts.check()
        return step_losses

    def _record_times(self, *, are_read: bool = False) -> None:
        for n_steps, seconds in self._pending.done(are_read=are_read):
            self._pacing.record(n_steps, seconds)
            for timed in self._at.call_timed:
                timed(n_steps, seconds)


def _train_steps(call: Call) -> list[Losses]:
    return call.runner.train_steps(call.start, call.n_steps, call.size)


def _train_step(call: Call) -> list[Losses]:
    assert call.rows is not None
    return call.runner.train_step(call.rows, call.size)


# -- Moments: what the extensions of a loop do at each of them ---------------------------------------------------------


_Acts = tuple[Callable[..., Any], ...]


class Moments:
    """The functions called at each moment: the overriding methods, in the order of the extensions."""

    run_begins: _Acts
    epoch_begins: _Acts
    steps_begin: _Acts
    before_steps: _Acts
    agree: _Acts
    before_call: _Acts
    most_steps: tuple[Callable[[Call], int], ...]
    around_call: _Acts
    call_done: _Acts
    after_call: _Acts
    call_timed: _Acts
    rows_end: _Acts
    failed: _Acts
    went_back: _Acts
    steps_end: _Acts
    epoch_ends: _Acts
    run_ends: _Acts
    run_fails: _Acts
    ended: _Acts

    def __init__(self, extensions: Sequence[LoopExtension]) -> None:
        for moment in type(self).__annotations__:
            found: list[Callable[..., Any]] = []
            for extension in extensions if moment != "ended" else reversed(extensions):
                if getattr(type(extension), moment) is not getattr(LoopExtension, moment):
                    found.append(getattr(extension, moment))
            setattr(self, moment, tuple(found))


# -- Step pacing: how many steps one call takes, so that progress and Ctrl-C do not wait for long, and what calls did


# A call may last half a second; this is what is aimed at.
_AIM_SECONDS = 0.2
_POLL_SECONDS = 0.0005


class StepPacing:
    """The number of steps of a call: few at first, then as many as fit into the target time.

    Attributes:
        n_steps: The number of steps for the next call.
    """

    n_steps = 1

    def record(self, n_steps: int, seconds: float) -> None:
        """Learn from a call. Grows by doubling only, as the first calls are slow and say little.

        Always a power of two, as some frameworks build something small for every number that they see. A call of
        fewer steps, as at the end of an epoch, counts only if it was too slow.
        """
        if n_steps < self.n_steps and seconds <= _AIM_SECONDS:
            return
        fitting = int(n_steps * _AIM_SECONDS / max(seconds, 1e-9))
        self.n_steps = min(self.n_steps * 2, 1 << max(fitting.bit_length() - 1, 0))


class PendingCalls:
    """Calls that were launched and may still be computed: at most two.

    Nothing waits for a device: it is asked now and then whether a call is done, while the next one is queued there.
    """

    def __init__(self) -> None:
        self._calls: deque[tuple[Sequence[Losses], int, float]] = deque()
        self._finished_at = 0.0

    def add(self, losses: Sequence[Losses], n_steps: int, began: float) -> None:
        """Add a call of `n_steps` steps that was launched."""
        self._calls.append((losses, n_steps, began))

    def done(self, *, are_read: bool = False) -> Iterator[tuple[int, float]]:
        """Yield the steps and seconds of each call that is done by now; of all calls if their losses have been read."""
        while self._calls:
            losses, n_steps, began = self._calls[0]
            for pending in () if are_read else losses:
                while not pending.is_ready():
                    if len(self._calls) < 2:
                        return
                    time.sleep(_POLL_SECONDS)
                    interrupts.check()
            self._calls.popleft()
            before, self._finished_at = self._finished_at, time.perf_counter()
            yield n_steps, self._finished_at - max(began, before)

    def clear(self) -> None:
        """Drop calls that have failed."""
        self._calls.clear()
