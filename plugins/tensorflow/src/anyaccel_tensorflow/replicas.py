"""Replicas of TensorFlow in several processes; imports no TensorFlow, which is joined before it starts."""

from __future__ import annotations

from typing import Any

from anyaccel_distributed import ReplicaGroup, Replicate


class TensorFlowReplicate(Replicate):
    """Replicas that are joined by TensorFlow's collective operations."""

    def replica_group(self, rank: int, size: int) -> ReplicaGroup:
        """Join them."""
        from anyaccel_tensorflow.replica_group import joined

        return joined(rank, size)

    def unsynchronizable(self, model: Any) -> str:
        """Return any layer that mixes the rows of a batch."""
        return str(self.backend.batch_coupling(model))
