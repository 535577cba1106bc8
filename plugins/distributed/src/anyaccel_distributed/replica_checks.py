"""Replica checks: losses and buffers that make parts of a batch compute another step than the whole batch; each warns
once.
"""

from __future__ import annotations

from collections.abc import Sequence

from anyaccel.phases.executor.pipeline import Pipeline
from anyaccel.phases.loop_extension import LoopExtension
from anyaccel.phases.loss_accumulator import LossAccumulator
from anyaccel.phases.process_group import ProcessGroup
from anyaccel.phases.settings import PhaseSettings
from anyaccel.phases.step_checks import BufferCheck, MeanCheck, buffer_owners, warn_of_buffers
from anyaccel_distributed.batch_shards import FIXED_SHARDS
from anyaccel_distributed.replicated_program import ReplicatedProgram

SHARES, WITHOUT_REPLICAS = "shares batches among replicas", "write replicas=1"
"""What a phase does, and what to write so that it does not."""


class UnequalBuffers(LoopExtension):
    """Warns once of buffers that are not alike in the replicas of a process, as each computes them from its rows.

    Args:
        phase: Phase with batches that replicas share.
        programs: Programs with these buffers.
    """

    def __init__(self, phase: PhaseSettings, programs: Sequence[ReplicatedProgram]) -> None:
        self._phase, self._programs = phase, programs
        self._is_over = False

    def after_call(self, losses: LossAccumulator) -> None:
        """Warn after the first steps."""
        if self._is_over:
            return
        self._is_over = True
        names = [name for program in self._programs for name in program.unequal_buffers()]
        if names:
            how = "by the rows of each replica, and the values of the first replica are used"
            warn_of_buffers(self._phase, names, SHARES, how, WITHOUT_REPLICAS)


def replica_checks(phase: PhaseSettings, pipeline: Pipeline, group: ProcessGroup) -> list[LoopExtension]:
    """Return the checks of a phase whose steps consist of parts, of accumulated batches, or of both."""
    programs = [stage.program for stage in pipeline.stages if isinstance(stage.program, ReplicatedProgram)]
    shared, accumulates = not group.reads_all_rows or bool(programs), phase.accumulate > 1
    if not shared and not accumulates:
        return []
    is_first = group.rank == 0
    told = {"doing": SHARES, "left_out": WITHOUT_REPLICAS} if shared else {}
    means = MeanCheck(phase, pipeline.stages, group.gather, is_first=is_first, **told)
    checks: list[LoopExtension] = [means] if means.is_due else []
    if group.sharded or not buffer_owners(phase, pipeline):  # where divided, values are read by all together
        return checks
    n_shards = FIXED_SHARDS if any(program.has_fixed_shards for program in programs) else 1
    if accumulates:
        checks.append(BufferCheck(phase, pipeline, is_first=is_first, n_calls=phase.accumulate * n_shards))
    elif n_shards > 1:
        doing, left_out = f"splits each batch into {n_shards} shards", "leave deterministic out"
        told = {"doing": doing, "left_out": left_out}
        checks.append(BufferCheck(phase, pipeline, is_first=is_first, n_calls=n_shards, **told))
    elif programs:
        checks.append(UnequalBuffers(phase, programs))
    return checks
