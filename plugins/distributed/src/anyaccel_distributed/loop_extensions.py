"""Replicas in the training loop: they begin, stop and fail together, and share calls of several steps."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Protocol

from anyaccel import rng
from anyaccel.phases.executor.pipeline import Pipeline
from anyaccel.phases.loop_extension import Call, LoopExtension
from anyaccel.phases.run import Run

_LOST = (
    "parameters were sharded over replicas, and this replica does not gather them after an error: they are NaN in "
    "its models, unless they were read since the last step; resume from a checkpoint"
)


class LoopReplicas(Protocol):
    """The exchange between the replicas of a training loop; all of them call it in the same order."""

    sharded: bool

    @property
    def where(self) -> str:
        """Rank of this replica and its step, in words."""

    def begin_epoch(self, epoch: int, step: int) -> None:
        """An epoch of the run begins, or continues after its first `step` steps."""

    def end_steps(self) -> None:
        """The steps of an epoch are done."""

    def end_epoch(self, stop_reason: str) -> str:
        """An epoch is done; why one of the replicas is asked to stop."""

    def stop_reason_of_all(self, reason: str) -> str:
        """Why one of the replicas is asked to stop, `""` if none is."""

    def abandon(self) -> None:
        """Exchange nothing any more."""

    def gather(self, value: Any) -> list[Any]:
        """Return the plain values that all give, by rank."""

    def shared_call(self, n_steps: int) -> AbstractContextManager[None]:
        """Around a call of a program that all compute together."""


class ReplicatedEpochs(LoopExtension):
    """Let replicas go through epochs together, and none wait for one that has failed.

    Args:
        run: The training.
        pipeline: The programs of this replica.
        replicas: Replicas of the run.
    """

    def __init__(self, run: Run, pipeline: Pipeline, replicas: LoopReplicas) -> None:
        self._run, self._pipeline, self._replicas = run, pipeline, replicas

    def epoch_begins(self) -> None:
        self._replicas.begin_epoch(self._run.epoch, self._run.step)

    def rows_end(self) -> None:
        self._replicas.end_steps()

    def failed(self, failure: BaseException, losses: object) -> bool:
        """Stop the exchange before values are settled, which may wait; create the error of an out-of-memory first."""
        if not isinstance(failure, MemoryError):
            self._replicas.abandon()
        return False

    def run_ends(self) -> None:
        """Make seeds that models keep equal in all replicas again."""
        self._pipeline.seed(rng.key(self._run.graph.seed, "end", self._run.phase.label))

    def run_fails(self, error: BaseException) -> None:
        self._replicas.abandon()
        if self._replicas.sharded:
            error.add_note(f"{_LOST} ({self._replicas.where})")


class AgreedStop(LoopExtension):
    """All replicas stop where one was asked to; the others would wait for it.

    Args:
        run, replicas: See `ReplicatedEpochs`.
    """

    def __init__(self, run: Run, replicas: LoopReplicas) -> None:
        self._run, self._replicas = run, replicas

    def run_begins(self) -> None:
        self._run.stop_reason = self._replicas.stop_reason_of_all(self._run.stop_reason)

    def epoch_begins(self) -> None:
        self._run.stop_reason = self._replicas.stop_reason_of_all(self._run.stop_reason)

    def epoch_ends(self) -> None:
        """All end with the same epoch."""
        self._run.stop_reason = self._replicas.end_epoch(self._run.stop_reason)


class SharedCalls(LoopExtension):
    """Calls of several steps by all replicas at once: each decides by its own clock, and all take the fewest.

    Args:
        replicas: See `ReplicatedEpochs`.
    """

    def __init__(self, replicas: LoopReplicas) -> None:
        self._replicas = replicas

    def agree(self, call: Call, n_steps: int) -> None:
        """Take the fewest steps of all.

        Blocks of streamed rows are as large as the memory of a process has room for, and may differ: then these steps
        are taken one by one, which need no more than the same rows.

        Raises:
            FrameworkError: another replica has ended, or does not answer.
        """
        offers = self._replicas.gather([n_steps, [call.start, call.runner.layout]])
        call.n_steps = min(count for count, _ in offers)
        if any(rows != offers[0][1] for _, rows in offers):
            call.runner = replace(call.runner, program=None, stage=None)

    def around_call(self, call: Call) -> AbstractContextManager[None]:
        """Errors name the steps of a call of one program."""
        return nullcontext() if call.runner.program is None else self._replicas.shared_call(call.n_steps)
