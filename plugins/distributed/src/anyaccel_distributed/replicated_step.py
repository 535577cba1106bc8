"""Replicated steps: single steps of which several replicas compute a part each, or one program over all of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Protocol

from anyaccel.phases.executor.cross_segment import CrossSegmentStep, Losses, Parts, PipelineStage, SpanOf, StageRows
from anyaccel.results.events import LogEvent


class StepReplicas(Protocol):
    """What the replicas of a step exchange; called by all of them in the same order."""

    sharded: bool
    """Whether gradients are summed over the replicas as soon as they are computed."""

    def begin_step(self, sizes: Sequence[int]) -> None:
        """Where they are summed so: a step begins, in parts of so many rows."""

    def begin_reading(self) -> None:
        """Where parameters are divided: models are read next, for which all replicas gather them."""

    def loss_weights(
        self, inputs: Sequence[tuple[PipelineStage, Sequence[Any]]], n_rows: float
    ) -> list[dict[str, Any]]:
        """As `ReplicaGroup.loss_weights`, for stages with the inputs that their losses are weighed by."""

    def begin_last_part(self, stages: Sequence[PipelineStage], weight: float, part: float) -> set[int]:
        """As `ReplicaGroup.overlap_gradients`; the `id`s of stages."""

    def average(self, stages: Iterable[PipelineStage], weight: float) -> None:
        """Replace the gradients of these stages by their means over all replicas, weighted by rows."""

    def end_step(self) -> None:
        """The step is done."""


class ReplicatedStep(CrossSegmentStep):
    """Steps of which each replica computes the rows that are its share.

    Args:
        stages, log_event: see `CrossSegmentStep`.
        replicas: that share each step.
    """

    multi_step = False  # each has a program of its own
    is_share = True

    def __init__(self, stages: Sequence[PipelineStage], log_event: LogEvent, replicas: StepReplicas) -> None:
        super().__init__(stages, log_event)
        self._replicas = replicas
        self._trained = [stage for stage in stages if stage.has_gradient]

    def begin_reading(self) -> None:
        if self._replicas.sharded:
            self._replicas.begin_reading()

    def _step(self, rows: StageRows, parts: Parts, whole: SpanOf) -> list[Losses]:
        if self._replicas.sharded:  # gradients of all parts are those of all replicas
            self._replicas.begin_step([size for _, size in parts])
            parts = [(span_of, 1) for span_of, _ in parts]
        return super()._step(rows, parts, whole)

    def _loss_weights(self, inputs: Sequence[tuple[PipelineStage, list[Any]]], n_rows: int) -> list[dict[str, Any]]:
        return self._replicas.loss_weights(inputs, n_rows)

    def _begin_last_part(self, n_rows: int, size: int) -> set[int]:
        return self._replicas.begin_last_part(self._trained, n_rows, size)

    def _update(self, stages: Collection[PipelineStage], n_rows: int) -> None:
        self._replicas.average(stages, n_rows)
        super()._update(stages, n_rows)
        self._replicas.end_step()


class GlobalBatchStep(CrossSegmentStep):
    """Steps that the replicas compute together by one program, which exchanges by itself.

    Args:
        stages, log_event: see `CrossSegmentStep`.
        begin_step: is called when a step begins; gives of how many replicas its rows are put together: 1 where each
            gives all of them.
        compare: is called when the gradients of a step are computed.
        end_step: is called when it is done.
        multi_step: see `CrossSegmentStep`; not where batches are compared in every step.
    """

    is_share = True

    def __init__(
        self,
        stages: Sequence[PipelineStage],
        log_event: LogEvent,
        begin_step: Callable[[], int],
        compare: Callable[[], None],
        end_step: Callable[[], None],
        *,
        multi_step: bool,
    ) -> None:
        super().__init__(stages, log_event)
        self.multi_step = multi_step
        self._begin_step, self._compare, self._end_step = begin_step, compare, end_step

    def _step(self, rows: StageRows, parts: Parts, whole: SpanOf) -> list[Losses]:
        n_replicas = self._begin_step()
        return super()._step(rows, [(span_of, size * n_replicas) for span_of, size in parts], whole)

    def _update(self, stages: Collection[PipelineStage], n_rows: int) -> None:
        self._compare()
        super()._update(stages, n_rows)
        self._end_step()
