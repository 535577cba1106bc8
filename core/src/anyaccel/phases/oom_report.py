"""Out-of-memory report: the error that says what did not fit, what fills the memory, and what would fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from anyaccel.backend import Memory
from anyaccel.errors import AnyaccelError, OutOfMemoryError
from anyaccel.html import size
from anyaccel.phases.executor.pipeline import ChunkRunner, Pipeline
from anyaccel.phases.loading.epoch_batches import StepRows
from anyaccel.phases.loading.epoch_plan import StepRange
from anyaccel.phases.loading.loader import BatchLoader
from anyaccel.phases.loading.loader_factory import LoaderFactory, Place
from anyaccel.phases.loading.residency import state_slots
from anyaccel.phases.loss_accumulator import LossAccumulator
from anyaccel.phases.traceback_cleanup import release_frames
from anyaccel.registry import registry

_MAX_TRIALS = 10

Answer = TypeVar("Answer")
Trial = Callable[[StepRows, int | None], None]
"""Computes some rows of a step, so many at once, and raises if they do not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemoryReport:
    """Makes the error that ends a phase.

    Attributes:
        label: of the phase, or of its validation.
        trains: whether it trains.
        may_stream: whether the phase allows that rows are streamed.
        couplings: why a step is not computed in micro-batches.
        factory: the rows.
        pipeline: the programs.
        may_try: whether steps may be tried to find how many rows fit; others would take their gradients for real ones.
    """

    label: str
    trains: bool
    may_stream: bool
    couplings: Sequence[str]
    factory: LoaderFactory
    pipeline: Pipeline
    may_try: bool = True

    def error(self, cause: OutOfMemoryError, n_rows: int, loader: BatchLoader) -> OutOfMemoryError:
        """The error after `n_rows` rows, computed at once, did not fit."""
        fitting = self._largest_batch(loader, n_rows)
        known = [] if fitting is None else ["not even one row fits" if fitting == 0 else f"{_rows(fitting)} would fit"]
        why = f", and micro-batches are ruled out by {' and '.join(self.couplings)}" if self.couplings else ""
        doing = "to train" if self.trains else "for"
        return OutOfMemoryError(
            f"phase {self.label!r}: not enough memory {doing} {_rows(n_rows)} at once{why}: {cause.problem}",
            cause="; ".join([*self._memory_use(loader.residency), *known]),
            hint=", or ".join(self._hints(fitting)),
        )

    def _hints(self, fitting: int | None) -> Iterator[str]:
        smaller = "a smaller batch" if fitting is None else f"batches of at most {fitting}"
        yield "use a smaller model" if fitting == 0 else f"use {smaller}, or a smaller model"
        if not self.may_stream:
            yield "write residency='auto', to stream rows that do not fit"
        if self.trains and self.couplings:
            yield "write microbatching='approximate', to compute batches in micro-batches all the same"

    def _memory_use(self, residency: str) -> Iterator[str]:
        """What is known to lie on each device, by category."""
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
            known = ", ".join(f"{name} {size(nbytes)}" for name, nbytes in categories.items() if nbytes)
            yield f"{place[1]} ({place[0]}): {known}; activations and the rest: {_measured(place)}"

    def _largest_batch(self, loader: BatchLoader, n_rows: int) -> int | None:
        """The most rows that fit at once, by at most `_MAX_TRIALS` trials that change nothing; None if unknown."""
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
        """Whether training steps fit now with so many rows at once; the caller restores a snapshot afterwards.

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

    def _first_step(self, loader: BatchLoader, judge: Callable[[Trial, StepRange], Answer]) -> Answer:
        """What `judge` says of the first step of an epoch, given what computes some of its rows."""
        with closing(loader.chunks(0)) as chunks:
            chunk = next(chunks)
            return judge(partial(self._compute, self.pipeline.runner(chunk.columns)), chunk.steps[0])

    def _compute(self, runner: ChunkRunner, rows: StepRows, at_once: int | None) -> None:
        """Compute some rows, in training so many at once, and wait for the results."""
        if self.trains:
            runner.try_step(rows, at_once)
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
        """Bytes of a snapshot: parameters that are trained, and their optimizer state, by framework and device."""
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


def _measured(place: Place) -> str:
    """What the device says of its memory."""
    memory = registry().find(place[0], place[1].kind).capability(Memory)
    now = None if memory is None else memory.memory(place[1])
    if now is None or not now.total:
        return "not measured there"
    return f"what is left of {size(now.total)}, of which {size(now.free)} are free now"


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
    """The first rows of a step: so many of each feature set, or as many as it takes."""
    return {name: (start, min(start + n, stop)) for name, (start, stop) in step.rows.items()}


def _step_fits(trial: Trial, step: StepRange, at_once: int) -> bool:
    """Whether a step fits in micro-batches, also where the last of them is smaller, as in a last, partial batch."""
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
