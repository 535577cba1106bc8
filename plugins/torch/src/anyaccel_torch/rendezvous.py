"""Rendezvous: a store of this attempt alone, by which the replicas of a launcher find each other.

torchrun keeps one store for all attempts (pytorch/pytorch#135712): after a restart a process would read the addresses
of those that have ended. The number of the attempt is no help, as each machine counts its own.
"""

from __future__ import annotations

import json
import os
import time
from datetime import timedelta
from secrets import token_hex

from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

_POLL_SECONDS = 0.01
_WAIT_SECONDS = 300.0


def store_of_attempt(rank: int, size: int, timeout: timedelta | None = None) -> Store:
    """A store that the replicas of this attempt share, at the address in the environment.

    Args:
        rank: of this process.
        size: how many there are.
        timeout: how long to wait for the others; by default five minutes.

    Raises:
        RuntimeError: some do not come in time.
    """
    wait = timedelta(seconds=_WAIT_SECONDS) if timeout is None else timeout
    store: Store = next(rendezvous("env://", rank=rank, world_size=size, timeout=wait))[0]
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return store
    own = PrefixStore("anyaccel", store)
    return PrefixStore(_agreed_name(own, rank, size, wait.total_seconds()), own)


def _agreed_name(store: Store, rank: int, size: int, seconds: float) -> str:
    """A name that all replicas have seen since they began.

    Each shows a token of its own; the first shows a name for the tokens that it sees, which each confirms that is one
    of these. A name that all have confirmed is none of an earlier attempt, as nobody is left who would confirm it.
    """
    token, confirmed, name = token_hex(8), "", ""
    store.set(f"token/{rank}", token)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if rank == 0:
            tokens = _read(store, "token", size)
            if None not in tokens and json.dumps(tokens) != name:
                name = json.dumps(tokens)
                store.set("name", name)
            if name and _read(store, "confirmed", size) == [name] * size:
                store.set(f"agreed/{name}", "yes")
        elif store.check(["name"]):
            name = store.get("name").decode()
        if name != confirmed and token in name:
            confirmed = name
            store.set(f"confirmed/{rank}", name)
        if confirmed and store.check([f"agreed/{confirmed}"]):
            return confirmed
        time.sleep(_POLL_SECONDS)
    raise RuntimeError(f"{size} processes have not come together within {seconds:.0f} seconds")


def _read(store: Store, name: str, size: int) -> list[str | None]:
    keys = [f"{name}/{rank}" for rank in range(size)]
    return [store.get(key).decode() if store.check([key]) else None for key in keys]
