"""Replica group of TensorFlow: its own collectives between processes, over gRPC, or NCCL between GPUs."""

from __future__ import annotations

import json
import math
import os
import re
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import Any, ClassVar, cast

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context  # what MultiWorkerMirroredStrategy uses; it has no public name

from anyaccel.adapter.array_program import ArrayProgram
from anyaccel.backend import Program
from anyaccel.errors import FrameworkError
from anyaccel_distributed import ReplicaGroup, replica_timeout
from anyaccel_distributed.departure import Departure
from anyaccel_distributed.gradients import gradients_of, replace_gradients
from anyaccel_distributed.group import ProgramInputs
from anyaccel_distributed.messages import gather_plain
from anyaccel_tensorflow import runtime_config
from anyaccel_tensorflow.error_translation import first_line
from anyaccel_tensorflow.tf_functions import run_alone

_HOST = "/CPU:0"
_WAIT_SECONDS = 1800.0
_MEET_SECONDS = 30.0
_LEAVE_SECONDS = 3600.0
"""So long one that ends well waits for the others, which may still read what it serves."""


@cache
def joined(rank: int, size: int) -> TensorFlowReplicaGroup:
    """Return the group of this process."""
    return TensorFlowReplicaGroup(rank, size)


class TensorFlowReplicaGroup(ReplicaGroup):
    """The processes of one cluster of TensorFlow, which reduce and gather by its collective operations.

    Args:
        rank, size: Rank and size of the launcher.

    Raises:
        FrameworkError: see `join_cluster`.
    """

    weighs_losses: ClassVar[bool] = True
    gathers_tensors: ClassVar[bool] = True

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._seconds = replica_timeout() or _WAIT_SECONDS
        self._group_keys: dict[str, int] = {}
        self._instance_keys: dict[Any, int] = {}
        self._waiting = join_cluster(rank, size)
        self._met_for: str | None = None
        self._departure = Departure(self._leave)
        self._departure.watch()

    def average_gradients(self, programs: Sequence[Program], weight: float) -> None:
        """Average gradients with one all-reduce for each device and dtype."""
        gradients = gradients_of(programs)
        for device, positions in _positions(gradients):
            of_place = [gradients[i] for i in positions]
            with tf.device(device):
                rows = tf.constant(weight, tf.float64)
            flat = run_alone(_weighted, of_place, rows)
            summed = self.attempt("average the gradients", partial(self._add, flat, device))
            means = run_alone(_means, summed, of_place)
            for i, mean in zip(positions, means, strict=True):
                gradients[i] = mean
        replace_gradients(programs, gradients)

    def gather(self, value: Any) -> list[Any]:
        return gather_plain(value, self._gathered_on_host)

    def _gathered_on_host(self, array: np.ndarray) -> np.ndarray:
        with tf.device(_HOST):
            words = tf.constant(array.view(np.int32)[None])  # bytes cannot be gathered
        every = self.attempt("gather values", partial(self._gather, words, _HOST))
        return np.asarray(every.numpy()).view(array.dtype)

    def loss_weights(self, programs: Sequence[ProgramInputs], n_rows: float) -> list[dict[str, Any]]:
        """Return weights with one all-reduce for the losses of a device."""
        weights_here = [cast("ArrayProgram", program).summed_weights(inputs) for program, inputs in programs]
        keys = [(i, label) for i, weights in enumerate(weights_here) for label in weights]
        weights = [weights_here[i][label] for i, label in keys]
        result: list[dict[str, Any]] = [{} for _ in programs]
        for device, positions in _positions(weights):
            with tf.device(device):
                rows = tf.constant(n_rows, tf.float64)
            stacked = run_alone(_stacked, [weights[i] for i in positions], rows)
            summed = self.attempt("add up the weights of losses", partial(self._add, stacked, device))
            shares = run_alone(_shares, summed, rows, [weights[i] for i in positions])
            for i, weight in zip(positions, shares, strict=True):
                index, label = keys[i]
                result[index][label] = weight
        return result

    def gather_tensors(
        self, program: Program, shards: Sequence[Sequence[Any]], counts: Sequence[int]
    ) -> list[list[Any]]:
        """Gather with one all-gather for all tensors of a device and dtype."""
        tensors = [[tf.convert_to_tensor(value) for value in shard] for shard in shards]
        every: list[list[Any]] = [[None] * len(tensors[0]) for _ in range(sum(counts))]
        for device, positions in _positions(tensors[0]):
            rows = run_alone(_rows, [[shard[i] for i in positions] for shard in tensors], n_rows=max(counts))
            gathered = self.attempt("gather the gradients", partial(self._gather, rows, device))
            pieces = run_alone(_pieces, gathered, [tensors[0][i] for i in positions], counts=tuple(counts))
            for shard, parts in zip(every, pieces, strict=True):
                for i, piece in zip(positions, parts, strict=True):
                    shard[i] = piece
        return every

    def sum_of_all(self, tensor: Any, call: Hashable, device: str) -> Any:
        """Return the sum of the tensors that all give, in a custom step, traced or not.

        Args:
            tensor: Tensor on `device`.
            call: Number of the call in the step; calls that run at the same time must differ.
            device: TensorFlow's name of it.
        """
        return _summed(tensor, **self._keys(("step", call), tensor, device))

    def abandon(self, programs: Sequence[Program]) -> None:
        """This process ends without waiting for the others."""
        self._departure.fail()

    @contextmanager
    def meeting(self, what: str) -> Iterator[None]:
        """Within the block, wait for the others for half a minute at most.

        Raises:
            FrameworkError: some do not come.
        """
        before, self._seconds = self._seconds, min(_MEET_SECONDS, self._seconds)
        self._met_for = what
        try:
            yield
        except FrameworkError:
            self._departure.fail()
            raise
        finally:
            self._seconds, self._met_for = before, None

    def _leave(self, failed: bool) -> None:
        """Wait for the others, which read values that this process serves, unless it has failed."""
        if failed:
            return
        self._seconds = _LEAVE_SECONDS
        with suppress(FrameworkError):  # another has failed, or has left
            self._gathered_on_host(np.zeros(1, np.int32))

    def _add(self, tensor: Any, device: str) -> Any:
        return run_alone(_summed, tensor, **self._keys("add", tensor, device))

    def _gather(self, tensor: Any, device: str) -> Any:
        """Return the tensors of all processes, in sequence on the first axis."""
        return run_alone(_gathered, tensor, **self._keys("gather", tensor, device))

    def _keys(self, kind: Hashable, tensor: Any, device: str) -> dict[str, Any]:
        """Return the keys of a collective, equal in all processes: their first collectives come in one order."""
        instance = (kind, device, tensor.dtype, tuple(tensor.shape))
        return {
            "group_size": self.size,
            "group_key": self._group_keys.setdefault(device, len(self._group_keys) + 1),
            "instance_key": self._instance_keys.setdefault(instance, len(self._instance_keys) + 1),
            "timeout_seconds": self._seconds,
        }

    def attempt(self, what: str, call: Callable[[], Any]) -> Any:
        """Return the result of a call.

        Raises:
            FrameworkError: another replica has ended, or does not respond.
        """
        try:
            return call()
        except tf.errors.OpError as error:
            named = re.search(r"from remote target /job:\w+/replica:0/task:(\d+)", str(error))
            ranks = [rank for rank in range(self.size) if rank != self.rank]
            if "timed out" in str(error):
                ranks = self._waiting.absent(self._met_for or what) or ranks
            elif named:
                ranks = [int(named[1])]
            *first, last = map(str, ranks)
            others = f"replicas {', '.join(first)} and {last}" if first else f"replica {last}"
            if self._met_for and isinstance(error, tf.errors.DeadlineExceededError):
                raise FrameworkError(
                    f"replica {self.rank} of {self.size} tried to {self._met_for}, but {others} did not within "
                    f"{self._seconds:g} seconds",
                    hint=f"{self._met_for} in all processes, not only inside `if loop.is_main_process:`",
                ) from error
            raise FrameworkError(
                f"replica {self.rank} of {self.size} could not {what}: {first_line(error)}, about {others}",
                cause="errors of the other replicas, above or in their logs",
                hint="another replica has ended or does not answer; start all replicas again with their launcher",
            ) from error


def _positions(tensors: Iterable[Any]) -> list[tuple[str, list[int]]]:
    """Return the positions of tensors by device and dtype, with the device."""
    positions: dict[tuple[str, Any], list[int]] = {}
    for i, tensor in enumerate(tensors):
        positions.setdefault((tensor.device, tensor.dtype), []).append(i)
    return [(device, found) for (device, _), found in positions.items()]


def _summed(tensor: Any, **keys: Any) -> Any:
    settings = {"merge_op": "Add", "final_op": "Id", "ordering_token": [], "communication_hint": "auto"}
    return tf.raw_ops.CollectiveReduceV2(input=tensor, **settings, **keys)


def _gathered(tensor: Any, **keys: Any) -> Any:
    return tf.raw_ops.CollectiveGatherV2(input=tensor, ordering_token=[], communication_hint="auto", **keys)


def _weighted(gradients: Sequence[Any], weight: Any) -> Any:
    """Return gradients times a weight, and the weight, in one tensor of at least float32."""
    dtype = tf.float64 if gradients[0].dtype == tf.float64 else tf.float32
    factor = tf.cast(weight, dtype)
    return tf.concat(
        [*[tf.reshape(tf.cast(gradient, dtype), [-1]) * factor for gradient in gradients], factor[None]], 0
    )


def _means(summed: Any, like: Sequence[Any]) -> list[Any]:
    """Return the summed output of `_weighted` as means in the shapes and dtype of the gradients."""
    parts = tf.split(summed[:-1] / summed[-1], [math.prod(tensor.shape) for tensor in like])
    return [tf.cast(tf.reshape(part, tensor.shape), tensor.dtype) for part, tensor in zip(parts, like, strict=True)]


def _stacked(weights: Sequence[Any], n_rows: Any) -> Any:
    """Return scalars, and the number of rows, in one tensor of float64."""
    return tf.stack([*[tf.cast(weight, tf.float64) for weight in weights], n_rows])


def _shares(summed: Any, n_rows: Any, like: Sequence[Any]) -> list[Any]:
    """Return the summed output of `_stacked` as weights (1 for 0) times the fraction of all rows that `n_rows` are."""
    weights = tf.where(summed[:-1] == 0, tf.ones_like(summed[:-1]), summed[:-1]) * (n_rows / summed[-1])
    return [tf.cast(weight, tensor.dtype) for weight, tensor in zip(tf.unstack(weights), like, strict=True)]


def _rows(shards: Sequence[Sequence[Any]], n_rows: int) -> Any:
    """Return the tensors of each shard in one row of a dtype that can be gathered; zeros in rows beyond them."""
    dtype = tf.float32 if shards[0][0].dtype == tf.bfloat16 else shards[0][0].dtype
    rows = tf.stack([tf.concat([tf.reshape(tf.cast(tensor, dtype), [-1]) for tensor in shard], 0) for shard in shards])
    return tf.pad(rows, [[0, n_rows - len(shards)], [0, 0]])[None]


def _pieces(gathered: Any, like: Sequence[Any], counts: tuple[int, ...]) -> list[list[Any]]:
    """Return the tensors of all shards, by rank and in their order, given [processes, rows, elements]."""
    rows = [gathered[rank, i] for rank, count in enumerate(counts) for i in range(count)]
    sizes = [math.prod(tensor.shape) for tensor in like]
    parts = [zip(tf.split(row, sizes), like, strict=True) for row in rows]
    return [[tf.cast(tf.reshape(part, tensor.shape), tensor.dtype) for part, tensor in shard] for shard in parts]


# -- -------------------------------------------------------------------------------------------------------------------
# Cluster: this process as one of several of TensorFlow, which it becomes only before TensorFlow starts.


_JOIN_SECONDS = 300.0
_JOB = "worker"
_LEADER = f"/job:{_JOB}/replica:0/task:0"
_PORT_AFTER = 2
"""The processes meet at this port after MASTER_PORT, where torch meets; JAX meets at the one between."""


def join_cluster(rank: int, size: int) -> Waiting:
    """Join the other processes: each serves its part of collectives by gRPC, on its own port.

    Returns:
        Who is waiting, for errors.

    Raises:
        FrameworkError: TensorFlow has started on its own, or they cannot be joined.
    """
    if runtime_config.is_started():
        raise FrameworkError(
            f"TensorFlow was started in replica {rank} of {size} before it joined the others",
            cause="joining renames its devices, including those of existing tensors",
            hint="write at the top of the script: from anyaccel_distributed import join; join('tensorflow')",
        )
    runtime_config.allow_memory_growth()
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) + _PORT_AFTER
    try:
        # Let TensorFlow start as one of these processes, and wait for the others.
        addresses = addresses_of_all(rank, size, host, port, replica_timeout() or _JOIN_SECONDS)
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
        return Waiting(rank, size, host, port)
    except (OSError, ValueError, tf.errors.OpError) as error:
        raise FrameworkError(
            f"replica {rank} of {size} could not join the others through TensorFlow: {first_line(error)}",
            cause=f"the meeting address {host}:{port}",
            hint="start all processes with one launcher, or set MASTER_PORT to a port followed by two more free ports",
        ) from error


_LATE_SECONDS = 5.0
"""Those that wait for one collective stop waiting within this time."""


class Waiting:
    """The processes that have waited for a collective in vain, whose timeout does not say who is missing.

    The first process serves this, on the port where all have met.
    """

    def __init__(self, rank: int, size: int, host: str, port: int) -> None:
        self._rank, self._size, self._address = rank, size, (host, port)
        self._collectives: dict[int, str] = {}
        self._changed = threading.Condition()
        if rank == 0:
            server = _WaitingServer(("", port), partial(_WaitingRequest, self))
            threading.Thread(target=server.serve_forever, daemon=True).start()

    def absent(self, collective: str) -> list[int]:
        """Return the ranks that do not wait for a collective, as this process has done in vain."""
        if self._rank == 0:
            return self.add(self._rank, collective)
        try:
            with socket.create_connection(self._address, _LATE_SECONDS) as connection:
                connection.settimeout(2 * _LATE_SECONDS)
                connection.sendall(json.dumps([self._rank, collective]).encode() + b"\n")
                return [int(rank) for rank in _line(connection)]
        except OSError:
            return [0]  # does not even serve

    def add(self, rank: int, collective: str) -> list[int]:
        """Note what a rank has waited for, and return those that do not say the same in time."""
        with self._changed:
            self._collectives[rank] = collective
            self._changed.notify_all()
            self._changed.wait_for(lambda: len(self._collectives) == self._size, _LATE_SECONDS)
            return [other for other in range(self._size) if self._collectives.get(other) != collective]


class _WaitingServer(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


class _WaitingRequest(socketserver.StreamRequestHandler):
    def __init__(self, waiting: Waiting, *connection: Any) -> None:
        self._waiting = waiting
        super().__init__(*connection)

    def handle(self) -> None:
        absent = self._waiting.add(*json.loads(self.rfile.readline()))
        self.wfile.write(json.dumps(absent).encode() + b"\n")


_POLL_SECONDS = 0.05


def addresses_of_all(rank: int, size: int, host: str, port: int, seconds: float) -> list[str]:
    """Return HOST:PORT of every process, by rank, each with a port that is free on its machine.

    Args:
        rank, size: Rank of this process and number of processes.
        host, port: Listening address of the first process during this call.
        seconds: Time limit for all.

    Raises:
        OSError: the port is taken, or some do not arrive in time.
    """
    deadline = time.monotonic() + seconds
    if rank > 0:
        with _connected(host, port, deadline) as connection:
            address_here = f"{_bracketed(connection.getsockname()[0])}:{_free_port()}"
            connection.sendall(json.dumps([rank, address_here]).encode() + b"\n")
            return [str(address) for address in _line(connection)]
    found, connections = {0: f"{host}:{_free_port()}"}, list[socket.socket]()
    with socket.create_server(("", port), backlog=size) as server:
        try:
            while len(found) < size:
                server.settimeout(max(_POLL_SECONDS, deadline - time.monotonic()))
                connection, _ = server.accept()
                connections.append(connection)
                connection.settimeout(max(_POLL_SECONDS, deadline - time.monotonic()))
                other, address = _line(connection)
                if other in found or not 0 < other < size:
                    raise OSError(f"two processes claim to be replica {other} of {size}")
                found[other] = address
            every = [found[other] for other in range(size)]
            for connection in connections:
                connection.sendall(json.dumps(every).encode() + b"\n")
        except TimeoutError:
            missing = ", ".join(str(other) for other in range(size) if other not in found)
            raise OSError(f"replica {missing} of {size} did not arrive") from None
        finally:
            for connection in connections:
                connection.close()
    return every


def _connected(host: str, port: int, deadline: float) -> socket.socket:
    """Return a connection to the first process, which may not have come yet."""
    while True:
        with suppress(ConnectionRefusedError):
            connection = socket.create_connection((host, port), max(_POLL_SECONDS, deadline - time.monotonic()))
            connection.settimeout(max(_POLL_SECONDS, deadline - time.monotonic()))
            return connection
        if time.monotonic() > deadline:
            raise OSError(f"no process listens at {host}:{port}")
        time.sleep(_POLL_SECONDS)


def _line(connection: socket.socket) -> Any:
    """Return a line of JSON.

    Raises:
        OSError: the other one has ended.
    """
    with connection.makefile("rb") as lines:
        text = lines.readline()
    if not text.endswith(b"\n"):
        raise OSError("another process ended during the meeting")
    return json.loads(text)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
