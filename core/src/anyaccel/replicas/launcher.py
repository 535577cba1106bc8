"""Launcher: what the environment says about the processes of one run, as torchrun and `anyaccel run` set it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from anyaccel.errors import ConfigError

_NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class Launched:
    """One of the processes that a launcher started.

    Attributes:
        rank: which one, from 0.
        size: how many there are.
    """

    rank: int
    size: int


def launched(environment: Mapping[str, str] | None = None) -> Launched | None:
    """Which of several processes this one is, by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

    Returns:
        None if no launcher has set all four, or has started a single process.

    Raises:
        ConfigError: they contradict each other.
    """
    given = os.environ if environment is None else environment
    if not all(given.get(name) for name in _NAMES):
        return None
    rank, size = _number(given, "RANK"), _number(given, "WORLD_SIZE")
    if rank >= size:
        raise ConfigError(
            f"the environment has RANK={rank} and WORLD_SIZE={size}",
            available=f"ranks 0 to {size - 1}",
            hint="start all processes with one launcher, or unset RANK for a process of its own",
        )
    return Launched(rank, size) if size > 1 else None


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment[name]
    if not text.isascii() or not text.isdigit() or (name == "WORLD_SIZE" and int(text) < 1):
        raise ConfigError(
            f"the environment has {name}={text!r}, which is no number of processes",
            hint="start the processes with a launcher: anyaccel run --replicas 2 SCRIPT",
        )
    return int(text)
