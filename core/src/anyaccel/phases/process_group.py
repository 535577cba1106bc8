"""Process group: the processes that compute one phase together, and their exchanges; a single process is a group of
one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from anyaccel.backend import ComputingBackend, Program
from anyaccel.graph import ModelGraph
from anyaccel.phases.executor.cross_segment import CrossSegmentStep, PipelineStage
from anyaccel.phases.executor.pipeline import Pipeline
from anyaccel.phases.loading.epoch_plan import EpochPlan
from anyaccel.phases.loading.host_columns import Batch
from anyaccel.phases.loop_extension import LoopExtension
from anyaccel.phases.run import Run
from anyaccel.phases.step_checks import BufferCheck, MeanCheck
from anyaccel.results.events import LogEvent
from anyaccel.segment import Segment

LossSums = dict[str, tuple[float, float]]
"""Sum and weight, by label."""
BatchesShare = Callable[[Iterable[tuple[int, Batch]]], Iterator[tuple[int, Batch]]]
"""Gives of numbered batches the part that a process takes."""


class ProcessGroup(ABC):
    """The processes that compute a phase together, from the point of view of one of them. All call exchanging methods
    together.

    Attributes:
        rank: Rank of this process, from 0.
        size: Number of processes.
        sharded: Whether parameters are sharded over them; they gather them together before models are read.
        reads_all_rows: Whether each process receives all rows of a step.
        random_key: Parts of a key that separate the random numbers of this process; empty if it draws those of a single
            process.
    """

    rank: int
    size: int
    sharded: bool = False

    @property
    @abstractmethod
    def reads_all_rows(self) -> bool: ...

    @property
    @abstractmethod
    def random_key(self) -> tuple[str, ...]: ...

    # -- the rows of this process ----------------------------------------------------------------------------------

    @abstractmethod
    def choose_rows(self, *, in_memory: bool, batches: bool) -> None:
        """Decide whether each is given all rows of a step: all have them in memory, or a source gives its batches."""

    @abstractmethod
    def share_epochs(self, epochs: EpochPlan) -> EpochPlan:
        """Return this process's part of the steps of a training.

        Raises:
            PhaseError: the steps cannot be split.
        """

    @abstractmethod
    def share_batches(self, source: str) -> BatchesShare:
        """Return this process's part of the batches of a source with this label."""

    @abstractmethod
    def shares_evaluation(self, epochs: EpochPlan) -> bool:
        """Whether each computes some whole batches of an evaluation."""

    @abstractmethod
    def share_evaluation(self, epochs: EpochPlan) -> EpochPlan:
        """Return the batches of an evaluation that this process computes."""

    # -- programs and steps ----------------------------------------------------------------------------------------

    @abstractmethod
    def build(self, segment: Segment, backend: ComputingBackend) -> Program:
        """Return the program of a segment."""

    @abstractmethod
    def step(self, stages: Sequence[PipelineStage], log_event: LogEvent) -> CrossSegmentStep:
        """Return the object that runs steps one at a time; `log_event` receives events of transfers that fail."""

    # -- what is exchanged -----------------------------------------------------------------------------------------

    @abstractmethod
    def gather(self, value: Any) -> list[Any]:
        """Return the plain values that all give, by rank."""

    def first(self, value: Any) -> Any:
        """Return the plain value that the first process gives."""
        return self.gather(value)[0]

    @abstractmethod
    def total(self, sums: Mapping[str, tuple[float, float]]) -> LossSums:
        """Return sums and weights of losses over all rows."""

    @abstractmethod
    def arrays_of_all(self, arrays: Sequence[Mapping[str, np.ndarray]] | None) -> list[Mapping[str, np.ndarray]] | None:
        """Return the named arrays that all give, one process after the other; None where one gives None."""

    @abstractmethod
    def outputs_of_all(self, outputs: dict[str, list[np.ndarray]]) -> dict[str, list[np.ndarray]]:
        """Return the outputs of all batches by name, in their order, where each process has computed some of them."""

    @abstractmethod
    def check_same(self, texts: Mapping[str, str], *, when: str, hint: str) -> None:
        """Compare texts by name, such as digests of files, in all processes.

        Args:
            texts: Texts of this process.
            when: End of the message, such as `"before the first step"`.
            hint: Hint of the message.

        Raises:
            PhaseError: they differ.
        """

    @abstractmethod
    def check_begin(self, phase: Any, graph: ModelGraph, columns: Mapping[str, Any]) -> None:
        """Compare code, settings, models and data before the first step.

        Raises:
            PhaseError: they differ.
        """

    @abstractmethod
    def check_end(self, graph: ModelGraph) -> Mapping[str, np.ndarray]:
        """Compare the results of training; return the first process's values of buffers that differ.

        Raises:
            PhaseError: parameters or states of optimizers differ.
        """

    # -- the training loop -----------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def keeps_snapshots(self) -> bool:
        """Whether there may be room for a second copy of the trained state."""

    @abstractmethod
    def loop_extensions(self, run: Run, pipeline: Pipeline) -> tuple[Sequence[LoopExtension], Sequence[LoopExtension]]:
        """Return the extensions that act in the training loop before hooks of the same moment, and those that act after
        them; among the latter the checks that compare steps computed in parts with those of one batch.
        """


class SingleProcess(ProcessGroup):
    """A group of one: its part is everything, its sum is the value, and nothing it compares differs."""

    rank, size = 0, 1
    reads_all_rows = True
    random_key = ()

    def choose_rows(self, *, in_memory: bool, batches: bool) -> None:
        pass

    def share_epochs(self, epochs: EpochPlan) -> EpochPlan:
        return epochs

    def share_batches(self, source: str) -> BatchesShare:
        return iter

    def shares_evaluation(self, epochs: EpochPlan) -> bool:
        return False

    def share_evaluation(self, epochs: EpochPlan) -> EpochPlan:
        return epochs

    def build(self, segment: Segment, backend: ComputingBackend) -> Program:
        return backend.build(segment)

    def step(self, stages: Sequence[PipelineStage], log_event: LogEvent) -> CrossSegmentStep:
        return CrossSegmentStep(stages, log_event)

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def total(self, sums: Mapping[str, tuple[float, float]]) -> LossSums:
        return dict(sums)

    def arrays_of_all(self, arrays: Sequence[Mapping[str, np.ndarray]] | None) -> list[Mapping[str, np.ndarray]] | None:
        return None if arrays is None else list(arrays)

    def outputs_of_all(self, outputs: dict[str, list[np.ndarray]]) -> dict[str, list[np.ndarray]]:
        return outputs

    def check_same(self, texts: Mapping[str, str], *, when: str, hint: str) -> None:
        pass

    def check_begin(self, phase: Any, graph: ModelGraph, columns: Mapping[str, Any]) -> None:
        pass

    def check_end(self, graph: ModelGraph) -> Mapping[str, np.ndarray]:
        return {}

    keeps_snapshots = True

    def loop_extensions(self, run: Run, pipeline: Pipeline) -> tuple[Sequence[LoopExtension], Sequence[LoopExtension]]:
        if run.phase.accumulate == 1:
            return (), ()
        means = MeanCheck(run.phase, pipeline.stages, self.gather)
        buffers = BufferCheck(run.phase, pipeline, n_calls=run.phase.accumulate)
        return (), [check for check in (means, buffers) if check.is_due]
