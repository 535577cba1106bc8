"""Training by several processes and on several devices: launchers, splitting of batches, exchange, sharded parameters.

`anyaccel run`, and the settings `replicas`, `per_replica`, `deterministic`, `sharding` and `sync_batchnorm` of a phase.
Stands on anyaccel's phases and on the contract of plugins, whose backends have these capabilities:

- `Replicate`, `ReplicaGroup`: the exchange between several processes that train one model.
- `DeviceReplicas`: one process that trains a model on several devices.
- `ShardParameters`: parameters that are sharded over them.
- `OwnLoops`: training loops of the user's own, `anyaccel.Loop`; see `own_loop`.
"""

from anyaccel.launched import Launched, is_main_process
from anyaccel_distributed.device_replicas import DeviceReplicas
from anyaccel_distributed.group import ReplicaGroup, Replicate
from anyaccel_distributed.launch_options import replica_timeout
from anyaccel_distributed.meeting_point import launched
from anyaccel_distributed.own_loop.capability import OwnLoops
from anyaccel_distributed.phase_groups import join
from anyaccel_distributed.sharding import ShardParameters
from anyaccel_distributed.spawn import spawn

__all__ = [
    "DeviceReplicas",
    "Launched",
    "OwnLoops",
    "ReplicaGroup",
    "Replicate",
    "ShardParameters",
    "is_main_process",
    "join",
    "launched",
    "replica_timeout",
    "spawn",
]
