"""Sharding: parameters and optimizer states that are sharded over replicas. Part of the plugin contract."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import Any, ClassVar

from anyaccel.program import Program
from anyaccel.segment import Segment
from anyaccel_distributed.group import ReplicaGroup, Replicate


class ShardParameters(Replicate):
    """Capability `shard_parameters`: each replica keeps a shard of the parameters, gradients and optimizer states.

    All replicas compute the steps of such a program together, and call `forward`, `sync_models`, `optimizer_states` and
    `close` in the same order. The results of these are whole.
    """

    global_batches: ClassVar[bool] = False
    """Whether each replica gives its program all rows of a step, of which that computes a part together with others'.

    Then random numbers are those of one program, and nothing is exchanged beside it: `begin_step` is not called, and
    `average_gradients` has nothing to do.
    """
    shards_nodes: ClassVar[bool] = False
    """Whether parameters of some nodes may stay whole; without it, `whole` is not given, and such graphs refused."""

    @abstractmethod
    def unshardable_reason(self, segment: Segment, *, offload: bool, whole: Collection[str] = ()) -> str:
        """Return why the parameters of a segment cannot be sharded; `""` if they can.

        `segment.precision` may prevent it, too. `whole` are the nodes whose parameters are not sharded.
        """

    @abstractmethod
    def sharded_blocks(self, model: Any) -> Sequence[str]:
        """Return names of the parts of a model whose parameters are gathered together, while they are computed."""

    @abstractmethod
    def build_sharded(
        self, segment: Segment, group: ReplicaGroup, *, offload: bool, whole: Collection[str] = ()
    ) -> Program:
        """Build a program whose trained parameters are sharded over the replicas of a group.

        The models keep their class, and have no values until `sync_models` or `close`. Gradients are computed over all
        replicas: before each step `ReplicaGroup.begin_step` announces which part of it is computed here.
        `average_gradients` leaves them unchanged, and sums those of whole parameters.

        Args:
            segment: The segment to compute; its models are placed.
            group: The replicas.
            offload: Keep sharded parameters, gradients and optimizer states in host memory.
            whole: Labels of the nodes whose parameters are replicated.
        """

    def sharded_bytes(self, program: Program) -> int | None:
        """Return bytes of parameters and optimizer state that this replica keeps of a program of `build_sharded`.

        None, the default, where the framework cannot tell.
        """
        return None
