"""Launcher variables: which variables torchrun, mpirun and srun set for each process, and what they say."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from anyaccel.errors import ConfigError

Environment = Mapping[str, str]

DEFAULT_PORT = 29500
"""Where a launcher names none, and has no number of the job to derive one from; that of torchrun."""
_ALIKE = re.compile(r"([1-9]\d*)(?:\(x\d+\))?", re.ASCII)
_FIRST_PORT, _N_PORTS = 15_000, 15_000  # below those that systems give to connections of their own


@dataclass(frozen=True, slots=True)
class Variables:
    """The names under which a launcher tells a process its place.

    Attributes:
        launcher: its name, for messages.
        rank, size: of the process, and how many there are.
        local_rank, local_size: the same among the processes on this machine; the first that is set counts.
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


def number(environment: Environment, name: str) -> int:
    """The number in a variable.

    Raises:
        ConfigError: it holds none, or a size is below 1.
    """
    text = environment[name]
    if not text.isascii() or not text.isdigit() or (name.endswith(("SIZE", "TASKS")) and int(text) < 1):
        raise ConfigError(
            f"the environment has {name}={text!r}, which is no number of processes",
            hint=f"start the processes with a launcher: anyaccel run --replicas 2 SCRIPT; or unset {name}",
        )
    return int(text)


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 1 << 16:
        raise ConfigError(
            f"the environment has MASTER_PORT={text!r}, which is no port",
            available="1 to 65535",
            hint="set it to a free port of the first process, alike in all, such as MASTER_PORT=29500",
        )
    return int(text)


def is_set(environment: Environment, variables: Variables) -> bool:
    """Whether a launcher has told rank and size."""
    return bool(environment.get(variables.rank)) and bool(environment.get(variables.size))


def local_rank(environment: Environment, variables: Variables) -> int | None:
    """The rank among the processes on this machine, as far as the launcher tells it."""
    name = next((name for name in variables.local_rank if environment.get(name)), None)
    return None if name is None else number(environment, name)


def local_size(environment: Environment, variables: Variables) -> int | None:
    """How many processes there are on this machine, as far as the launcher tells it.

    Slurm has a list for all machines, such as `4(x2)`, which tells it where all have as many.
    """
    if variables is SLURM:
        match = _ALIKE.fullmatch(environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
        return int(match[1]) if match is not None else None
    name = next((name for name in variables.local_size if environment.get(name)), None)
    return None if name is None else number(environment, name)


def address_of(environment: Environment, variables: Variables, size: int) -> str | None:
    """The host of the first process: MASTER_ADDR, or what the launcher says of its hosts; None if nothing."""
    given = environment.get("MASTER_ADDR")
    if given:
        return given
    # mpirun inside an allocation of Slurm has the hosts of the job; a step has its own
    names = ("SLURM_STEP_NODELIST",) if variables is SLURM else ()
    hosts = next((environment[name] for name in (*names, "SLURM_JOB_NODELIST") if environment.get(name)), None)
    if hosts:
        return first_host(hosts)
    return "127.0.0.1" if local_size(environment, variables) == size else None


def port_of(environment: Environment, variables: Variables) -> int | None:
    """The port of the first process: MASTER_PORT, or one from the number of the job, alike in all its processes."""
    if environment.get("MASTER_PORT"):
        return _port(environment["MASTER_PORT"])
    if variables is TORCHRUN:
        return None
    job = _job_of(environment, variables)
    return DEFAULT_PORT if job is None else _FIRST_PORT + zlib.crc32(job.encode()) % _N_PORTS


def _job_of(environment: Environment, variables: Variables) -> str | None:
    """What tells a job from others at the same time, and is alike in its processes."""
    if variables is SLURM:
        return f"{environment.get('SLURM_JOB_ID', '')}.{environment.get('SLURM_STEP_ID', '')}"
    if variables is OPEN_MPI:
        names = ("PMIX_NAMESPACE", "OMPI_MCA_orte_ess_jobid", "OMPI_MCA_ess_base_jobid")
        return next((environment[name] for name in names if environment.get(name)), None)
    return environment.get("SLURM_JOB_ID")


# -- host list: the names in a list of nodes as Slurm writes it, such as `gpu[01-03,7],login` --------------------------


_PART = re.compile(r"([^\[\],]*)(?:\[([^\]]*)\])?")


def first_host(hosts: str) -> str:
    """The first name of a list; the text itself where it is no list."""
    return next(host_names(hosts), hosts)


def host_names(hosts: str) -> Iterator[str]:
    """Every name of a list, in its order; numbers keep their leading zeros."""
    for entry in _entries(hosts):
        yield from _expanded(entry)


def _entries(hosts: str) -> Iterator[str]:
    """The parts between commas that stand in no bracket."""
    depth, begin = 0, 0
    for at, letter in enumerate(hosts + ","):
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            yield hosts[begin:at].strip()
            begin = at + 1


def _expanded(entry: str) -> Iterator[str]:
    """The names of one part, which may have several brackets: `rack[1-2]node[1-4]`."""
    match = _PART.match(entry)
    if not entry or match is None or not match[0]:
        return
    prefix, ranges, rest = match[1], match[2], entry[match.end() :]
    middles = [""] if ranges is None else list(_numbers(ranges))
    tails = list(_expanded(rest)) if rest else [""]
    yield from (f"{prefix}{middle}{tail}" for middle in middles for tail in tails)


def _numbers(ranges: str) -> Iterator[str]:
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        if not last:
            yield first
            continue
        yield from (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
