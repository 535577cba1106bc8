"""Checks of steps that are computed in parts, where batches are accumulated or shared among replicas; each warns once.

Running statistics, the vectors of a spectral norm and codebooks change in every call of their model. One batch of all
rows changes them once a step, and parts of it as often as there are parts, each by its own rows.

Gradients of parts of a batch are weighted by rows, which gives those of the whole only for losses that are means over
rows, of models that compute each row by itself. Settings tell it of some losses (`accumulation.py`), and layers of some
models; of a function, of a loss that a model returns, and of a model's own code, values do.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import numpy as np

from anyaccel.adapter.batch_shards import FIXED_SHARDS
from anyaccel.adapter.memory_figures import MemoryFigures
from anyaccel.adapter.replicated_program import ReplicatedProgram
from anyaccel.graph.applied_loss import AppliedLoss
from anyaccel.phases.executor.pipeline import ChunkRunner, Pipeline
from anyaccel.phases.executor.stage import PipelineStage
from anyaccel.phases.loading.epoch_plan import StepRange
from anyaccel.phases.loading.loader import Chunk
from anyaccel.phases.loop_extension import LoopExtension
from anyaccel.phases.loss_accumulator import LossAccumulator
from anyaccel.phases.process_group import ProcessGroup
from anyaccel.phases.settings import PhaseSettings
from anyaccel.printable import printable
from anyaccel.segment import Operation
from anyaccel.specs import FROM_OUTPUT
from anyaccel.user_level import user_level

_TOLERANCE = 3e-5
_TOLERANCE_16_BITS = 5e-3
"""Relative; a mean in bfloat16 is rounded by 2e-3."""

_Found = tuple[str, float, float]
"""A label, the loss over a batch, and the mean of those over its halves."""


class MeanCheck(LoopExtension):
    """Compares losses over some of the first batches with those over their halves, in evaluation mode; once a phase.

    Args:
        phase: whose losses.
        stages: what computes them.
        group: the processes of the phase, of which the first warns.
        shared: whether its batches are shared among replicas. Only where they are, or where the phase accumulates
            batches, there is something to check.
    """

    def __init__(
        self,
        phase: PhaseSettings,
        stages: Sequence[PipelineStage],
        group: ProcessGroup,
        *,
        shared: bool = False,
    ) -> None:
        own = phase.losses if (shared or phase.accumulate > 1) and phase.step is None else ()
        is_known = all(_is_known(stage) for stage in stages)
        self._doing = "shares batches among replicas" if shared else "accumulates batches"
        self._left_out = "write replicas=1" if shared else "leave accumulate out"
        self._phase, self._labels = phase, [loss.label for loss in own if _is_own(loss) or not is_known]
        self._named = {loss.label for loss in own if not _is_own(loss)}
        self._tolerance = _TOLERANCE_16_BITS if any(map(_has_16_bits, stages)) else _TOLERANCE
        self._group = group

    @property
    def is_due(self) -> bool:
        """Whether there is something left to check."""
        return bool(self._labels)

    def before_steps(self, chunk: Chunk, runner: ChunkRunner, steps: StepRange) -> None:
        """Warn of the first loss of which the mean over two halves of a batch is not that over the batch."""
        if not self._labels:
            return
        of_all = self._group.gather([min(steps.batch_size, steps.microbatch_size or steps.batch_size), steps.n_steps])
        n_rows, n_steps = map(min, zip(*of_all, strict=True))
        if n_rows < 2:
            self._labels = self._labels if self._group.size == 1 else []
            return
        labels, self._labels = self._labels, []
        for i in sorted({0, n_steps // 2, n_steps - 1}):  # the first may be one in which all tokens count
            batch = next(steps.skip(i).first(1).split(steps.microbatch_size or steps.batch_size))
            found = self._differing(runner, batch, labels)
            if found is not None:
                if self._group.rank == 0:
                    self._warn(*found)
                return

    def _differing(self, runner: ChunkRunner, batch: StepRange, labels: Sequence[str]) -> _Found | None:
        halves = list(batch.split(-(-batch.batch_size // 2)))
        whole, parted = _means(runner, [batch]), _means(runner, halves)
        pairs = [(label, whole.get(label, math.nan), parted.get(label, math.nan)) for label in labels]
        own = [pair for pair in pairs if self._differs(pair[1], pair[2])]
        if not any(self._group.gather([list(pair) for pair in own])):
            return None
        again = _means(runner, [batch])
        own = [pair for pair in own if not self._differs(pair[1], again[pair[0]])]  # a random loss tells nothing
        every = self._group.gather([list(pair) for pair in own])
        return next(((pair[0], pair[1], pair[2]) for theirs in every for pair in theirs), None)

    def _differs(self, value: float, other: float) -> bool:
        """Whether two losses are different beyond roundings; not if one is no number."""
        return abs(value - other) > self._tolerance * max(abs(value), abs(other)) + 1e-7

    def _warn(self, label: str, whole: float, parted: float) -> None:
        what, hint = (
            ("has the rows of a batch mixed by its model", "let the model compute each row by itself")
            if label in self._named
            else (
                "is no mean over rows",
                "return the mean over the rows of the batch; where tokens or weights count, use a named loss with "
                "ignore_index, mask or sample_weight",
            )
        )
        warnings.warn(
            printable(
                f"phase {self._phase.label!r} {self._doing}, and the loss {label!r} {what}: over "
                f"one batch it is {whole:.6g}, and the mean over its two halves is {parted:.6g}. A step is not "
                f"that of one batch of all rows. Hint: {hint}; or {self._left_out}"
            ),
            UserWarning,
            stacklevel=user_level(),
        )


def _is_own(loss: AppliedLoss) -> bool:
    return loss.loss.own is not None or loss.loss.name == FROM_OUTPUT


def _is_known(stage: PipelineStage) -> bool:
    """Whether all models are those that every backend has, which compute each row by itself."""
    known = tuple(stage.backend.models().values())
    return all(operation.model is None or type(operation.model) in known for operation in stage.segment.operations)


def _has_16_bits(stage: PipelineStage) -> bool:
    """Whether something is computed in 16 bits."""
    precision = stage.segment.precision
    asked = () if precision is None else (each.dtype for _, each in precision.precisions)
    outputs = (result.spec.dtype for operation in stage.segment.operations for result in operation.results)
    return any(dtype.endswith("16") for dtype in (*asked, *outputs))


def _means(runner: ChunkRunner, batches: list[StepRange]) -> dict[str, float]:
    """Mean losses over some rows."""
    losses = LossAccumulator()
    for batch in batches:
        losses.add(runner.evaluate(batch.rows)[1])
    return losses.means()


_PREFIX = "buffers/"


class BufferCheck(LoopExtension):
    """Compares buffers before and after the first steps of a phase, and warns once.

    Args:
        phase: that accumulates batches, or whose batches replicas share.
        pipeline: its programs.
        is_first: whether this is the process that warns.
    """

    def __init__(self, phase: PhaseSettings, pipeline: Pipeline, *, is_first: bool = True) -> None:
        self._phase, self._pipeline, self._is_first = phase, pipeline, is_first
        trained = [(stage, op) for stage in pipeline.stages for op in stage.segment.operations if op.trainable]
        self._owners = [(stage, op) for stage, op in trained if _has_buffers(stage, op)] if phase.step is None else []
        self._replicated = [stage.program for stage in pipeline.stages if isinstance(stage.program, ReplicatedProgram)]
        self._is_cut = any(program.has_fixed_shards for program in self._replicated)
        self._before: dict[str, np.ndarray] = {}
        self._is_over = False

    @property
    def is_due(self) -> bool:
        """Whether there is something to check."""
        return bool(self._owners) and (self._is_parted or bool(self._replicated))

    @property
    def _is_parted(self) -> bool:
        return self._phase.accumulate > 1 or self._is_cut

    def before_steps(self, chunk: Chunk, runner: ChunkRunner, steps: StepRange) -> None:
        if self._is_parted and not self._before and not self._is_over:
            self._before = self._values()

    def after_call(self, losses: LossAccumulator) -> None:
        """Warn of what the first steps changed, of two replicas on devices only of what is not alike in them."""
        if self._is_over:
            return
        self._is_over = True
        if self._is_parted:
            now = self._values()
            names = [name for name, value in self._before.items() if value.tobytes() != now[name].tobytes()]
        else:
            names = [name for program in self._replicated for name in program.unequal_buffers()]
        if names and self._is_first:
            self._warn(names)

    def _values(self) -> dict[str, np.ndarray]:
        """Floating buffers by node and name; others are counters, and the state of random numbers."""
        self._pipeline.sync_values()
        named = (
            (f"{op.label}/{name}", value)
            for stage, op in self._owners
            for name, value in stage.backend.state(op.model).items()
            if name.startswith(_PREFIX)
        )
        return {name: value for name, value in named if value.dtype.kind not in "biu"}

    def _warn(self, names: Sequence[str]) -> None:
        changes = f"and {len(names) - 1} more change" if len(names) > 1 else "changes"
        if self._phase.accumulate > 1:
            doing, left_out = "accumulates batches", "leave accumulate out"
            how = f"in every call of the model, {self._phase.accumulate * (FIXED_SHARDS if self._is_cut else 1)} a step"
        elif self._is_cut:
            doing, left_out = f"cuts each batch into {FIXED_SHARDS} shards", "leave deterministic out"
            how = f"in every call of the model, {FIXED_SHARDS} a step"
        else:
            doing, left_out = "shares batches among replicas", "write replicas=1"
            how = "by the rows of each replica, and those of the first are kept"
        warnings.warn(
            printable(
                f"phase {self._phase.label!r} {doing}, and the buffer {names[0]!r} {changes} {how}. A step is not "
                "that of one batch of all rows. Hint: use layers whose buffers do not change in training; or "
                f"{left_out}"
            ),
            UserWarning,
            stacklevel=user_level(),
        )


def step_checks(phase: PhaseSettings, pipeline: Pipeline, group: ProcessGroup) -> list[LoopExtension]:
    """The checks of a phase; none where steps are not made of parts."""
    checks: list[LoopExtension] = []
    programs = [stage.program for stage in pipeline.stages]
    shared = not group.reads_all_rows or any(isinstance(program, ReplicatedProgram) for program in programs)
    if not shared and phase.accumulate == 1:
        return checks
    means = MeanCheck(phase, pipeline.stages, group, shared=shared)
    if means.is_due:
        checks.append(means)
    if not group.sharded:  # else values are read by all together
        buffers = BufferCheck(phase, pipeline, is_first=group.rank == 0)
        checks += [buffers] if buffers.is_due else []
    return checks


def _has_buffers(stage: PipelineStage, operation: Operation) -> bool:
    """Whether a model has some; one of a plugin that does not tell is asked for all its values."""
    if operation.model is None:
        return False
    figures = stage.backend.capability(MemoryFigures)
    return figures is None or bool(figures.buffers(operation.model))
