"""Cluster: this process as one of several that JAX joins, which it does only before it starts."""

from __future__ import annotations

import ctypes
import inspect
import math
import os
import socket
import time
from typing import Any

import jax

from anyaccel.errors import FrameworkError
from anyaccel_distributed import launched, replica_timeout
from anyaccel_distributed.departure import Departure
from anyaccel_jax import runtime_config
from anyaccel_jax.error_translation import first_line

COORDINATOR = "JAX_COORDINATOR_ADDRESS"
_WAIT_SECONDS = 300
_LEAVE_SECONDS = 3600
"""So long one that ends well waits for the others, of which the first may have more to do."""


def join_cluster(rank: int, size: int) -> Departure:
    """Join the other processes, unless the script has: `jax.distributed.initialize()`.

    They meet where JAX_COORDINATOR_ADDRESS says, else at the port after MASTER_PORT, where torch meets.

    Returns:
        how this process leaves them.

    Raises:
        FrameworkError: JAX has started on its own, they cannot be joined, the script has joined others, or there are
            more processes than GPUs.
    """
    if jax.distributed.is_initialized():
        _check_place(rank, size)
        return Departure()
    if runtime_config.is_started():
        raise FrameworkError(
            f"JAX has started in replica {rank} of {size} before it was joined with the others",
            cause="devices of JAX are fixed when it starts, as with the first array or model",
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
    known = inspect.signature(jax.distributed.initialize).parameters
    given: dict[str, Any] = {name: value for name, value in more.items() if name in known}
    try:
        _check_coordinator(rank, seconds)
        jax.distributed.initialize(_coordinator(), size, rank, initialization_timeout=max(1, int(seconds)), **given)
    except (RuntimeError, ValueError, OSError) as error:
        raise FrameworkError(
            f"replica {rank} of {size} could not join the others by JAX: {first_line(error)}",
            cause=f"the coordinator {_coordinator()}",
            hint=f"start all processes with one launcher, or set {COORDINATOR}=HOST:PORT to a port that is free",
        ) from error
    departure = Departure(_leave)
    departure.watch()
    return departure


def own_gpu(rank: int, size: int) -> dict[str, Any]:
    """The GPU of this process, where its machine has several: without a word, each process would take all of them.

    Raises:
        FrameworkError: it has fewer than there are processes.
    """
    place = launched()
    own = None if place is None else place.local_rank
    count = runtime_config.expected_count("gpu")
    masked = count == 1 and bool(os.environ.get("CUDA_VISIBLE_DEVICES"))  # by the launcher, for each process
    if own is None or count == 0 or masked:
        return {}
    if own >= count:
        raise FrameworkError(
            f"replica {rank} of {size} is number {own} on its machine, counted from 0, and JAX has {count} "
            f"GPU{'s' if count > 1 else ''} there",
            available="one GPU for each process",
            hint="start as many processes as there are GPUs, or set JAX_PLATFORMS=cpu",
        )
    return {"local_device_ids": [own]}


def _coordinator() -> str:
    given = os.environ.get(COORDINATOR)
    return given or f"{os.environ['MASTER_ADDR']}:{int(os.environ['MASTER_PORT']) + 1}"


def _check_coordinator(rank: int, seconds: float) -> None:
    """See that the coordinator can be: JAX crashes where its port is taken, and aborts where nobody listens.

    Raises:
        ValueError: its address has no port.
        OSError: the port is taken, or nobody listens there in so many seconds.
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


def _check_place(rank: int, size: int) -> None:
    if (jax.process_index(), jax.process_count()) != (rank, size):
        raise FrameworkError(
            f"JAX has joined {jax.process_count()} processes as number {jax.process_index()}, and the launcher's "
            f"environment says {size} and {rank}",
            hint="leave out jax.distributed.initialize, or give it the launcher's RANK and WORLD_SIZE",
        )


def _leave(failed: bool) -> None:
    """One that ends well waits for the others, as JAX does by itself; one that fails, for which they wait, does not.

    They are told by the end of its connections.
    """
    if not failed:
        return
    from jax._src import distributed  # JAX has no public way to leave alone

    state = distributed.global_state
    for kept in (state.client, state.service):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))  # their own ends would wait, or abort the process
    state.client = state.service = None
