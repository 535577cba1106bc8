"""Checkpoint schedule: when the checkpoints of a run are due; several processes agree on it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from anyaccel.phases.checkpointing.checkpoint import Checkpoint
from anyaccel.phases.run import Run

_LEAST_PART = 16
"""Processes ask each other at most about so often in one interval, besides twice as many steps apart each time."""


class CheckpointSchedule:
    """When the checkpoints of one run are due.

    Args:
        checkpoint: as given to the phase.
        run: its position.
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
        """How many steps of an epoch may be done in one call after its first `step` ones; None for any number."""
        every = self._checkpoint.every_n_steps
        return None if every is None else every - self._steps_of_run(step) % every

    def is_due_after_step(self, *, is_busy: bool) -> bool:
        """Whether one is due now; `is_busy` says whether another is still being written."""
        every = self._checkpoint.every_n_steps
        return self._is_time(is_busy=is_busy) if every is None else self._steps_of_run(self._run.step) % every == 0

    def is_due_after_epoch(self, *, is_busy: bool) -> bool:
        """As `is_due_after_step`, once an epoch is done; here nothing is exchanged."""
        given = self._checkpoint
        after_each = given.keep_best is not None or (given.every_n_steps is None and given.every_seconds is None)
        return after_each or self._is_time(is_busy=is_busy)

    def _is_time(self, *, is_busy: bool) -> bool:
        seconds = self._checkpoint.every_seconds
        return seconds is not None and not is_busy and time.monotonic() - self._last >= seconds

    def _steps_of_run(self, step: int) -> int:
        """Steps of the run that are done after so many of the epoch that is going on; those before it count once."""
        epoch = self._run.epoch
        if self._counted_epoch != epoch:
            self._counted_epoch = epoch
            self._counted_steps = sum(record.steps for record in self._run.history[:epoch])
        return self._counted_steps + step


class AgreedSchedule(CheckpointSchedule):
    """When the checkpoints of several processes are due: by time, the first one decides.

    The others ask it after numbers of steps that it has told, so that all write, or take part in it, after the same
    step.

    Args:
        checkpoint, run: see `CheckpointSchedule`.
        agree: is called in all processes after the same step, and gives what the first one gave.
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
        due, self._apart = self._agree([self._is_time(is_busy=is_busy), self._steps_until_asked(done)])
        self._asked, self._asked_at, self._ask_at = done, time.monotonic(), done + self._apart
        return bool(due)

    def _steps_until_asked(self, done: int) -> int:
        """About half of what is left of the interval, as long as steps have taken since it was asked last."""
        now, interval = time.monotonic(), self._checkpoint.every_seconds or 0.0
        left = max(self._last + interval - now, interval / _LEAST_PART) / 2
        per_step = (now - self._asked_at) / max(done - self._asked, 1)
        return max(1, min(int(left / max(per_step, 1e-9)), 2 * self._apart))
