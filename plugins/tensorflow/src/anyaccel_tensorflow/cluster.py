"""Cluster: this process as one of several of TensorFlow, which it becomes only before TensorFlow starts."""

from __future__ import annotations

import os

import tensorflow as tf
from tensorflow.python.eager import context  # what MultiWorkerMirroredStrategy uses; it has no public name

from anyaccel.errors import FrameworkError
from anyaccel.replicas import replica_timeout
from anyaccel_tensorflow import runtime_config
from anyaccel_tensorflow.error_translation import first_line
from anyaccel_tensorflow.rendezvous import addresses_of_all

_WAIT_SECONDS = 300.0
_JOB = "worker"
_LEADER = f"/job:{_JOB}/replica:0/task:0"
_PORT_AFTER = 2
"""The processes meet at this port after MASTER_PORT, where torch meets; JAX meets at the one between."""


def join_cluster(rank: int, size: int) -> None:
    """Join the other processes: each serves its part of collectives by gRPC, on a port of its own.

    Raises:
        FrameworkError: TensorFlow has started on its own, or they cannot be joined.
    """
    if runtime_config.is_started():
        raise FrameworkError(
            f"TensorFlow has started in replica {rank} of {size} before it was joined with the others",
            cause="its devices get other names with them, also those of tensors that are there",
            hint="write at the top of the script: from anyaccel.replicas import join; join('tensorflow')",
        )
    runtime_config.allow_memory_growth()
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) + _PORT_AFTER
    try:
        _serve(addresses_of_all(rank, size, host, port, replica_timeout() or _WAIT_SECONDS), rank)
    except (OSError, ValueError, tf.errors.OpError) as error:
        raise FrameworkError(
            f"replica {rank} of {size} could not join the others by TensorFlow: {first_line(error)}",
            cause=f"the address {host}:{port}, at which they meet",
            hint="start all processes with one launcher, or set MASTER_PORT to a port after which two more are free",
        ) from error


def _serve(addresses: list[str], rank: int) -> None:
    """Let TensorFlow start as one of these processes, and wait for the others."""
    started = context.context()
    started.configure_collective_ops(collective_leader=_LEADER)
    server = tf.train.ServerDef(
        cluster=tf.train.ClusterSpec({_JOB: addresses}).as_cluster_def(),
        job_name=_JOB,
        task_index=rank,
        protocol="grpc",
        default_session_config=started.config,
    )
    started.enable_collective_ops(server)
    started.ensure_initialized()
