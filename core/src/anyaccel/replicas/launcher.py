"""Launcher: which of several processes this one is, by what torchrun, mpirun, srun and others set."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass

from anyaccel.errors import ConfigError
from anyaccel.replicas.launcher_variables import (
    LAUNCHERS,
    OPEN_MPI,
    PMI,
    SLURM,
    TORCHRUN,
    Environment,
    Variables,
    address_of,
    is_set,
    local_rank,
    local_size,
    number,
    port_of,
)

TIMEOUT_VARIABLE = "ANYACCEL_REPLICA_TIMEOUT"
_MPI = (OPEN_MPI, PMI)


@dataclass(frozen=True, slots=True)
class Launched:
    """One of the processes that a launcher started.

    Attributes:
        rank: which one, from 0.
        size: how many there are.
        local_rank: which one of those on this machine, from 0; None where the launcher does not say.
        local_size: how many there are on this machine; None where the launcher does not say.
        address: the host of the first process, at which all meet.
        port: the port there.
    """

    rank: int
    size: int
    local_rank: int | None = None
    address: str = ""
    port: int = 0
    local_size: int | None = None

    def export(self, environment: MutableMapping[str, str] | None = None) -> None:
        """Set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT where not set, as frameworks read them."""
        into = os.environ if environment is None else environment
        values = {"RANK": self.rank, "WORLD_SIZE": self.size, "LOCAL_RANK": self.local_rank}
        values |= {"MASTER_PORT": self.port or None}
        for name, value in {**values, "MASTER_ADDR": self.address or None}.items():
            if value is not None and not into.get(name):
                into[name] = str(value)


def launched(environment: Mapping[str, str] | None = None) -> Launched | None:
    """Which of several processes this one is, by the variables of its launcher.

    Those are RANK and WORLD_SIZE (torchrun, Ray, `anyaccel run`), OMPI_COMM_WORLD_RANK and _SIZE (Open MPI), PMI_RANK
    and PMI_SIZE (MPICH, Intel MPI), and SLURM_PROCID and SLURM_STEP_NUM_TASKS (srun). Where one is started by another,
    the inner one counts: torchrun under srun, and mpirun in an allocation of Slurm. MASTER_ADDR and MASTER_PORT are
    taken from the hosts and the number of the job where they are not set.

    Returns:
        None if no launcher has set rank and size, or has started a single process.

    Raises:
        ConfigError: they contradict each other, say only a part (WORLD_SIZE=2 without RANK, RANK without WORLD_SIZE,
            LOCAL_RANK alone), or do not say where the processes meet.
    """
    given = os.environ if environment is None else environment
    variables = _innermost(given)
    check_partial(given, variables)
    if variables is None:
        return None
    rank, size = _place(given, variables)
    if size == 1:
        return None
    local = _local_place(given, variables, size)
    address, port = _meeting_point(given, variables, size)
    return Launched(rank, size, local[0], address, port, local[1])


def is_main_process() -> bool:
    """Whether this process is the first of its launcher, or the only one: the one that prints and writes.

    Raises:
        ConfigError: as of `launched`.
    """
    place = launched()
    return place is None or place.rank == 0


def replica_timeout(environment: Mapping[str, str] | None = None) -> float | None:
    """How many seconds a replica waits for the others, by ANYACCEL_REPLICA_TIMEOUT; None leaves it to the framework.

    Raises:
        ConfigError: it is no positive number.
    """
    text = (os.environ if environment is None else environment).get(TIMEOUT_VARIABLE)
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ConfigError(
            f"{TIMEOUT_VARIABLE}={text!r} is no number of seconds above 0",
            hint=f"set it to the time of the longest step and more, such as {TIMEOUT_VARIABLE}=600, or unset it",
        )
    return seconds


def _innermost(environment: Mapping[str, str]) -> Variables | None:
    """The launcher that started this process itself."""
    mpi = [each for each in _MPI if is_set(environment, each)]
    if not is_set(environment, TORCHRUN):
        check_agreement(environment, mpi)
        return next(iter(mpi), SLURM if is_set(environment, SLURM) else None)
    if not environment.get("LOCAL_WORLD_SIZE"):  # written by hand, and not by a launcher that another has started
        outer = [*mpi, *([SLURM] if not mpi and is_set(environment, SLURM) else [])]
        several = [each for each in outer if number(environment, each.size) > 1]
        check_agreement(environment, [TORCHRUN, *several])
    return TORCHRUN


def _place(environment: Mapping[str, str], variables: Variables) -> tuple[int, int]:
    rank, size = number(environment, variables.rank), number(environment, variables.size)
    if rank >= size:
        raise ConfigError(
            f"the environment has {variables.rank}={rank} and {variables.size}={size}",
            available=f"ranks 0 to {size - 1}",
            hint=f"start all processes with one launcher, or unset {variables.rank} for a process of its own",
        )
    return rank, size


def _local_place(environment: Mapping[str, str], variables: Variables, size: int) -> tuple[int | None, int | None]:
    """The rank on this machine, and how many there are, as far as the launcher tells them."""
    rank, n_local = local_rank(environment, variables), local_size(environment, variables)
    if n_local is not None and n_local > size:
        problem, available = f"{n_local} processes on this machine, of {size} in all", f"1 to {size}"
    elif rank is not None and rank >= (n_local or size):
        problem, available = f"rank {rank} on this machine, of {n_local or size}", f"ranks 0 to {(n_local or size) - 1}"
    else:
        return rank, n_local
    names = [variables.size, *variables.local_rank, *variables.local_size]
    shown = ", ".join(f"{name}={environment[name]}" for name in names if environment.get(name))
    raise ConfigError(
        f"the variables of {variables.launcher} contradict each other, {problem}: {shown}",
        available=available,
        hint="start all processes with one launcher, and unset what is left from another",
    )


def _meeting_point(environment: Mapping[str, str], variables: Variables, size: int) -> tuple[str, int]:
    address, port = address_of(environment, variables, size), port_of(environment, variables)
    if address is not None and port is not None:
        return address, port
    missing = [name for name, value in {"MASTER_ADDR": address, "MASTER_PORT": port}.items() if value is None]
    given = f"{variables.rank}={environment[variables.rank]} and {variables.size}={size}"
    raise ConfigError(
        f"the environment has {given}, and not {' and '.join(missing)}, where the processes meet",
        hint="set MASTER_ADDR to the host of the first process and MASTER_PORT to a free port there, alike in all "
        "(mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500), or unset both of the first for a process of its own",
    )


# -- partial variables: what launchers say of a process that is not its rank and their number, or not the same ---------


def check_agreement(environment: Environment, launchers: Sequence[Variables]) -> None:
    """Check that launchers say the same rank and size, as far as each says them.

    Raises:
        ConfigError: they contradict each other.
    """
    of_ranks, of_sizes = [each.rank for each in launchers], [each.size for each in launchers]
    shown = [name for pair in zip(of_ranks, of_sizes, strict=True) for name in pair if environment.get(name)]
    if all(len({number(environment, name) for name in names if name in shown}) <= 1 for names in (of_ranks, of_sizes)):
        return
    first = launchers[0]
    left = [name for name in (first.rank, first.size) if name in shown]
    raise ConfigError(
        "the launchers of this process contradict each other: "
        + ", ".join(f"{name}={environment[name]}" for name in shown),
        available=", ".join(each.launcher for each in launchers),
        hint=f"start all processes with one launcher, and unset {' and '.join(left)} if they are left from another",
    )


def check_partial(environment: Environment, launcher: Variables | None) -> None:
    """Check what launchers say that have not set both rank and size.

    A size of 1, and the zeros that Slurm sets in a batch script, are those of a process of its own.

    Args:
        environment: its variables.
        launcher: the one that has set both and counts; None if there is none.

    Raises:
        ConfigError: several processes seem to be there, and nothing says which of them this is; or the launcher that
            counts is contradicted.
    """
    for each in LAUNCHERS:
        if is_set(environment, each):
            continue
        if launcher is None:
            _check_alone(environment, each)
        elif not _starts_others(environment, launcher) and each is not SLURM:  # its zeros may be of a batch script
            check_agreement(environment, [each, launcher])


def _starts_others(environment: Environment, launcher: Variables) -> bool:
    """Whether a launcher may have been started by another, whose variables are left."""
    return launcher is TORCHRUN and bool(environment.get("LOCAL_WORLD_SIZE"))


def _check_alone(environment: Environment, variables: Variables) -> None:
    names = [name for name in (variables.size, variables.rank, *variables.local_rank) if environment.get(name)]
    own = 0 if variables is SLURM else None
    told = [name for name in names if number(environment, name) != (1 if name == variables.size else own)]
    if not told:
        return
    shown = " and ".join(f"{name}={environment[name]}" for name in told)
    missing = " and ".join(name for name in (variables.rank, variables.size) if not environment.get(name))
    raise ConfigError(
        f"the environment has {shown}, and not {missing}: which of how many processes this one is, is not said",
        available=f"{variables.rank} and {variables.size}, or neither of them for a process of its own",
        hint="start all processes with one launcher (anyaccel run --replicas 2 SCRIPT, torchrun, srun or mpirun) and "
        f"hand on all variables that it sets; or unset {' and '.join(told)}",
    )
