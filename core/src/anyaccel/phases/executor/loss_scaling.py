"""The loss scale of all programs of a phase, which is one: gradients go from segment to segment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from anyaccel.phases.executor.stage import PipelineStage
from anyaccel.precision import LossScaleState, ScalesLosses


class LossScaling:
    """Reads and changes the loss scale of several programs, each of which keeps the same.

    Args:
        stages: those through which gradients flow.
        programs: of these.
    """

    def __init__(self, stages: Sequence[PipelineStage], programs: Sequence[ScalesLosses]) -> None:
        self._stages, self._programs = tuple(stages), tuple(programs)
        self._skipped_before = 0

    @property
    def state(self) -> LossScaleState:
        """Where it stands; waits for the steps so far."""
        return self._programs[0].loss_scale_state()

    @property
    def scale(self) -> float:
        """By what losses are multiplied now."""
        return self.state.scale

    @property
    def n_skipped(self) -> int:
        """How many steps of this phase were skipped."""
        return self.state.skipped - self._skipped_before

    def load(self, state: LossScaleState) -> None:
        """Go on from the state of an earlier run."""
        self._skipped_before = state.skipped
        for program in self._programs:
            program.load_loss_scale_state(state)

    def is_finite(self, stages: Iterable[PipelineStage]) -> bool:
        """Whether all gradients of some stages are finite; waits for them."""
        stats = [stats for stage in stages for stats in stage.program.grad_stats().values()]
        return all(bool(finite) for _, finite in stats)

    def update(self, *, finite: bool) -> None:
        """Count a step that was done, or skipped."""
        for program in self._programs:
            program.update_loss_scale(finite=finite)


def loss_scalings(stages: Sequence[PipelineStage]) -> tuple[LossScaling, ...]:
    """The loss scale of the programs of a phase; empty where losses are not scaled."""
    scaled = [
        stage
        for stage in stages
        if stage.has_gradient and stage.segment.precision is not None and stage.segment.precision.loss_scale is not None
    ]
    programs = [stage.program for stage in scaled if isinstance(stage.program, ScalesLosses)]
    return (LossScaling(scaled, programs),) if programs else ()
