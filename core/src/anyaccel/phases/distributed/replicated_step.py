"""Whole batches: steps that several replicas compute together by one program, to which each gives all rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from anyaccel.phases.executor.stage import PipelineStage


class GlobalBatchReplicas:
    """See `StepReplicas`: nothing is exchanged beside the programs.

    Args:
        compare: is called when the gradients of a step are computed.
        end_step: is called when it is done.
        multi_step: see `StepReplicas`; not where batches are compared in every step.
    """

    def __init__(self, compare: Callable[[], None], end_step: Callable[[], None], *, multi_step: bool) -> None:
        self.sharded = False  # in the sense of `StepReplicas`
        self.multi_step = multi_step
        self._compare, self.end_step = compare, end_step

    def begin_step(self, sizes: Sequence[int]) -> None:
        """Nothing: programs know their rows."""

    def begin_reading(self) -> None:
        """Nothing: programs gather by themselves."""

    def loss_weights(
        self, inputs: Sequence[tuple[PipelineStage, Sequence[Any]]], n_rows: float
    ) -> list[dict[str, Any]]:
        """Of all rows."""
        return [stage.program.loss_weights(given) for stage, given in inputs]

    def overlap_backward(self, stages: Sequence[PipelineStage]) -> list[PipelineStage]:
        """None: nothing is exchanged."""
        return []

    def expect_gradients(self, weight: float, factor: float) -> None:
        """Nothing: no stage overlaps."""

    def average(self, stages: Iterable[PipelineStage], weight: float) -> None:
        """Nothing: gradients are those of all rows."""
        self._compare()
