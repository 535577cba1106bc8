"""Cluster: this process as one of several of TensorFlow, which it becomes only before TensorFlow starts."""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import suppress
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context  # what MultiWorkerMirroredStrategy uses; it has no public name

from anyaccel.errors import FrameworkError
from anyaccel_distributed import replica_timeout
from anyaccel_tensorflow import runtime_config
from anyaccel_tensorflow.error_translation import first_line

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
            hint="write at the top of the script: from anyaccel_distributed import join; join('tensorflow')",
        )
    runtime_config.allow_memory_growth()
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) + _PORT_AFTER
    try:
        # Let TensorFlow start as one of these processes, and wait for the others.
        addresses = addresses_of_all(rank, size, host, port, replica_timeout() or _WAIT_SECONDS)
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
    except (OSError, ValueError, tf.errors.OpError) as error:
        raise FrameworkError(
            f"replica {rank} of {size} could not join the others by TensorFlow: {first_line(error)}",
            cause=f"the address {host}:{port}, at which they meet",
            hint="start all processes with one launcher, or set MASTER_PORT to a port after which two more are free",
        ) from error


_POLL_SECONDS = 0.05


def addresses_of_all(rank: int, size: int, host: str, port: int, seconds: float) -> list[str]:
    """HOST:PORT of every process, by rank, each with a port that is free on its machine.

    Args:
        rank, size: which process of how many.
        host, port: where the first one listens meanwhile.
        seconds: how long to wait for all.

    Raises:
        OSError: the port is taken, or some do not come in time.
    """
    deadline = time.monotonic() + seconds
    if rank == 0:
        return _collected(f"{host}:{_free_port()}", size, port, deadline)
    with _connected(host, port, deadline) as connection:
        own = f"{_bracketed(connection.getsockname()[0])}:{_free_port()}"
        connection.sendall(json.dumps([rank, own]).encode() + b"\n")
        return [str(address) for address in _line(connection)]


def _collected(own: str, size: int, port: int, deadline: float) -> list[str]:
    """What the first process hears, and then tells all."""
    found, connections = {0: own}, list[socket.socket]()
    with socket.create_server(("", port), backlog=size) as server:
        try:
            while len(found) < size:
                server.settimeout(max(_POLL_SECONDS, deadline - time.monotonic()))
                connection, _ = server.accept()
                connections.append(connection)
                connection.settimeout(max(_POLL_SECONDS, deadline - time.monotonic()))
                rank, address = _line(connection)
                if rank in found or not 0 < rank < size:
                    raise OSError(f"two processes say that they are replica {rank} of {size}")
                found[rank] = address
            every = [found[rank] for rank in range(size)]
            for connection in connections:
                connection.sendall(json.dumps(every).encode() + b"\n")
        except TimeoutError:
            missing = ", ".join(str(rank) for rank in range(size) if rank not in found)
            raise OSError(f"replica {missing} of {size} did not come") from None
        finally:
            for connection in connections:
                connection.close()
    return every


def _connected(host: str, port: int, deadline: float) -> socket.socket:
    """A connection to the first process, which may not have come yet."""
    while True:
        with suppress(ConnectionRefusedError):
            connection = socket.create_connection((host, port), max(_POLL_SECONDS, deadline - time.monotonic()))
            connection.settimeout(max(_POLL_SECONDS, deadline - time.monotonic()))
            return connection
        if time.monotonic() > deadline:
            raise OSError(f"nobody listens at {host}:{port}")
        time.sleep(_POLL_SECONDS)


def _line(connection: socket.socket) -> Any:
    """A line of JSON.

    Raises:
        OSError: the other one has ended.
    """
    with connection.makefile("rb") as lines:
        text = lines.readline()
    if not text.endswith(b"\n"):
        raise OSError("another process has ended while they met")
    return json.loads(text)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
