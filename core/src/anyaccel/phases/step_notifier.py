"""Step telling: `step_end` is called for each step of a call that does many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anyaccel import interrupts
from anyaccel.phases.executor.pipeline import ChunkRunner
from anyaccel.phases.executor.stage import Losses
from anyaccel.phases.hooks import HookCaller
from anyaccel.phases.progress import Progress
from anyaccel.phases.run import Run
from anyaccel.phases.traceback_cleanup import release_callers


class StepNotifier:
    """Tells listeners of each step, as a program calls it, and moves `run.step`.

    What a listener raises ends the call without going through the program, and is kept: the steps so far are done.

    Args:
        run: whose steps they are.
        hooks: of the listeners.
        progress: is told, too.

    Attributes:
        n_notified: steps of this call so far.
    """

    def __init__(self, run: Run, hooks: HookCaller, progress: Progress) -> None:
        self._run, self._hooks, self._progress = run, hooks, progress
        self._runner: ChunkRunner | None = None
        self._batch_size, self.n_notified = 0, 0
        self._table: Callable[[], Any] | None = None
        self._raised: BaseException | None = None

    def begin(self, runner: ChunkRunner, batch_size: int) -> None:
        """A call begins."""
        self._runner, self._batch_size, self.n_notified = runner, batch_size, 0
        self._run.last_losses = self._losses

    def __call__(self, table: Callable[[], Any]) -> bool:
        """A step is done, whose losses a function gives; whether the call is to end."""
        run = self._run
        self._table = table
        del table  # an error's traceback would keep it, and what it holds
        self.n_notified += 1
        try:
            self._progress.advance(1)
            self._hooks.step_end(run.step, run=run)
            interrupts.check()
        except BaseException as error:  # `reraise` raises it, once the step is counted
            self._raised = error
        run.step += 1
        return self._raised is not None or run.stopped

    def end(self) -> None:
        """The call has ended: keep the last losses, and nothing of the program and its columns."""
        self._run.last_losses = self._losses().copy
        self._runner = self._table = None

    def reraise(self) -> None:
        """Raise what a listener has raised in this call, if anything."""
        raised, self._raised = self._raised, None
        if raised is not None:
            release_callers(raised)
            raise raised

    def _losses(self) -> list[Losses]:
        if self._runner is None or self._table is None:
            return []
        return [self._runner.losses_of(self._table(), 1, self._batch_size)]
