"""Loop extension: the moments of a training loop when a feature can act, and the arguments.

A feature is one class that overrides some of these moments. Moments occur for each call of a program, which runs
many steps, never for each step; a class that does not override a moment is not called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

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
        train: Function that makes the call; an extension can replace it.
        n_steps: Number of its steps; 0 until this is decided.
        n_counted: Number of these that `run.step` has counted while it ran.
        rows: Rows of its only step by feature set, if feature sets give different ones; otherwise None.
    """

    runner: ChunkRunner
    start: int
    n_left: int
    size: StepSize
    train: Callable[[Call], list[Losses]]
    n_steps: int = 0
    n_counted: int = 0
    rows: StepRows | None = None


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
