"""Shared calls: steps that replicas take in calls of one program, which they compute together."""

from __future__ import annotations

from dataclasses import replace

from anyaccel.phases.executor.pipeline import ChunkRunner
from anyaccel.phases.executor.stage import Losses
from anyaccel.phases.process_group import ProcessGroup


class SharedCalls:
    """Calls of several steps by all replicas at once: each decides by its own clock, and all take the fewest.

    Args:
        replicas: of this process.
    """

    def __init__(self, replicas: ProcessGroup) -> None:
        self._replicas = replicas

    def agree(self, runner: ChunkRunner, start: int, count: int) -> tuple[ChunkRunner, int]:
        """What trains the next steps, and how many; called by all replicas before each of their calls.

        Blocks of streamed rows are as large as the memory of a process has room for, and may differ: then these steps
        are taken one by one, which need no more than the same rows.

        Args:
            runner: of the chunk that this replica has.
            start: row of the next step in it.
            count: steps that this replica would take.

        Raises:
            FrameworkError: another replica has ended, or does not answer.
        """
        every = self._replicas.gather([count, [start, runner.layout]])
        fewest: int = min(each[0] for each in every)
        alike = all(each[1] == every[0][1] for each in every)
        return runner if alike else replace(runner, program=None, stage=None), fewest

    def train_steps(
        self, runner: ChunkRunner, start: int, n_steps: int, batch_size: int, microbatch_size: int | None
    ) -> list[Losses]:
        """As of the runner; errors name the steps of the call.

        Raises:
            FrameworkError: another replica has ended.
        """
        if runner.program is None:
            return runner.train_steps(start, n_steps, batch_size, microbatch_size)
        with self._replicas.shared_call(n_steps):
            return runner.train_steps(start, n_steps, batch_size, microbatch_size)
