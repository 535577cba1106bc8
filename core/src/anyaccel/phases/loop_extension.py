"""Loop extension: the moments of a training loop when a feature can act, and the arguments.

A feature is one class that overrides some of these moments. Moments occur for each call of a program, which runs
many steps, never for each step; a class that does not override a moment is not called.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from anyaccel import interrupts
from anyaccel.phases.executor.cross_segment import Losses
from anyaccel.phases.executor.pipeline import ChunkRunner
from anyaccel.phases.loading.epoch_plan import StepRange, StepRows, StepSize
from anyaccel.phases.loading.loader import Chunk
from anyaccel.phases.loss_accumulator import LossAccumulator

UNLIMITED = 2**31
"""Steps: more than any call takes."""


@dataclass(slots=True)
class CallInProgress:
    """Facts about the running call that remain when it fails: only numbers, nothing on devices.

    Attributes:
        n_steps: Steps that the run has not counted yet; 0 between calls.
        rows_at_once: Rows that it computes at once; 0 before the first call of an attempt at an epoch.
        is_whole: Whether values and records belong to whole steps.
    """

    n_steps: int = 0
    rows_at_once: int = 0
    is_whole: bool = False


@dataclass(slots=True)
class Call:
    """A call of a program for some steps.

    Attributes:
        runner: Runner of the chunk.
        start: Row of its first step.
        n_left: Steps of this size that are left in the chunk.
        size: Rows of a step.
        n_steps: Number of its steps; 0 until this is decided.
        n_counted: Number of these that `run.step` has counted while it ran.
        rows: Rows of its only step by feature set, if feature sets give different ones; otherwise None.
        train: Function that makes the call.
    """

    runner: ChunkRunner
    start: int
    n_left: int
    size: StepSize
    n_steps: int = 0
    n_counted: int = 0
    rows: StepRows | None = None
    train: Callable[[Call], list[Losses]] = lambda call: (
        call.runner.train_steps(call.start, call.n_steps, call.size)
        if call.rows is None
        else call.runner.train_step(call.rows, call.size)
    )


class LoopExtension:
    """A feature of the training loop; each method is a moment and does nothing by default."""

    def run_begins(self) -> None:
        """React to the start of the loop; `run.history` and `run.step` give the position after all calls."""

    def epoch_begins(self) -> None:
        """React to the start of an epoch, with `run.step` completed steps; the run may be asked to stop."""

    def steps_begin(self, losses: LossAccumulator) -> None:
        """React to the first steps of an epoch: random streams are seeded, and `losses` will hold the results."""

    def before_steps(self, chunk: Chunk, runner: ChunkRunner, steps: StepRange) -> None:
        """Some steps of a chunk come next."""

    def agree(self, call: Call, n_steps: int) -> None:
        """Agree with all processes on a call of equal steps; this process would take `n_steps`."""

    def before_call(self, call: Call) -> None:
        """A call of equal steps comes next, and may be changed."""

    def most_steps(self, call: Call) -> int:
        """Return the maximum number of steps of the next call."""
        return UNLIMITED

    def around_call(self, call: Call) -> AbstractContextManager[object]:
        """Is entered for a call."""
        return nullcontext()

    def call_done(self, call: Call, first: int, step_losses: list[Losses]) -> None:
        """React to the completed steps of a call, from number `first` of the epoch; they count even if this raises."""

    def after_call(self, losses: LossAccumulator) -> None:
        """React to an update of `run.step`: values, losses and records belong to whole steps."""

    def call_timed(self, n_steps: int, seconds: float) -> None:
        """It is known how long a call took, which may be later."""

    def rows_end(self) -> None:
        """All rows of an epoch were taken; steps may still be computed."""

    def failed(self, failure: BaseException, losses: LossAccumulator) -> bool:
        """An attempt at the steps of an epoch has failed. True if the run went back, and continues from `run.step`."""
        return False

    def went_back(self, n_steps: int) -> None:
        """React to `n_steps` steps that will be repeated."""

    def steps_end(self, losses: LossAccumulator, means: Mapping[str, float]) -> None:
        """All steps of an epoch are computed, and these are the means of the losses."""

    def epoch_ends(self) -> None:
        """An epoch is recorded as the last of `run.history`."""

    def run_ends(self) -> None:
        """The loop ends without an error; models still have the values of the last step."""

    def run_fails(self, error: BaseException) -> None:
        """An error ends the loop."""

    def ended(self) -> None:
        """The loop has ended, with or without an error; in the reverse order of the others."""


class Moments:
    """The functions called at each moment: the overriding methods, in the order of the extensions."""

    def __init__(self, extensions: Sequence[LoopExtension]) -> None:
        def overriding(moment: str) -> tuple[Callable[..., Any], ...]:
            found: list[Callable[..., Any]] = []
            for extension in extensions:
                if getattr(type(extension), moment) is not getattr(LoopExtension, moment):
                    found.append(getattr(extension, moment))
            return tuple(found)

        self.run_begins = overriding("run_begins")
        self.epoch_begins = overriding("epoch_begins")
        self.steps_begin = overriding("steps_begin")
        self.before_steps = overriding("before_steps")
        self.agree = overriding("agree")
        self.before_call = overriding("before_call")
        self.most_steps: tuple[Callable[[Call], int], ...] = overriding("most_steps")
        self.around_call = overriding("around_call")
        self.call_done = overriding("call_done")
        self.after_call = overriding("after_call")
        self.call_timed = overriding("call_timed")
        self.rows_end = overriding("rows_end")
        self.failed = overriding("failed")
        self.went_back = overriding("went_back")
        self.steps_end = overriding("steps_end")
        self.epoch_ends = overriding("epoch_ends")
        self.run_ends = overriding("run_ends")
        self.run_fails = overriding("run_fails")
        self.ended = overriding("ended")[::-1]


# -- Step pacing: how many steps one call takes, so that progress and Ctrl-C do not wait for long, and what calls did


# A call may last half a second; this is what is aimed at.
_AIM_SECONDS = 0.2
_POLL_SECONDS = 0.0005


class StepPacing:
    """The number of steps of a call: few at first, then as many as fit into the target time.

    Attributes:
        n_steps: The number of steps for the next call.
    """

    def __init__(self) -> None:
        self.n_steps = 1

    def record(self, n_steps: int, seconds: float) -> None:
        """Learn from a call. Grows by doubling only, as the first calls are slow and say little.

        Always a power of two, as some frameworks compile something small for every number that they see. A call of
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
