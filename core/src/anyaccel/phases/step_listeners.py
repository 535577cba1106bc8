"""Step listeners: `step_end` and `steps_done` are called for the steps that calls of programs have done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from anyaccel import interrupts
from anyaccel.phases.compile_policy import refuse_changes_between_steps
from anyaccel.phases.executor.cross_segment import Losses
from anyaccel.phases.executor.pipeline import Pipeline
from anyaccel.phases.hooks import HookCaller
from anyaccel.phases.loop_extension import UNLIMITED, Call, CallInProgress, LoopExtension
from anyaccel.phases.loss_accumulator import LossAccumulator
from anyaccel.phases.memory_error import release_callers
from anyaccel.phases.progress import Progress
from anyaccel.phases.run import FinishedSteps, Run


class StepListeners(LoopExtension):
    """End calls with steps that have listeners, and notify these.

    Args:
        run: The run with the steps.
        hooks: Hooks of the listeners.
        pipeline: The programs; their compiled steps cannot have seen the changes of a listener.
    """

    def __init__(self, run: Run, hooks: HookCaller, pipeline: Pipeline) -> None:
        self._run, self._hooks, self._pipeline = run, hooks, pipeline
        self._unreported: list[Losses] = []  # of the steps since somebody listened

    def steps_begin(self, losses: LossAccumulator) -> None:
        self._unreported = []

    def went_back(self, n_steps: int) -> None:
        self._unreported = []

    def most_steps(self, call: Call) -> int:
        return self._hooks.steps_until_listener(self._run.step)

    def call_done(self, call: Call, first: int, step_losses: list[Losses]) -> None:
        last = first + call.n_steps - 1
        if not call.n_counted and self._hooks.step_listeners:
            self._unreported += step_losses
            if self._hooks.steps_until_listener(last) == 1:
                self._run.step, self._run.last_losses, self._unreported = last, self._unreported.copy, []
                self._hooks.step_end(last, run=self._run)
        if self._hooks.has_steps_done_listeners:
            self._run.step = last
            done = FinishedSteps(self._run.epoch, range(first, last + 1), step_losses)
            self._hooks.call("steps_done", run=self._run, steps=done)

    def steps_end(self, losses: LossAccumulator, means: Mapping[str, float]) -> None:
        refuse_changes_between_steps(self._run, self._pipeline)


class StepNotifier(StepListeners):
    """Notify listeners of each step while a program runs many in one call, and update `run.step`.

    An exception of a listener ends the call without passing through the program, and is stored: the steps so far are
    done.

    Args:
        run, hooks, pipeline: See `StepListeners`.
        progress: Progress that is notified, too.
        in_progress: The running call.
    """

    def __init__(
        self, run: Run, hooks: HookCaller, pipeline: Pipeline, progress: Progress, in_progress: CallInProgress
    ) -> None:
        super().__init__(run, hooks, pipeline)
        self._progress, self._in_progress = progress, in_progress
        self._call: Call | None = None
        self._table: Callable[[], Any] | None = None
        self._raised: BaseException | None = None

    def before_call(self, call: Call) -> None:
        if call.runner.notifies_steps(call.size):
            call.train = self._train

    def most_steps(self, call: Call) -> int:
        return UNLIMITED if call.train == self._train else super().most_steps(call)

    def _train(self, call: Call) -> list[Losses]:
        """Run at most the steps of a call, notifying of each; the completed ones are then its steps."""
        self._call = call
        self._run.last_losses = self._losses
        n_asked = call.n_steps
        try:
            means = call.runner.train_and_notify(call.start, n_asked, call.size, self._step_done)
        finally:
            self._in_progress.n_steps = n_asked - call.n_counted
            # the last losses are kept, and nothing of the program and its columns
            self._run.last_losses = self._losses().copy
            self._call = self._table = None
        call.n_steps = call.n_counted
        return [call.runner.losses_of(means, call.n_steps, call.size.rows)]

    def _step_done(self, table: Callable[[], Any]) -> bool:
        """Notify of a step, whose losses a function returns; return whether to end the call."""
        run = self._run
        self._table = table
        del table  # an error's traceback would keep it, and what it holds
        assert self._call is not None
        self._call.n_counted += 1
        try:
            self._progress.advance(1)
            self._hooks.step_end(run.step, run=run)
            interrupts.check()
        except BaseException as error:  # raised once the step is counted
            self._raised = error
        run.step += 1
        return self._raised is not None or run.stopped

    def call_done(self, call: Call, first: int, step_losses: list[Losses]) -> None:
        raised, self._raised = self._raised, None
        if raised is not None:
            release_callers(raised)
            raise raised
        super().call_done(call, first, step_losses)

    def _losses(self) -> list[Losses]:
        if self._call is None or self._table is None:
            return []
        return [self._call.runner.losses_of(self._table(), 1, self._call.size.rows)]
