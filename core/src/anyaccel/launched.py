"""Launched: which of several processes this one is, by the variables that torchrun, mpirun, srun and others set."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass

from anyaccel.errors import ConfigError

Environment = Mapping[str, str]

_ALIKE = re.compile(r"([1-9]\d*)(?:\(x\d+\))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Launched:
    """One of the processes that a launcher started.

    Attributes:
        rank: Rank of this process, from 0.
        size: Number of processes.
        local_rank: Rank among those on this machine, from 0; None if the launcher does not set it.
        local_size: Number of processes on this machine; None if the launcher does not set it.
        address: Host of the first process, where all meet.
        port: The port there.
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
    """Return the rank and size of this process, from the variables of its launcher.

    Those are RANK and WORLD_SIZE (torchrun, Ray, `anyaccel run`), OMPI_COMM_WORLD_RANK and _SIZE (Open MPI), PMI_RANK
    and PMI_SIZE (MPICH, Intel MPI), and SLURM_PROCID and SLURM_STEP_NUM_TASKS (srun). If one launcher starts another,
    the inner one counts: torchrun under srun, and mpirun in an allocation of Slurm. Where they meet is in the result of
    `anyaccel_distributed.launched`.

    Returns:
        None if no launcher has set rank and size, or has started a single process.

    Raises:
        ConfigError: the variables contradict each other, are incomplete (WORLD_SIZE=2 without RANK, RANK without
            WORLD_SIZE, LOCAL_RANK alone).
    """
    variables_of_process = os.environ if environment is None else environment
    if _NAMES.isdisjoint(variables_of_process):  # no launcher at all
        return None
    variables = innermost(variables_of_process)
    check_partial(variables_of_process, variables)
    if variables is None:
        return None
    rank, size = number(variables_of_process, variables.rank), number(variables_of_process, variables.size)
    if rank >= size:
        raise ConfigError(
            f"the environment has {variables.rank}={rank} and {variables.size}={size}",
            available=f"ranks 0 to {size - 1}",
            hint=f"start all processes with one launcher, or unset {variables.rank} for a single process",
        )
    if size == 1:
        return None
    # Rank and number on this machine, to the extent that the launcher sets them.
    local, n_local = local_rank(variables_of_process, variables), local_size(variables_of_process, variables)
    problem = available = ""
    if n_local is not None and n_local > size:
        problem, available = f"{n_local} processes on this machine, of {size} in all", f"1 to {size}"
    elif local is not None and local >= (n_local or size):
        problem = f"rank {local} on this machine, of {n_local or size}"
        available = f"ranks 0 to {(n_local or size) - 1}"
    if problem:
        names = [variables.size, *variables.local_rank, *variables.local_size]
        shown = ", ".join(f"{name}={variables_of_process[name]}" for name in names if variables_of_process.get(name))
        raise ConfigError(
            f"the variables of {variables.launcher} contradict each other, {problem}: {shown}",
            available=available,
            hint="start all processes with one launcher, and unset the variables of other launchers",
        )
    return Launched(rank, size, local, local_size=n_local)


def is_main_process() -> bool:
    """Return whether this process is the first of its launcher, or the only one: the one that prints and writes.

    Raises:
        ConfigError: see `launched`.
    """
    place = launched()
    return place is None or place.rank == 0


@dataclass(frozen=True, slots=True)
class Variables:
    """The variables of a launcher that give a process its rank and size.

    Attributes:
        launcher: Name of the launcher, for messages.
        rank, size: Variables of the rank of the process and the number of processes.
        local_rank, local_size: The same among the processes on this machine; the first that is set is used.
    """

    launcher: str
    rank: str
    size: str
    local_rank: tuple[str, ...]
    local_size: tuple[str, ...]


TORCHRUN = Variables("torchrun", "RANK", "WORLD_SIZE", ("LOCAL_RANK",), ("LOCAL_WORLD_SIZE",))
OPEN_MPI = Variables(
    "Open MPI",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    ("OMPI_COMM_WORLD_LOCAL_RANK",),
    ("OMPI_COMM_WORLD_LOCAL_SIZE",),
)
# MPICH, Intel MPI and Cray's; the local ones are MPICH's and Intel's, then Cray's and MVAPICH's.
PMI = Variables(
    "PMI",
    "PMI_RANK",
    "PMI_SIZE",
    ("MPI_LOCALRANKID", "PMI_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK"),
    ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"),
)
# Of a step, which srun makes; a batch script has SLURM_PROCID and SLURM_NTASKS, too, and is one process.
SLURM = Variables("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", ("SLURM_LOCALID",), ())
LAUNCHERS = (TORCHRUN, OPEN_MPI, PMI, SLURM)
_MPI = (OPEN_MPI, PMI)
_NAMES = frozenset(
    name
    for launcher in LAUNCHERS
    for name in (launcher.rank, launcher.size, *launcher.local_rank, *launcher.local_size)
)


def innermost(environment: Mapping[str, str]) -> Variables | None:
    """Return the launcher that started this process itself."""
    mpi = [variable for variable in _MPI if is_set(environment, variable)]
    if not is_set(environment, TORCHRUN):
        check_agreement(environment, mpi)
        return next(iter(mpi), SLURM if is_set(environment, SLURM) else None)
    if not environment.get("LOCAL_WORLD_SIZE"):  # written by hand, and not by a launcher that another has started
        outer = [*mpi, *([SLURM] if not mpi and is_set(environment, SLURM) else [])]
        several = [launcher for launcher in outer if number(environment, launcher.size) > 1]
        check_agreement(environment, [TORCHRUN, *several])
    return TORCHRUN


# -- partial variables: what launchers say of a process that is not its rank and their number, or not the same ---------


def check_agreement(environment: Environment, launchers: Sequence[Variables]) -> None:
    """Check that launchers say the same rank and size, to the extent that each says them.

    Raises:
        ConfigError: they contradict each other.
    """
    of_ranks, of_sizes = [place.rank for place in launchers], [place.size for place in launchers]
    shown = [name for pair in zip(of_ranks, of_sizes, strict=True) for name in pair if environment.get(name)]
    if all(len({number(environment, name) for name in names if name in shown}) <= 1 for names in (of_ranks, of_sizes)):
        return
    first = launchers[0]
    left = [name for name in (first.rank, first.size) if name in shown]
    raise ConfigError(
        "the launchers of this process contradict each other: "
        + ", ".join(f"{name}={environment[name]}" for name in shown),
        available=", ".join(place.launcher for place in launchers),
        hint=f"start all processes with one launcher, and unset {' and '.join(left)} if they are left from another",
    )


def check_partial(environment: Environment, launcher: Variables | None) -> None:
    """Check the variables of launchers that have not set both rank and size.

    A size of 1, and the zeros that Slurm sets in a batch script, belong to a single process.

    Args:
        environment: The variables.
        launcher: The launcher that has set both and is used, or None.

    Raises:
        ConfigError: several processes seem to exist, and nothing tells which of them this is; or the launcher in use is
            contradicted.
    """
    for variables in LAUNCHERS:
        if is_set(environment, variables):
            continue
        if launcher is None:
            names = [name for name in (variables.size, variables.rank, *variables.local_rank) if environment.get(name)]
            default = 0 if variables is SLURM else None
            told = [name for name in names if number(environment, name) != (1 if name == variables.size else default)]
            if told:
                shown = " and ".join(f"{name}={environment[name]}" for name in told)
                missing = " and ".join(name for name in (variables.rank, variables.size) if not environment.get(name))
                raise ConfigError(
                    f"the environment has {shown}, but not {missing}, so the rank or the number of processes is "
                    "unknown",
                    available=f"{variables.rank} and {variables.size}, or neither for a single process",
                    hint="start all processes with one launcher (anyaccel run --replicas 2 SCRIPT, torchrun, srun or "
                    f"mpirun) and pass on all variables that it sets; or unset {' and '.join(told)}",
                )
        elif variables is not SLURM and not (launcher is TORCHRUN and environment.get("LOCAL_WORLD_SIZE")):
            # Slurm's zeros may be of a batch script, and torchrun may have been started by the other launcher.
            check_agreement(environment, [variables, launcher])


# -- what each launcher says ------------------------------------------------------------------------------------------


def number(environment: Environment, name: str) -> int:
    """Return the number in a variable.

    Raises:
        ConfigError: it holds none, or a size is below 1.
    """
    text = environment[name]
    if not text.isascii() or not text.isdigit() or (name.endswith(("SIZE", "TASKS")) and int(text) < 1):
        raise ConfigError(
            f"the environment has {name}={text!r}, which is not a number of processes",
            hint=f"start the processes with a launcher: anyaccel run --replicas 2 SCRIPT; or unset {name}",
        )
    return int(text)


def is_set(environment: Environment, variables: Variables) -> bool:
    """Whether a launcher has told rank and size."""
    return bool(environment.get(variables.rank)) and bool(environment.get(variables.size))


def local_rank(environment: Environment, variables: Variables) -> int | None:
    """Return the rank among the processes on this machine, if the launcher sets it."""
    name = next((name for name in variables.local_rank if environment.get(name)), None)
    return None if name is None else number(environment, name)


def local_size(environment: Environment, variables: Variables) -> int | None:
    """Return the number of processes on this machine, if the launcher sets it.

    Slurm has a list for all machines, such as `4(x2)`, which gives it only if all have the same number.
    """
    if variables is SLURM:
        match = _ALIKE.fullmatch(environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
        return int(match[1]) if match is not None else None
    name = next((name for name in variables.local_size if environment.get(name)), None)
    return None if name is None else number(environment, name)
