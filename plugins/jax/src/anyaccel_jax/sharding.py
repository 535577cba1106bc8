"""Sharding of JAX: one compiled step over a mesh of a device of each process."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, ClassVar

from anyaccel.program import Program
from anyaccel.segment import Segment
from anyaccel_distributed import ReplicaGroup, ShardParameters


class JaxSharding(ShardParameters):
    """Replicas that are joined by jax.distributed, and compute each step together."""

    shards_nodes: ClassVar[bool] = True
    global_batches: ClassVar[bool] = True
    computes_together: ClassVar[bool] = True

    def replica_group(self, rank: int, size: int) -> ReplicaGroup:
        """Return a group by jax.distributed."""
        from anyaccel_jax.replica_group import joined

        return joined(rank, size)

    def unsynchronizable(self, model: Any) -> str:
        """Return any layer that mixes the rows of a batch."""
        return str(self.backend.batch_coupling(model))

    def build_together(self, segment: Segment, group: ReplicaGroup) -> Program:
        """Build with whole parameters."""
        program: Program = self.backend.build_over_processes(segment, group, divided=False)
        return program

    def unshardable_reason(self, segment: Segment, *, offload: bool, whole: Collection[str] = ()) -> str:
        """Return a reason for offload, and for layers of Keras."""
        return "offload, which is available only for torch" if offload else undividable_reason(segment, whole)

    def sharded_blocks(self, model: Any) -> Sequence[str]:
        """Return nothing: the compiler gathers parameters as it needs them."""
        return ()

    def build_sharded(
        self, segment: Segment, group: ReplicaGroup, *, offload: bool, whole: Collection[str] = ()
    ) -> Program:
        """Build with sharded parameters."""
        program: Program = self.backend.build_over_processes(segment, group, divided=True, whole=whole)
        return program

    def sharded_bytes(self, program: Program) -> int | None:
        """Return the bytes of the shards in this process."""
        from anyaccel_jax.process_mesh import ProcessMeshProgram

        return program.sharded_bytes() if isinstance(program, ProcessMeshProgram) else None


def undividable_reason(segment: Segment, whole: Collection[str]) -> str:
    """Return why parameters cannot be sharded: layers of Keras have their variables on one device."""
    from anyaccel_jax.array_trees import is_keras

    divided = (op for op in segment.operations if op.label not in whole)
    keras = next((op.label for op in divided if is_keras(op.model)), None)
    return f"node {keras!r} has Keras layers, and their variables cannot be sharded" if keras is not None else ""
