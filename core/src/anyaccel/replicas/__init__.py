"""Replicas: the processes that a launcher started, and what a backend needs to train one model in all of them.

Stands on the contract of plugins alone. What the phases do with it is in `phases/distributed/`.
"""

from anyaccel.replicas.group import ReplicaGroup, Replicate
from anyaccel.replicas.joining import join
from anyaccel.replicas.launcher import Launched, is_main_process, launched, replica_timeout
from anyaccel.replicas.sharding import ShardParameters
from anyaccel.replicas.spawn import spawn

__all__ = [
    "Launched",
    "ReplicaGroup",
    "Replicate",
    "ShardParameters",
    "is_main_process",
    "join",
    "launched",
    "replica_timeout",
    "spawn",
]
