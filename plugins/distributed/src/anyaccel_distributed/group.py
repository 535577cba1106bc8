"""Replica group: the exchange between the processes that train one model. Part of the plugin contract."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from anyaccel.capability import Capability
from anyaccel.program import Program
from anyaccel.segment import Segment

ProgramInputs = tuple[Program, Sequence[Any]]
"""A program, and values for its inputs."""


class ReplicaGroup(ABC):
    """All replicas of one model. Every replica calls the same methods in the same order, and each call waits for all.

    Attributes:
        rank: Number of this replica, from 0.
        size: Number of replicas.
    """

    rank: int
    size: int
    weighs_losses: ClassVar[bool] = False
    """Whether `loss_weights` is there; without it, losses that weigh rows or positions are refused."""
    gathers_tensors: ClassVar[bool] = False
    """Whether `gather_tensors` is there; without it, `TrainPhase(deterministic=True)` is refused."""

    @abstractmethod
    def average_gradients(self, programs: Sequence[Program], weight: float) -> None:
        """Replace the gradients of these programs by their means over all replicas.

        A parameter that has a gradient in some replicas counts as zero in the others; one without a gradient in all of
        them gets none.

        Args:
            programs: Programs of this backend; the same segments in every replica.
            weight: Weight of this replica's gradients: the number of rows in their mean.

        Raises:
            FrameworkError: another replica has ended, or does not respond.
        """

    def overlap_gradients(self, programs: Sequence[Program], weight: float, part: float) -> Sequence[Program]:
        """Prepare the last pullback of a step: return the programs that exchange gradients while they are computed.

        `average_gradients` follows with the same weight; until then nothing reads or changes these gradients. They are
        then the means over all replicas, as if they had been multiplied by `part / weight` before. The default returns
        none.

        Args:
            programs: Trained programs of this backend; the same segments in every replica.
            weight: See `average_gradients`.
            part: Number of rows in the mean of this replica's gradients.

        Raises:
            FrameworkError: another replica has ended, or does not respond.
        """
        return ()

    def average_in_steps(self, program: Program, around: Callable[[], AbstractContextManager[None]]) -> bool:
        """Let `MultiStepProgram.train_steps` average the gradients of each step, so that calls take several steps.

        The numbers are those of `average_gradients` with the rows of each step, and so are the messages: some replicas
        may take steps in such calls while others take the same steps one by one. The default does nothing.

        Args:
            program: The only program of a phase with whole parameters; no loss weights rows or positions.
            around: Returns a context for the exchange of a step, which raises what `average_gradients` raises.

        Returns:
            Whether it does so, until the program is closed.
        """
        return False

    @abstractmethod
    def gather(self, value: Any) -> list[Any]:
        """Return the plain values of all replicas, by rank.

        Plain values are None, bool, int, float, str, bytes, and lists and dicts of these.

        Raises:
            FrameworkError: another replica has ended, or does not respond.
        """

    def sums(self, values: Sequence[float]) -> list[float]:
        """Return the sum of each of these numbers over all replicas, in float64.

        Raises:
            FrameworkError: another replica has ended, or does not answer.
        """
        return [math.fsum(column) for column in zip(*self.gather(list(values)), strict=True)]

    def loss_weights(self, programs: Sequence[ProgramInputs], n_rows: float) -> list[dict[str, Any]]:
        """Return, for each program, by label: `Program.loss_weights` for the rows of all replicas together.

        Each is multiplied by this replica's fraction of all rows. A loss divided by it then has gradients whose
        average, weighted by rows, is the gradient of the loss over all rows.

        Args:
            programs: Programs of this backend, each with its inputs; the same segments in every replica.
            n_rows: Number of rows of this replica.

        Raises:
            FrameworkError: another replica has ended, or does not respond.
        """
        raise NotImplementedError

    def gather_tensors(
        self, program: Program, shards: Sequence[Sequence[Any]], counts: Sequence[int]
    ) -> list[list[Any]]:
        """Return the results of the shards of a batch in all replicas, in their order, on the device of this one.

        Args:
            program: The program that computed them.
            shards: Shards of this replica: for each its gradients, from `DeviceReplicas.gradients`, followed by
                scalars, which are tensors or numbers.
            counts: Number of shards of each replica, by rank; at least one.

        Raises:
            FrameworkError: another replica has ended, or does not respond.
        """
        raise NotImplementedError

    def sync_batch_statistics(self, program: Program) -> None:
        """Let its layers normalize by the rows of all replicas in training, until the program is closed.

        Called only where `Replicate.unsynchronizable` gave nothing for its models.
        """
        raise NotImplementedError

    def begin_step(self, programs: Sequence[Program], sizes: Sequence[int]) -> None:
        """Begin a step; this replica computes parts with these numbers of rows, in sequence.

        Required if parameters are sharded: the gradients of each part are then summed over all replicas together.
        """

    def begin_parts(self, program: Program, n_replicas: int) -> None:
        """Prepare for steps of a `build_together` program with rows from `n_replicas` replicas.

        1, the default, means that each replica passes all rows. Required if a backend `computes_together`.
        """
        raise NotImplementedError

    def abandon(self, programs: Sequence[Program]) -> None:
        """Stop all exchange from now on, because this replica has failed and the others may wait elsewhere.

        Args:
            programs: Programs with sharded parameters.
        """


class Replicate(Capability):
    """Capability `replicate`: programs of this backend can be replicas of each other in several processes."""

    computes_together: ClassVar[bool] = False
    """Whether `build_together` is there."""

    @abstractmethod
    def replica_group(self, rank: int, size: int) -> ReplicaGroup:
        """Return the group of this process; the same object each time.

        Args:
            rank: Rank of this process, from 0.
            size: Number of replicas. They meet at the address that the launcher has set in the environment.

        Raises:
            FrameworkError: the replicas cannot be joined.
        """

    def build_together(self, segment: Segment, group: ReplicaGroup) -> Program:
        """Build one program that all replicas call in the same way, each with all rows of a step.

        It computes a part of them together with the others. Random numbers are the same as in one process, layers that
        mix the rows of a batch see all of them, and nothing else is exchanged: `average_gradients` has nothing to do.
        Parameters and results are whole in each replica.

        Args:
            segment: The segment to compute; its models are placed.
            group: The replicas.
        """
        raise NotImplementedError

    def unshareable_reason(self, model: Any) -> str:
        """Return why replicas cannot train a model together; `""`, the default, if they can."""
        return ""

    def unsynchronizable(self, model: Any) -> str:
        """Return a layer that mixes the rows of a batch, and cannot do so over all replicas, or `""`."""
        return type(model).__name__
