"""Replica group of JAX: gradients of several processes are added by one compiled sum over a mesh of their devices."""

from __future__ import annotations

import ctypes
import inspect
import math
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from anyaccel.adapter.array_program import ArrayProgram
from anyaccel.backend import Program
from anyaccel.errors import FrameworkError
from anyaccel_distributed import ReplicaGroup, launched, replica_timeout
from anyaccel_distributed.departure import Departure
from anyaccel_distributed.gradients import gradients_of, replace_gradients
from anyaccel_distributed.group import ProgramInputs
from anyaccel_distributed.messages import from_bytes, gather_plain, to_bytes
from anyaccel_jax import runtime_config
from anyaccel_jax.error_translation import first_line
from anyaccel_jax.mesh_program import MeshProgram
from anyaccel_jax.transfers import single_device

if TYPE_CHECKING:
    from anyaccel_jax.process_mesh import ProcessMeshProgram

_AXIS = "replicas"


@cache
def joined(rank: int, size: int) -> JaxReplicaGroup:
    """Return the group of this process."""
    return JaxReplicaGroup(rank, size)


class JaxReplicaGroup(ReplicaGroup):
    """The processes that `jax.distributed` has joined, with a mesh of one device of each.

    Programs over all of them exchange data themselves (`process_mesh`). This class sums and gathers everything else:
    gradients in one order (`deterministic=True`), phases of several frameworks or segments, and steps whose rows are
    read in parts by the processes. Comparisons always use them.

    Args:
        rank, size: Rank and size of the launcher.

    Raises:
        FrameworkError: see `join_cluster`.
    """

    weighs_losses: ClassVar[bool] = True
    gathers_tensors: ClassVar[bool] = True

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._departure = join_cluster(rank, size)
        self._collectives: dict[Any, _Collectives] = {}
        self._messages: _Messages | None = None

    def average_gradients(self, programs: Sequence[Program], weight: float) -> None:
        """Average gradients with one all-reduce for each device and dtype."""
        programs = [program for program in programs if not isinstance(program, MeshProgram)]  # which have those of all
        gradients = gradients_of(programs)
        for positions in _positions(gradients):
            of_place = [gradients[i] for i in positions]
            flat = _weighted(of_place, weight)
            summed = self._try("average the gradients", lambda flat=flat: self._over(flat).add(flat))  # type: ignore[misc]
            for i, mean in zip(positions, _means(summed, of_place), strict=True):
                gradients[i] = mean
        replace_gradients(programs, gradients)

    def gather(self, value: Any) -> list[Any]:
        if self._messages is not None:
            message = to_bytes(value)
            is_short = len(message) <= _SHORT_BYTES
            every = self._messages.exchange(message if is_short else _LONG)
            if _LONG not in every:
                return [from_bytes(text) for text in every]
        return gather_plain(value, lambda array: self._gathered(on_host(array)))

    def separate_messages(self) -> None:
        """Exchange plain values through JAX's coordination service from now on: a process that gathers alone cannot
        meet a step's collectives, and is named.
        """
        if self._messages is None:
            self._messages = _Messages(self.rank, self.size)

    @contextmanager
    def meeting(self, what: str) -> Iterator[None]:
        """Within the block, wait for the others for half a minute at most.

        Raises:
            FrameworkError: some do not come.
        """
        messages = self._messages
        assert messages is not None
        messages.meeting = what
        try:
            yield
        except FrameworkError:
            self._departure.fail()
            raise
        finally:
            messages.meeting = ""

    @property
    def n_messages(self) -> int:
        """Number of values that were gathered by messages, the same in all processes."""
        assert self._messages is not None
        return self._messages.count

    def post(self, place: str, text: str) -> dict[int, str]:
        """Publish a text, once for each place, and return those that other processes have published there, by rank."""
        assert self._messages is not None
        return self._messages.post(place, text)

    def _gathered(self, array: Any) -> np.ndarray:
        return np.asarray(self._try("gather values", lambda: self._over(array).gather(array)))

    def loss_weights(self, programs: Sequence[ProgramInputs], n_rows: float) -> list[dict[str, Any]]:
        """Return weights with one all-reduce for the losses of a device."""
        weights_here = [cast("ArrayProgram", program).summed_weights(inputs) for program, inputs in programs]
        by_device: dict[Any, list[tuple[int, str]]] = {}
        for i, weights in enumerate(weights_here):
            for label, weight in weights.items():
                by_device.setdefault(single_device(weight), []).append((i, label))
        result: list[dict[str, Any]] = [{} for _ in programs]
        for keys in by_device.values():
            stacked = _stacked([weights_here[i][label] for i, label in keys], n_rows)
            summed = self._try(
                "add up the weights of losses",
                lambda stacked=stacked: self._over(stacked).add(stacked),  # type: ignore[misc]
            )
            for (i, label), weight in zip(keys, _shares(summed, n_rows), strict=True):
                result[i][label] = weight
        return result

    def gather_tensors(
        self, program: Program, shards: Sequence[Sequence[Any]], counts: Sequence[int]
    ) -> list[list[Any]]:
        """Gather with one all-gather for all tensors of a device and dtype."""
        tensors = [[jnp.asarray(value) for value in shard] for shard in shards]
        every: list[list[Any]] = [[None] * len(tensors[0]) for _ in range(sum(counts))]
        for positions in _positions(tensors[0]):
            rows = _rows([[shard[i] for i in positions] for shard in tensors], max(counts))
            gathered = self._try("gather the gradients", lambda rows=rows: self._over(rows).gather(rows))  # type: ignore[misc]
            pieces = _pieces(gathered, tuple(counts), tuple(tensors[0][i].shape for i in positions))
            for shard, parts in zip(every, pieces, strict=True):
                for i, piece in zip(positions, parts, strict=True):
                    shard[i] = piece
        return every

    def begin_parts(self, program: Program, n_replicas: int) -> None:
        cast("ProcessMeshProgram", program).begin_parts(n_replicas)

    def abandon(self, programs: Sequence[Program]) -> None:
        """This process ends without waiting for the others."""
        self._departure.fail()
        for program in programs:
            cast("ProcessMeshProgram", program).abandon()

    def _over(self, array: Any) -> _Collectives:
        """Return collectives over the devices of all processes that correspond to that of an array."""
        device = single_device(array)
        if device not in self._collectives:
            self._collectives[device] = _Collectives(device, self.size)
        return self._collectives[device]

    def _try(self, what: str, call: Callable[[], Any]) -> Any:
        def compute() -> Any:
            result = call()
            if single_device(result).platform == "cpu":  # a collective that has begun fails when it is waited for
                result.block_until_ready()
            return result

        return self.attempt(what, compute)

    def attempt(self, what: str, call: Callable[[], Any]) -> Any:
        """Return the result of a call that other replicas join.

        Raises:
            FrameworkError: another has ended.
        """
        try:
            return call()
        except (RuntimeError, ValueError) as error:
            silent = [1 - self.rank] if self.size == 2 else self._messages.silent() if self._messages else []
            raise FrameworkError(
                f"replica {self.rank} of {self.size} could not {what}: {first_line(error)}"
                + (f", about {_named(silent)}" if silent else ""),
                cause="errors of the other replicas, above or in their logs",
                hint="another replica has ended or does not answer; start all replicas again with their launcher",
            ) from error


_SHORT_BYTES = 1 << 16
"""Longer messages are gathered by a collective, after all have met."""
_LONG = b""
_PLACE = "anyaccel/messages"
_ENDED = "anyaccel/ended"
_MEET_SECONDS = 30.0
_GATHER_SECONDS = 1800.0
_POLL_SECONDS = 1.0
_REPORT_SECONDS = 5.0
"""In which all that have lost another report it."""
_KEPT = 32


class _Messages:
    """Messages in the key-value store of JAX's coordination service, each under its number.

    Args:
        rank, size: Rank of this process and number of processes.

    Attributes:
        count: Number of exchanges.
        meeting: What all must call within half a minute; "" for any other exchange.
    """

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size, self.count, self.meeting = rank, size, 0, ""
        asked = replica_timeout()
        self._seconds, self._meet_seconds = asked or _GATHER_SECONDS, min(_MEET_SECONDS, asked or _MEET_SECONDS)

    def exchange(self, message: bytes) -> list[bytes]:
        """Return the messages of all processes, by rank.

        Raises:
            FrameworkError: another has ended, or does not come in time.
        """
        seconds = self._meet_seconds if self.meeting else self._seconds
        deadline, client = time.monotonic() + seconds, _client()
        block, number = divmod(self.count, _KEPT)
        self.count += 1
        every, missing = [], list[int]()
        try:
            client.key_value_set_bytes(f"{_PLACE}/{self._rank}/{block}/{number}", message)
            for rank in range(self._size):
                found = message if rank == self._rank else self._awaited(f"{_PLACE}/{rank}/{block}/{number}", deadline)
                if found is None:
                    missing.append(rank)
                else:
                    every.append(found)
            if number == 0 and block > 0 and not missing:  # all have read what came before
                client.key_value_delete(f"{_PLACE}/{self._rank}/{block - 1}/")
        except RuntimeError as error:
            raise self._lost(first_line(error)) from error
        if missing:
            raise self._left(_named(missing), seconds)
        return every

    def _awaited(self, key: str, deadline: float) -> bytes | None:
        """Return a message; None if it does not come in time, or its process has ended."""
        client, has_ended = _client(), False
        while True:
            left = 0.0 if has_ended else deadline - time.monotonic()
            try:
                found: bytes = client.blocking_key_value_get_bytes(key, max(1, int(1e3 * min(_POLL_SECONDS, left))))
                return found
            except RuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise
            if left <= 0:
                return None
            has_ended = any(name == f"{_ENDED}/{key.split('/')[2]}" for name, _ in client.key_value_dir_get(_ENDED))

    def _left(self, missing: str, seconds: float) -> FrameworkError:
        this_replica = f"replica {self._rank} of {self._size}"
        if self.meeting:
            return FrameworkError(
                f"{this_replica} tried to {self.meeting}, but {missing} did not within {seconds:g} seconds",
                hint=f"{self.meeting} in all processes, not only inside `if loop.is_main_process:`",
            )
        return self._lost(f"{missing} ended, or did not answer within {seconds:g} seconds")

    def silent(self) -> list[int]:
        """Return the ranks that do not report in time that a collective has failed, as this process does."""
        client, deadline, place = _client(), time.monotonic() + _REPORT_SECONDS, f"{_PLACE}/failed/"
        try:
            client.key_value_set(f"{place}{self._rank}", "", allow_overwrite=True)
            while True:
                reports = client.key_value_dir_get(place)
                silent = set(range(self._size)) - {int(name.rpartition("/")[2]) for name, _ in reports}
                if not silent or time.monotonic() > deadline:
                    return sorted(silent)
                time.sleep(_POLL_SECONDS / 10)
        except RuntimeError:  # the first process has ended, which keeps the messages
            return [0]

    def _lost(self, problem: str) -> FrameworkError:
        return FrameworkError(
            f"replica {self._rank} of {self._size} could not gather values: {problem}",
            cause="errors of the other replicas, above or in their logs",
            hint="another replica has ended or does not answer; start all replicas again with their launcher",
        )

    def post(self, place: str, text: str) -> dict[int, str]:
        """See `JaxReplicaGroup.post`."""
        client, found = _client(), {}
        client.key_value_set(f"{_PLACE}/at/{place}/{self._rank}", text, allow_overwrite=True)
        for name, other in client.key_value_dir_get(f"{_PLACE}/at/{place}/"):
            found[int(name.rpartition("/")[2])] = other
        return found


def _named(ranks: Sequence[int]) -> str:
    return f"replica{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _client() -> Any:
    from jax._src import distributed  # its store of keys has no public name

    return distributed.global_state.client


def corresponding_devices(device: Any, size: int) -> list[Any]:
    """Return the device of each process, by rank, with the number that a device has among those of this process."""
    by_process: dict[int, list[Any]] = {}
    for other in jax.devices(device.platform):
        by_process.setdefault(other.process_index, []).append(other)
    number = by_process[device.process_index].index(device)
    return [by_process[process][number] for process in range(size)]


def on_host(array: np.ndarray) -> Any:
    """Return an array for the collectives of CPUs, which do not need a GPU, if this JAX has CPUs."""
    try:
        return jax.device_put(array, jax.local_devices(backend="cpu")[0])
    except RuntimeError:  # JAX_PLATFORMS=cuda
        return jnp.asarray(array)


class _Collectives:
    """Sums and gatherings over one device of each process.

    Args:
        device: Device of this process; see `corresponding_devices`.
        size: Number of processes.
    """

    def __init__(self, device: Any, size: int) -> None:
        mesh = Mesh(np.array(corresponding_devices(device, size)), (_AXIS,))
        over: Any = PartitionSpec
        self._size, self._rows = size, NamedSharding(mesh, over(_AXIS))
        everywhere = NamedSharding(mesh, over())
        self._add = jax.jit(lambda rows: jnp.sum(rows, axis=0), out_shardings=everywhere)
        self._gather = jax.jit(lambda rows: rows, out_shardings=everywhere)

    def add(self, array: Any) -> Any:
        """Return the sum of the arrays of all processes, on the device of this one."""
        return self._add(self._as_row(array)).addressable_data(0)

    def gather(self, array: Any) -> Any:
        """Return the arrays of all processes, [processes, ...], on the device of this one."""
        return self._gather(self._as_row(array)).addressable_data(0)

    def _as_row(self, array: Any) -> Any:
        return jax.make_array_from_single_device_arrays((self._size, *array.shape), self._rows, [array[None]])


def _positions(arrays: Iterable[Any]) -> list[list[int]]:
    """Return the positions of arrays by device and dtype."""
    positions: dict[Any, list[int]] = {}
    for i, array in enumerate(arrays):
        positions.setdefault((single_device(array), array.dtype), []).append(i)
    return list(positions.values())


@jax.jit
def _weighted(gradients: Sequence[Any], weight: Any) -> Any:
    """Return gradients times a weight, and the weight, in one array of at least float32."""
    dtype = jnp.promote_types(gradients[0].dtype, jnp.float32)
    parts = [jnp.ravel(gradient).astype(dtype) * weight for gradient in gradients]
    return jnp.concatenate([*parts, jnp.asarray(weight, dtype)[None]])


@jax.jit
def _means(summed: Any, like: Sequence[Any]) -> list[Any]:
    """Return the summed output of `_weighted` as means in the shapes and dtype of the gradients."""
    flat, ends = summed[:-1] / summed[-1], np.cumsum([array.size for array in like])[:-1]
    return [
        part.reshape(array.shape).astype(array.dtype) for part, array in zip(jnp.split(flat, ends), like, strict=True)
    ]


@jax.jit
def _stacked(weights: Sequence[Any], n_rows: Any) -> Any:
    """Return weights of losses, and the number of rows, in one array of at least float32."""
    dtype = jnp.result_type(jnp.float32, *(weight.dtype for weight in weights))
    return jnp.stack([*(weight.astype(dtype) for weight in weights), jnp.asarray(n_rows, dtype)])


@jax.jit
def _shares(summed: Any, n_rows: Any) -> list[Any]:
    """Return the summed output of `_stacked` times the fraction of these rows; 1 instead of 0 if nothing counts."""
    return list(jnp.where(summed[:-1] == 0, 1, summed[:-1]) * (n_rows / summed[-1]))


@partial(jax.jit, static_argnums=1)
def _rows(shards: Sequence[Sequence[Any]], n_rows: int) -> Any:
    """Return the arrays of each shard in one row; zeros in rows beyond them."""
    rows = jnp.stack([jnp.concatenate([jnp.ravel(array) for array in shard]) for shard in shards])
    return jnp.pad(rows, ((0, n_rows - len(shards)), (0, 0)))


@partial(jax.jit, static_argnums=(1, 2))
def _pieces(gathered: Any, counts: tuple[int, ...], shapes: tuple[tuple[int, ...], ...]) -> list[list[Any]]:
    """Return the arrays of all shards, by rank and in their order, given [processes, rows, elements]."""
    ends = np.cumsum([math.prod(shape) for shape in shapes])[:-1]
    rows = [gathered[rank, i] for rank, count in enumerate(counts) for i in range(count)]
    return [[part.reshape(shape) for part, shape in zip(jnp.split(row, ends), shapes, strict=True)] for row in rows]


# -- Cluster: this process as one of several that JAX joins, which it does only before it starts -----------------------


COORDINATOR = "JAX_COORDINATOR_ADDRESS"
_WAIT_SECONDS = 300
_LIMITS_COLLECTIVES = (0, 10)
"""From this version on XLA is known to have the flag; an unknown one would abort the process."""
_LEAVE_SECONDS = 3600
"""So long one that ends well waits for the others, of which the first may have more to do."""


def join_cluster(rank: int, size: int) -> Departure:
    """Join the other processes, unless the script has: `jax.distributed.initialize()`.

    They meet where JAX_COORDINATOR_ADDRESS says, otherwise at the port after MASTER_PORT, where torch meets.

    Returns:
        how this process leaves them.

    Raises:
        FrameworkError: JAX has started on its own, they cannot be joined, the script has joined others, or there are
            more processes than GPUs.
    """
    if jax.distributed.is_initialized():
        if (jax.process_index(), jax.process_count()) != (rank, size):
            raise FrameworkError(
                f"JAX has joined {jax.process_count()} processes as number {jax.process_index()}, but the "
                f"launcher's environment has {size} and {rank}",
                hint="leave out jax.distributed.initialize, or pass it the launcher's RANK and WORLD_SIZE",
            )
        return Departure()
    if runtime_config.is_started():
        raise FrameworkError(
            f"JAX was started in replica {rank} of {size} before it joined the others",
            cause="devices of JAX are fixed when it starts, for example with the first array or model",
            hint="write at the top of the script: from anyaccel_distributed import join; join('jax')",
        )
    asked = replica_timeout()
    seconds = asked or _WAIT_SECONDS
    settings: Any = jax.config
    settings.update("jax_cpu_collectives_implementation", "gloo")
    if hasattr(settings, "jax_enable_preemption_service"):  # it takes SIGTERM, by which launchers end a process
        settings.update("jax_enable_preemption_service", False)
    more: dict[str, Any] = {"shutdown_timeout_seconds": _LEAVE_SECONDS}
    more |= {} if asked is None else {"heartbeat_timeout_seconds": max(1, math.ceil(asked))}
    more |= own_gpu(rank, size)
    if asked is not None and jax.__version_info__ >= _LIMITS_COLLECTIVES:  # read when JAX starts
        limit = f"--xla_cpu_collective_timeout_seconds={max(1, math.ceil(asked))}"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {limit}"
    parameters = inspect.signature(jax.distributed.initialize).parameters
    accepted: dict[str, Any] = {name: value for name, value in more.items() if name in parameters}
    try:
        _check_coordinator(rank, seconds)
        jax.distributed.initialize(_coordinator(), size, rank, initialization_timeout=max(1, int(seconds)), **accepted)
    except (RuntimeError, ValueError, OSError) as error:
        raise FrameworkError(
            f"replica {rank} of {size} could not join the others through JAX: {first_line(error)}",
            cause=f"the coordinator {_coordinator()}",
            hint=f"start all processes with one launcher, or set {COORDINATOR}=HOST:PORT to a port that is free",
        ) from error
    departure = Departure(_leave)
    departure.watch()
    return departure


def own_gpu(rank: int, size: int) -> dict[str, Any]:
    """Return the setting for the GPU of this process, if its machine has several; otherwise each process would take
    all.

    Raises:
        FrameworkError: the machine has fewer GPUs than processes.
    """
    place = launched()
    local_rank = None if place is None else place.local_rank
    count = runtime_config.expected_count("gpu")
    masked = count == 1 and bool(os.environ.get("CUDA_VISIBLE_DEVICES"))  # by the launcher, for each process
    if local_rank is None or count == 0 or masked:
        return {}
    if local_rank >= count:
        raise FrameworkError(
            f"replica {rank} of {size} is number {local_rank} on its machine, counted from 0, but JAX "
            f"has {count} GPU{'s' if count > 1 else ''} there",
            hint="start as many processes as there are GPUs, or set JAX_PLATFORMS=cpu",
        )
    return {"local_device_ids": [local_rank]}


def _coordinator() -> str:
    address = os.environ.get(COORDINATOR)
    return address or f"{os.environ['MASTER_ADDR']}:{int(os.environ['MASTER_PORT']) + 1}"


def _check_coordinator(rank: int, seconds: float) -> None:
    """See that the coordinator can be: JAX crashes where its port is taken, and aborts where no one listens.

    Raises:
        ValueError: its address has no port.
        OSError: the port is taken, or no one listens there in that many seconds.
    """
    host, _, port = _coordinator().rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError("its address is not HOST:PORT")
    if rank == 0:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", int(port)))
        return
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(
                (host.strip("[]"), int(port)), timeout=max(0.1, deadline - time.monotonic())
            ).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def _leave(failed: bool) -> None:
    """Leave the group: a process that ends normally waits for the others, as in JAX; a failed one does not.

    The others notice the end of its connections, and that it is said here.
    """
    with suppress(Exception):  # the others may have ended
        _client().key_value_set(f"{_ENDED}/{jax.process_index()}", "failed" if failed else "done")
    if not failed:
        return
    from jax._src import distributed  # JAX has no public way to leave alone

    state = distributed.global_state
    for kept in (state.client, state.service):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))  # their own ends would wait, or abort the process
    state.client = state.service = None
