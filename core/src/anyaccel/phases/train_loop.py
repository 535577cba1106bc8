"""Train loop: epochs of steps; inside, nothing is looked up or waited for."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace

from anyaccel import interrupts, rng
from anyaccel.errors import AnyaccelError, OutOfMemoryError
from anyaccel.phases.checkpointing.checkpointer import Checkpointer
from anyaccel.phases.checkpointing.position import Position
from anyaccel.phases.compile_policy import CompilePolicy
from anyaccel.phases.compiled_changes import refuse_changes_between_steps, renew_compiled
from anyaccel.phases.distributed.checks import buffer_check, mean_check
from anyaccel.phases.distributed.sharding import divides
from anyaccel.phases.distributed.shared_calls import SharedCalls
from anyaccel.phases.estimator_partial_fit import PartialFitEstimators
from anyaccel.phases.evaluation import Evaluation
from anyaccel.phases.executor.pipeline import ChunkRunner, Pipeline
from anyaccel.phases.executor.stage import Losses
from anyaccel.phases.finished_steps import FinishedSteps
from anyaccel.phases.hooks import HookCaller
from anyaccel.phases.loading.epoch_plan import StepRange
from anyaccel.phases.loading.loader import Chunk
from anyaccel.phases.loss_accumulator import LossAccumulator
from anyaccel.phases.memory_error import as_out_of_memory
from anyaccel.phases.non_finite_losses import NonFiniteLosses
from anyaccel.phases.oom_recovery import OutOfMemoryRecovery, Snapshots
from anyaccel.phases.process_group import ProcessGroup
from anyaccel.phases.profile import profile_session
from anyaccel.phases.progress import Progress
from anyaccel.phases.run import Run
from anyaccel.phases.settings import PhaseSettings
from anyaccel.phases.step_notifier import StepNotifier
from anyaccel.phases.step_pacing import EpochTiming, PendingCalls, SampleCount, StepPacing
from anyaccel.phases.traceback_cleanup import release_frames
from anyaccel.phases.unfinished_call import UnfinishedCall
from anyaccel.results.records import Epoch

_LOST = (
    "parameters were divided among replicas, and this one does not gather them after an error: in its models they are "
    "NaN, unless they were read since the last step; go on from a checkpoint"
)


class TrainLoop:
    """The loop of one TrainPhase.

    Args:
        phase: what is executed.
        run: its record.
        pipeline: the programs.
        policy: the rows, and what is done when they do not fit.
        hooks: plugins and callbacks.
        progress: is told how far it is.
        learners: estimators that learn from every step.
        validation: run after epochs; None without one.
        nan_in_data: there was a warning of NaN in the data.
        checkpointer: writes checkpoints, and knows where an earlier run was; None without them.
        group: the processes that train together.
    """

    def __init__(  # noqa: PLR0913 - keywords, each documented
        self,
        *,
        phase: PhaseSettings,
        run: Run,
        pipeline: Pipeline,
        policy: OutOfMemoryRecovery,
        hooks: HookCaller,
        progress: Progress,
        learners: PartialFitEstimators,
        validation: Evaluation | None,
        nan_in_data: bool = False,
        checkpointer: Checkpointer | None = None,
        group: ProcessGroup,
    ) -> None:
        self._phase, self._run, self._pipeline, self._policy = phase, run, pipeline, policy
        self._hooks, self._progress = hooks, progress
        self._learners, self._validation = learners or None, validation
        self._non_finite = NonFiniteLosses(run, warned=nan_in_data)
        self._n_skipped = 0  # steps of this run whose scaled gradients were not finite
        self._group = group
        # nobody goes back alone, and where parameters are divided for want of room, a copy takes some
        self._goes_back = not group.sharded and not (run.plan is not None and divides(run.plan))
        shares_calls = group.size > 1 and pipeline.multi_step
        self._shared_calls = SharedCalls(group) if shares_calls else None
        self._mean_check = mean_check(phase, pipeline, group)
        self._buffer_check = buffer_check(phase, pipeline, group)
        self._weights = {loss.label: loss.weight for loss in phase.losses}
        told = hooks.max_call_steps == 1 and pipeline.notifies_steps
        self._notifier = StepNotifier(run, hooks, progress) if told else None
        self._pacing = StepPacing(None if told else hooks.max_call_steps)
        self._unreported: list[Losses] = []  # of the steps since somebody listened
        self._compile_policy = self._new_compile_policy()
        self._pending = PendingCalls()
        self._samples = SampleCount()  # of the epoch that is running
        self._profile = profile_session(hooks.callbacks, run, pipeline)
        self._snapshots = policy.snapshots = Snapshots(pipeline, policy.loader.repeatable, hooks.callbacks)
        self._tried_rows: int  # at once, by the call that is running; 0 before the first of an attempt
        self._full_batch = policy.batch_size
        self._call = UnfinishedCall(run, pipeline, self._snapshots)
        self._checkpointer = checkpointer
        self._resumed: Position | None = None  # where the first epoch begins, if not at its start
        self._losses: LossAccumulator | None = None  # of the epoch that is running

    def _new_compile_policy(self) -> CompilePolicy:
        loader, pipeline = self._policy.loader, self._pipeline
        return CompilePolicy(
            self._phase.compile,
            total_steps=None if loader.n_steps is None else loader.n_steps * self._phase.n_epochs,
            max_call_steps=self._hooks.max_call_steps or self._pacing.max_steps,
            may_stop_early=self._hooks.may_stop,
            can_compile=pipeline.can_compile,
            on_host=pipeline.on_host,
            one_shape=loader.one_shape,
            log_event=self._run.log_event,
            on_activity=self._progress.doing,
        )

    def run(self) -> None:
        """All epochs that are left, or fewer if the run is asked to stop."""
        try:
            self._run.looping = True
            self._progress.start(self._phase.label, self._phase.n_epochs, self._policy.loader.n_steps)
            self._agree_to_stop()
            for epoch in range(self._go_on(), self._phase.n_epochs):
                if self._run.stopped:
                    break
                self._epoch(epoch)
            if self._run.history:
                self._compile_policy.end()
                self._non_finite.all_skipped(self._n_skipped, sum(epoch.steps for epoch in self._run.history))
            self._snapshots.clear()
            if self._group.size > 1:  # seeds that models keep are alike in all again
                self._pipeline.seed(rng.key(self._run.graph.seed, "end", self._phase.label))
            if self._checkpointer is not None:
                self._checkpointer.end(self._policy.loader)
            self._run.finalize()
        except BaseException as error:
            self._group.abandon()
            if self._group.sharded:
                error.add_note(f"{_LOST} ({self._group.where})")
            self._write_last(error)
            raise
        finally:
            if self._profile is not None:
                self._profile.close()
            self._snapshots.clear()
            self._policy.loader.prefetch(None)
            self._progress.stop()

    def _agree_to_stop(self) -> None:
        """All replicas stop where one was asked to; the others would wait for it."""
        self._run.stop_reason = self._group.stop_reason_of_all(self._run.stop_reason)

    def _go_on(self) -> int:
        """The epoch to begin with: that of an earlier run, as its checkpoint tells, or the first."""
        if self._checkpointer is not None:
            self._policy.loader.keep_positions()
        resumed = self._resumed = self._checkpointer.resumed if self._checkpointer is not None else None
        if self._checkpointer is not None and resumed is not None:
            self._checkpointer.restore_run()
            if resumed.loss_scale is not None and self._pipeline.loss_scaling is not None:
                self._pipeline.loss_scaling.load(resumed.loss_scale)
            self._call.steps_before = sum(epoch.steps for epoch in resumed.history) + resumed.step
            for epoch in resumed.history:
                self._progress.advance(epoch.steps)
                self._progress.epoch(epoch.figures)
            self._progress.advance(resumed.step)
            self._checkpointer.restore_source(self._policy.loader)
        self._call.is_whole = True
        return len(self._run.history)

    def _write_last(self, error: BaseException) -> None:
        """The run ends early: write where it is, if the values are those of whole steps."""
        if self._checkpointer is None or not self._call.is_whole:
            return
        try:
            self._checkpointer.after_error(self._pipeline, self._losses, self._policy.loader)
        except Exception as failure:
            error.add_note(f"the last checkpoint could not be written: {type(failure).__name__}: {failure}")

    def _epoch(self, epoch: int) -> None:
        run, label = self._run, self._phase.label
        resumed, self._resumed = self._resumed, None
        run.epoch, run.step = epoch, 0 if resumed is None else resumed.step
        number = run.graph.progress.get(label, 0)
        self._group.begin_epoch(epoch, run.step)
        self._hooks.call("epoch_start", run=run)
        self._agree_to_stop()
        if run.stopped:
            return
        if self._hooks.may_stop:  # and change what compiled code has read
            renew_compiled(run, self._pipeline, self._compile_policy)
        began, self._samples = time.perf_counter(), SampleCount()
        self._pipeline.seed(rng.key(run.graph.seed, "steps", label, number, *self._group.random_key))
        self._losses = LossAccumulator(self._group.total)
        if resumed is not None and self._checkpointer is not None:
            self._losses.go_on_after(resumed.losses)
            self._checkpointer.restore_random(self._pipeline)
        scaling = self._pipeline.loss_scaling
        skipped = 0 if scaling is None else scaling.state.skipped
        losses, n_steps = self._train(number, self._losses)
        if scaling is not None and scaling.state.skipped > skipped:
            self._n_skipped += scaling.state.skipped - skipped
            self._tell_skipped(scaling.state.skipped - skipped, n_steps, scaling.scale)
        seconds = time.perf_counter() - began
        if self._checkpointer is not None:
            self._checkpointer.epoch_ends()
        run.graph.progress[label] = number + 1
        run.history.append(self._record_of(number, losses, n_steps, seconds))
        counted = self._samples
        run.timing = EpochTiming(steps=counted.steps, samples=counted.samples, seconds=seconds)
        self._validate(epoch)  # the epoch is complete, and recorded, whatever comes of this
        self._progress.epoch(run.history[-1].figures)
        if self._hooks.reads_models:
            self._pipeline.sync_values()
        self._hooks.call("epoch_end", run=run)
        run.stop_reason = self._group.end_epoch(run.stop_reason)  # all end with the same epoch
        self._losses = None
        if self._checkpointer is not None:
            self._checkpointer.after_epoch(self._policy.loader)

    def _tell_skipped(self, n_skipped: int, n_steps: int, scale: float) -> None:
        self._run.log_event(
            "precision",
            f"{n_skipped} of {n_steps} steps were skipped, as gradients were not finite; losses are now scaled by "
            f"{scale:g}",
        )

    def _record_of(self, number: int, figures: dict[str, float], n_steps: int, seconds: float) -> Epoch:
        if self._phase.step is not None:
            loss = figures.get("loss", math.nan)
            return Epoch(number, loss, {}, n_steps, seconds, step_figures=figures)
        total = sum(self._weights[name] * value for name, value in figures.items()) if figures else math.nan
        return Epoch(number, total, figures, n_steps, seconds)

    def _validate(self, epoch: int) -> None:
        due = (epoch + 1) % self._phase.validate_every == 0 or epoch + 1 == self._phase.n_epochs
        if self._validation is not None and due:
            self._progress.doing("validating")
            values = self._validation.run().named
            self._run.history[-1] = replace(self._run.history[-1], validation=values)
            self._non_finite.validation(values)
            self._progress.doing("")

    def _train(self, number: int, losses: LossAccumulator) -> tuple[dict[str, float], int]:
        """One epoch; if memory runs out it is resumed from the last snapshot. Mean losses, and the number of steps."""
        run = self._run
        self._unreported = []
        if self._goes_back:
            self._snapshots.begin_epoch(run.step)
        while True:
            means = self._attempt(number, losses)
            if not isinstance(means, OutOfMemoryError):
                break
            failure = means
            release_frames(failure)  # what it holds would be in the way
            alone = self._group.size == 1  # others wait in the step that failed here
            resumed, failed = self._snapshots.restore(losses) if alone else None, run.step
            if resumed is None:
                self._call.is_whole = False
                raise self._policy.final_error(failure, self._tried_rows) from None
            try:
                self._policy.make_room(failure, self._tried_rows)
            finally:  # its events say at which step memory ran out
                run.step, self._call.n_steps, self._unreported = resumed, 0, []
                self._samples.back_to(resumed)
            self._pending.clear()
            self._compile_policy.repeat(failed - resumed)
            self._progress.advance(resumed - failed)
        if self._hooks.step_listeners or self._hooks.has_steps_done_listeners:
            refuse_changes_between_steps(run, self._pipeline)
        self._snapshots.clear()  # a validation may need the room
        self._record(self._pending.finish())
        if not all(map(math.isfinite, means.values())):
            self._non_finite.training(losses.first_not_finite(), losses.weightless)
        labels = self._weights if self._phase.step is None else means
        return {label: means[label] for label in labels if label in means}, run.step

    def _attempt(self, number: int, losses: LossAccumulator) -> dict[str, float] | OutOfMemoryError:
        """The rest of an epoch; mean losses, or what ended it. It is over once all that was launched is computed."""
        self._tried_rows = 0
        loader = self._policy.loader
        prefetches = self._run.epoch + 1 < self._phase.n_epochs
        try:
            with closing(loader.chunks(number, self._run.step)) as chunks:
                for chunk in chunks:
                    if prefetches:  # once this epoch has its own order
                        loader.prefetch(number + 1)
                        prefetches = False
                    self._chunk(chunk, losses)
                    if not loader.reads_ahead:  # the next batch may be made by the models
                        self._pipeline.sync_values()
                    if self._run.stopped:
                        break
                    del chunk
            self._group.end_steps()
            means = losses.means()
            self._pipeline.synchronize()
        except MemoryError as error:
            return as_out_of_memory(error)
        except BaseException as error:
            self._group.abandon()
            failed_in_step = isinstance(error, AnyaccelError) and not self._pipeline.is_updating
            self._call.settle(error, losses)
            if failed_in_step:
                error.add_note(f"it was step {self._run.step + 1} of epoch {self._run.epoch + 1}")
            raise
        return means

    def _chunk(self, chunk: Chunk, losses: LossAccumulator) -> None:
        if self._learners is not None:
            self._learners.begin(chunk.host_orders)
        runner = self._pipeline.runner(chunk.columns)
        for steps in chunk.steps:
            if self._run.stopped:
                break
            if self._mean_check is not None and self._mean_check.is_due:
                self._mean_check.look(runner, steps)
            if self._buffer_check is not None:
                self._buffer_check.begin()
            if steps.uniform:
                self._uniform_steps(runner, steps, losses)
                continue
            max_rows = self._policy.microbatch_size
            self._tried_rows = smallest(max_rows, steps.batch_size) or 0
            self._call.n_steps = 1
            with self._profiled(1):
                step_losses = runner.train_step(steps.rows, max_rows)
            self._samples.add(self._run.step, 1, steps.batch_size)
            self._step_done(losses, step_losses, 1)

    def _profiled(self, n_steps: int) -> AbstractContextManager[None]:
        return nullcontext() if self._profile is None else self._profile.call(n_steps)

    def _uniform_steps(self, runner: ChunkRunner, steps: StepRange, losses: LossAccumulator) -> None:
        """As many steps in one call as the pacing allows."""
        run, policy = self._run, self._compile_policy
        start, size, n_steps = steps.start, steps.batch_size, steps.n_steps
        microbatch = smallest(self._policy.microbatch_size, steps.microbatch_size)
        self._tried_rows = min(microbatch or size, size)
        self._full_batch = max(self._full_batch, size)
        notifier = self._notifier if runner.notifies_steps(size, microbatch) else None
        done, shared, chunk_runner = 0, self._shared_calls, runner
        while done < n_steps and not run.stopped:
            first = start + done * size
            if shared is not None:
                limit = self._most_steps(n_steps - done, listened=True)
                runner, agreed = shared.agree(chunk_runner, first, limit)
            if size == self._full_batch:  # a last, partial batch is not worth a compilation
                policy.before_call(runner, size, microbatch)
            count = self._most_steps(n_steps - done, listened=notifier is None) if shared is None else agreed
            began, self._call.n_steps = time.perf_counter(), count
            with self._profiled(count):
                if shared is not None:
                    step_losses = shared.train_steps(runner, first, count, size, microbatch)
                elif notifier is None:
                    step_losses = runner.train_steps(first, count, size, microbatch)
                else:
                    step_losses = self._notified_steps(notifier, runner, first, count, size, microbatch)
                    count = notifier.n_notified
            self._samples.add(run.step - (0 if notifier is None else count), count, size)
            self._step_done(losses, step_losses, count, told=notifier)
            self._record(self._pending.launched(step_losses, count, began))
            done += count

    def _most_steps(self, n_left: int, *, listened: bool) -> int:
        """Steps of the next call, of so many that are left; `listened`: at most up to one that somebody listens to."""
        count, step = min(self._pacing.next(), n_left, self._compile_policy.max_steps), self._run.step
        if listened and self._hooks.step_listeners:
            count = min(count, self._hooks.steps_until_listener(step))
        if self._checkpointer is not None:
            count = min(count, self._checkpointer.steps_until_due(step) or count)
        if self._profile is not None:
            count = min(count, self._profile.steps_until_change())
        return count

    def _notified_steps(
        self, notifier: StepNotifier, runner: ChunkRunner, start: int, count: int, size: int, microbatch: int | None
    ) -> list[Losses]:
        """At most so many steps in one call, each of which is told; their losses."""
        notifier.begin(runner, size)
        try:
            means = runner.train_and_notify(start, count, size, microbatch, notifier)
        finally:
            self._call.n_steps = count - notifier.n_notified
            notifier.end()
        return [runner.losses_of(means, notifier.n_notified, size)]

    def _record(self, calls: Iterable[tuple[int, float]]) -> None:
        for n_steps, seconds in calls:
            self._pacing.record(n_steps, seconds)
            self._compile_policy.record(n_steps, seconds)

    def _step_done(
        self, losses: LossAccumulator, step_losses: list[Losses], n_steps: int, told: StepNotifier | None = None
    ) -> None:
        self._call.n_steps, first = 0, self._run.step - (0 if told is None else n_steps)
        try:
            losses.add(step_losses, first, n_steps)
            if told is not None:
                told.reraise()
            else:
                self._progress.advance(n_steps)
                if self._hooks.step_listeners:
                    self._notify_listeners(step_losses, first + n_steps - 1)
            if self._hooks.has_steps_done_listeners:
                self._run.step = first + n_steps - 1
                done = FinishedSteps(self._run.epoch, range(first, first + n_steps), step_losses)
                self._hooks.call("steps_done", run=self._run, steps=done)
        finally:  # the step is done, whatever others raise
            self._run.step = first + n_steps
        if self._buffer_check is not None:
            self._buffer_check.end()
            self._buffer_check = None
        self._snapshots.after_step(self._run.step, losses)
        if self._checkpointer is not None:
            self._checkpointer.after_step(self._pipeline, losses, self._policy.loader)
        interrupts.check()

    def _notify_listeners(self, step_losses: list[Losses], last: int) -> None:
        self._unreported += step_losses
        if self._hooks.steps_until_listener(last) == 1:
            self._run.step, self._run.last_losses, self._unreported = last, self._unreported.copy, []
            self._hooks.step_end(last, run=self._run)


def smallest(*sizes: int | None) -> int | None:
    """The smallest of some limits, of which None is no limit."""
    return min((size for size in sizes if size is not None), default=None)
