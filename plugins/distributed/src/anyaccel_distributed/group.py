"""Replica group: what the processes that train one model exchange. Part of the plugin contract."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from anyaccel.capability import Capability
from anyaccel.program import Program
from anyaccel.segment import Segment

ProgramInputs = tuple[Program, Sequence[Any]]
"""A program, and values for its inputs."""


class ReplicaGroup(ABC):
    """All replicas of one model. Every replica calls the same methods in the same order, and each call waits for all.

    Attributes:
        rank: which replica this is, from 0.
        size: how many there are.
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

        A parameter that has a gradient in some replicas counts as zero in the others; one that has none in any of them
        keeps none.

        Args:
            programs: of this backend; the same segments in every replica.
            weight: how much the gradients of this replica weigh: the rows that they are a mean over.

        Raises:
            FrameworkError: another replica has ended, or does not answer.
        """

    def overlap_gradients(self, programs: Sequence[Program], weight: float, part: float) -> Sequence[Program]:
        """The next pullback of each program is the last of a step: give those that exchange gradients as they come.

        `average_gradients` follows with the same weight; until then nothing reads or changes these gradients. They are
        then the means over all replicas, as if they had been multiplied by `part / weight` before. The default is none.

        Args:
            programs: of this backend, whose parameters are trained; the same segments in every replica.
            weight: as of `average_gradients`.
            part: over how many rows the gradients of this replica are a mean.

        Raises:
            FrameworkError: another replica has ended, or does not answer.
        """
        return ()

    @abstractmethod
    def gather(self, value: Any) -> list[Any]:
        """Return the plain values that all replicas give, by rank.

        Plain are None, bool, int, float, str, bytes, and lists and dicts of these.

        Raises:
            FrameworkError: another replica has ended, or does not answer.
        """

    def sums(self, values: Sequence[float]) -> list[float]:
        """Return the sum of each of these numbers over all replicas, in float64.

        Raises:
            FrameworkError: another replica has ended, or does not answer.
        """
        return [math.fsum(each) for each in zip(*self.gather(list(values)), strict=True)]

    def loss_weights(self, programs: Sequence[ProgramInputs], n_rows: float) -> list[dict[str, Any]]:
        """For each program, by label: what `Program.loss_weights` gives for the rows of all replicas together.

        Each is multiplied by the part of all rows that this replica has, so that a loss divided by it has gradients
        whose average, weighted by rows, is the gradient of the loss over all rows.

        Args:
            programs: of this backend, each with its inputs; the same segments in every replica.
            n_rows: of this replica.

        Raises:
            FrameworkError: another replica has ended, or does not answer.
        """
        raise NotImplementedError

    def gather_tensors(
        self, program: Program, shards: Sequence[Sequence[Any]], counts: Sequence[int]
    ) -> list[list[Any]]:
        """What the shards of a batch gave in all replicas, in their order, on the device of this one.

        Args:
            program: that computed them.
            shards: of this replica: for each its gradients, as `DeviceReplicas.gradients` gives them, and after them
                scalars, which are tensors or numbers.
            counts: how many shards each replica has, by rank; at least one.

        Raises:
            FrameworkError: another replica has ended, or does not answer.
        """
        raise NotImplementedError

    def sync_batch_statistics(self, program: Program) -> None:
        """Let its layers normalize by the rows of all replicas in training, until the program is closed.

        Called only where `Replicate.unsynchronizable` gave nothing for its models.
        """
        raise NotImplementedError

    def begin_step(self, programs: Sequence[Program], sizes: Sequence[int]) -> None:
        """A step begins, of which this replica computes parts of that many rows, in sequence.

        Needed where parameters are divided: there the gradients of each part are summed over all replicas at once.
        """

    def begin_parts(self, program: Program, n_replicas: int) -> None:
        """The rows of the next steps of a program of `build_together` are those of that many replicas put together.

        1 where each gives all rows, as where it is not called. Needed where a backend `computes_together`.
        """
        raise NotImplementedError

    def abandon(self, programs: Sequence[Program]) -> None:
        """This replica has failed, and the others may wait elsewhere: from now on nothing is exchanged.

        Args:
            programs: those whose parameters are divided.
        """


class Replicate(Capability):
    """Capability `replicate`: programs of this backend can be replicas of each other in several processes."""

    computes_together: ClassVar[bool] = False
    """Whether `build_together` is there."""

    @abstractmethod
    def replica_group(self, rank: int, size: int) -> ReplicaGroup:
        """Return the group of this process; the same object each time.

        Args:
            rank: which replica this process is, from 0.
            size: how many there are; the address at which they meet is in the environment, as the launcher has set it.

        Raises:
            FrameworkError: the replicas cannot be joined.
        """

    def build_together(self, segment: Segment, group: ReplicaGroup) -> Program:
        """As `Compute.build`, one program that all replicas call alike: each gives it all rows of a step.

        It computes a part of them together with the others. Random numbers are those of one process, layers that mix
        the rows of a batch see all of them, and nothing is exchanged beside it: `average_gradients` has nothing to do.
        Parameters are whole in each replica; what it gives is whole, too.

        Args:
            segment: what to compute; its models are placed.
            group: the replicas.
        """
        raise NotImplementedError

    def unshareable_reason(self, model: Any) -> str:
        """What keeps replicas from sharing a model that is trained, in words; `""`, the default, if nothing does."""
        return ""

    def unsynchronizable(self, model: Any) -> str:
        """Name of a layer that mixes the rows of a batch, and cannot do so over all replicas; `""` if there is none."""
        return type(model).__name__
