"""Sharding: parameters and optimizer states that are divided among replicas. Part of the plugin contract."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import Any, ClassVar

from anyaccel.program import Program
from anyaccel.segment import Segment
from anyaccel_distributed.group import ReplicaGroup, Replicate


class ShardParameters(Replicate):
    """Capability `shard_parameters`: each replica keeps a part of the parameters, gradients and optimizer states.

    Steps of such a program are computed by all replicas together, and so are `forward`, `sync_models`,
    `optimizer_states` and `close`: each is called by all of them in the same order. What these give is whole.
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
        """What keeps the parameters of a segment from being divided, in words; `""` if nothing does.

        `segment.precision` may keep them from it, too. `whole` are the nodes whose parameters are not divided.
        """

    @abstractmethod
    def sharded_blocks(self, model: Any) -> Sequence[str]:
        """Return names of the parts of a model whose parameters are gathered together, while they are computed."""

    @abstractmethod
    def build_sharded(
        self, segment: Segment, group: ReplicaGroup, *, offload: bool, whole: Collection[str] = ()
    ) -> Program:
        """As `Compute.build`, with what is trained divided among the replicas of a group.

        The models keep their class, and have no values until `sync_models` or `close`. Gradients are those of all
        replicas: before each step `ReplicaGroup.begin_step` says what part of it is computed here, and
        `average_gradients` leaves them as they are; those of parameters that are whole it adds up.

        Args:
            segment: what to compute; its models are placed.
            group: the replicas.
            offload: keep what is divided in host memory: parameters, gradients and optimizer states.
            whole: labels of the nodes whose parameters each replica keeps.
        """

    def sharded_bytes(self, program: Program) -> int | None:
        """Return bytes of parameters and optimizer state that this replica keeps of a program of `build_sharded`.

        None, the default, where the framework cannot tell.
        """
        return None
