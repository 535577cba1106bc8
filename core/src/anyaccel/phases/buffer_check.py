"""Buffer check: warns of buffers that training changes, where a step is computed in parts.

Running statistics, the vectors of a spectral norm and codebooks change in every call of their model. One batch of all
rows changes them once a step, and parts of it as often as there are parts, each by its own rows.
"""

from __future__ import annotations
from anyaccel.phases.settings import PhaseSettings

import warnings
from collections.abc import Sequence

import numpy as np

from anyaccel.adapter.batch_shards import FIXED_SHARDS
from anyaccel.adapter.memory_figures import MemoryFigures
from anyaccel.adapter.replicated_program import ReplicatedProgram
from anyaccel.phases.executor.pipeline import Pipeline
from anyaccel.phases.executor.stage import PipelineStage
from anyaccel.phases.replicated_training import ReplicatedTraining
from anyaccel.printable import printable
from anyaccel.segment import Operation
from anyaccel.user_level import user_level

_PREFIX = "buffers/"


class BufferCheck:
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

    @property
    def is_due(self) -> bool:
        """Whether there is something to check."""
        return bool(self._owners) and (self._is_parted or bool(self._replicated))

    @property
    def _is_parted(self) -> bool:
        return self._phase.accumulate > 1 or self._is_cut

    def begin(self) -> None:
        """Steps begin; called again before others, until those of a call are done."""
        if self._is_parted and not self._before:
            self._before = self._values()

    def end(self) -> None:
        """They are done: warn of what they changed, of two replicas on devices only of what is not alike in them."""
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


def buffer_check(phase: PhaseSettings, pipeline: Pipeline, replicated: ReplicatedTraining | None) -> BufferCheck | None:
    """The check of a phase; None where nothing is to be checked, and where parameters are divided."""
    if replicated is not None and replicated.sharded:  # their values are read by all together
        return None
    check = BufferCheck(phase, pipeline, is_first=replicated is None or replicated.rank == 0)
    return check if check.is_due else None


def _has_buffers(stage: PipelineStage, operation: Operation) -> bool:
    """Whether a model has some; one of a plugin that does not tell is asked for all its values."""
    if operation.model is None:
        return False
    backend = stage.backend
    return not isinstance(backend, MemoryFigures) or bool(backend.buffers(operation.model))
