"""Rendezvous: the address of every process, which each tells the first one; TensorFlow has to know all of them."""

from __future__ import annotations

import json
import socket
import time
from contextlib import suppress
from typing import Any

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
