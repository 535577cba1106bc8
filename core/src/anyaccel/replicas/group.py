"""Replica group: what the processes that train one model exchange. Part of the plugin contract."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from anyaccel.program import Program


class ReplicaGroup(ABC):
    """All replicas of one model. Every replica calls the same methods in the same order, and each call waits for all.

    Attributes:
        rank: which replica this is, from 0.
        size: how many there are.
    """

    rank: int
    size: int

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

    @abstractmethod
    def gather(self, value: Any) -> list[Any]:
        """The plain values (None, bool, int, float, str, lists and dicts of these) that all replicas give, by rank.

        Raises:
            FrameworkError: another replica has ended, or does not answer.
        """


class Replicate(ABC):
    """Capability `replicate`: programs of this backend can be replicas of each other in several processes."""

    @abstractmethod
    def replica_group(self, rank: int, size: int) -> ReplicaGroup:
        """The group of this process; the same object each time.

        Args:
            rank: which replica this process is, from 0.
            size: how many there are; the address at which they meet is in the environment, as the launcher has set it.

        Raises:
            FrameworkError: the replicas cannot be joined.
        """
