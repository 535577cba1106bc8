"""Sharding of torch: replicas in several processes, which may keep a part of the parameters each."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, ClassVar

from anyaccel.program import Program
from anyaccel.segment import Segment
from anyaccel_distributed import ReplicaGroup, ShardParameters


class TorchSharding(ShardParameters):
    """Replicas that are joined by torch.distributed, and whose parameters FSDP2 divides."""

    shards_nodes: ClassVar[bool] = True
    _group: ReplicaGroup | None = None

    def replica_group(self, rank: int, size: int) -> ReplicaGroup:
        """Return a group by torch.distributed."""
        from anyaccel_torch.replica_group import TorchReplicaGroup

        if self._group is None:
            self._group = TorchReplicaGroup(rank, size)
        return self._group

    def unshareable_reason(self, model: Any) -> str:
        """Return a reason for parameters that are DTensors, which are sharded over other processes."""
        from anyaccel_torch.module_traits import has_dtensors

        return "has DTensors as parameters, which are already sharded over processes" if has_dtensors(model) else ""

    def unsynchronizable(self, model: Any) -> str:
        """Layers of Keras, or with their own forward, cannot."""
        from anyaccel_torch.module_traits import unsynchronizable

        return unsynchronizable(model)

    def unshardable_reason(self, segment: Segment, *, offload: bool, whole: Collection[str] = ()) -> str:
        """Return the missing feature of this torch's FSDP2, or the part of a model that prevents sharding."""
        from anyaccel_torch.sharded_module import lacking_reason
        from anyaccel_torch.sharded_program import unshardable_reason

        if reason := lacking_reason():
            return reason
        if offload and any(operation.device.kind == "cpu" for operation in segment.operations):
            return "the nodes to offload are on the CPU and already use host memory"
        return unshardable_reason(segment, whole)

    def sharded_blocks(self, model: Any) -> Sequence[str]:
        """Return the outermost children of ModuleLists and Sequentials."""
        from anyaccel_torch.sharded_module import blocks_of

        return tuple(blocks_of(model))

    def build_sharded(
        self, segment: Segment, group: ReplicaGroup, *, offload: bool, whole: Collection[str] = ()
    ) -> Program:
        """Build the program with torch's FSDP2."""
        from anyaccel_torch.replica_group import device_mesh
        from anyaccel_torch.sharded_program import ShardedProgram

        device = next(operation.device for operation in segment.operations if operation.model is not None)
        mesh = device_mesh(self.backend.native_device(device).type, group.size)
        return ShardedProgram(segment, self.backend.native_device, mesh, offload=offload, whole=whole)

    def sharded_bytes(self, program: Program) -> int | None:
        """Return the bytes of the shards in this process."""
        from anyaccel_torch.sharded_program import ShardedProgram

        return program.sharded_bytes() if isinstance(program, ShardedProgram) else None
