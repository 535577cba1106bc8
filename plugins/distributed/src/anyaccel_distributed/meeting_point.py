"""Where the processes of a launcher meet: from MASTER_ADDR and MASTER_PORT, or from the hosts and number of the job."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import replace

from anyaccel import launched as launchers
from anyaccel.errors import ConfigError
from anyaccel.launched import OPEN_MPI, SLURM, TORCHRUN, Environment, Launched, Variables, local_size

DEFAULT_PORT = 29500
"""Where a launcher names none, and has no number of the job to derive one from; that of torchrun."""
_FIRST_PORT, _N_PORTS = 15_000, 15_000  # below those that systems give to connections of their own


def launched(environment: Environment | None = None) -> Launched | None:
    """Return the rank and size of this process, from the variables of its launcher, and where the processes meet.

    Those are RANK and WORLD_SIZE (torchrun, Ray, `anyaccel run`), OMPI_COMM_WORLD_RANK and _SIZE (Open MPI), PMI_RANK
    and PMI_SIZE (MPICH, Intel MPI), and SLURM_PROCID and SLURM_STEP_NUM_TASKS (srun). If one launcher starts another,
    the inner one counts: torchrun under srun, and mpirun in an allocation of Slurm. If MASTER_ADDR and MASTER_PORT are
    not set, they are derived from the hosts and the number of the job.

    Returns:
        None if no launcher has set rank and size, or has started a single process.

    Raises:
        ConfigError: the variables contradict each other, are incomplete (WORLD_SIZE=2 without RANK, RANK without
            WORLD_SIZE, LOCAL_RANK alone), or do not define where the processes meet.
    """
    place = launchers.launched(environment)
    if place is None:
        return None
    environment = os.environ if environment is None else environment
    variables = launchers.innermost(environment)
    assert variables is not None  # it has given the place
    address, port = address_of(environment, variables, place.size), port_of(environment, variables)
    if address is not None and port is not None:
        return replace(place, address=address, port=port)
    missing = [name for name, value in {"MASTER_ADDR": address, "MASTER_PORT": port}.items() if value is None]
    of_process = f"{variables.rank}={environment[variables.rank]} and {variables.size}={place.size}"
    raise ConfigError(
        f"the environment has {of_process}, but not {' and '.join(missing)}, which say where the processes meet",
        hint="set MASTER_ADDR to the host of the first process and MASTER_PORT to a free port there, the same in all "
        "processes (mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500), or unset the first two for a single process",
    )


def address_of(environment: Environment, variables: Variables, size: int) -> str | None:
    """Return the host of the first process: MASTER_ADDR, or from the launcher's hosts; None if unknown."""
    host = environment.get("MASTER_ADDR")
    if host:
        return host
    # mpirun inside an allocation of Slurm has the hosts of the job; a step has its own
    names = ("SLURM_STEP_NODELIST",) if variables is SLURM else ()
    hosts = next((environment[name] for name in (*names, "SLURM_JOB_NODELIST") if environment.get(name)), None)
    if hosts:
        return first_host(hosts)
    return "127.0.0.1" if local_size(environment, variables) == size else None


def port_of(environment: Environment, variables: Variables) -> int | None:
    """Return the port of the first process: MASTER_PORT, or one from the job's number, equal in all its processes."""
    if environment.get("MASTER_PORT"):
        text = environment["MASTER_PORT"]
        if not text.isascii() or not text.isdigit() or not 0 < int(text) < 1 << 16:
            raise ConfigError(
                f"the environment has MASTER_PORT={text!r}, which is not a port",
                available="1 to 65535",
                hint="set it to a free port of the first process, the same in all processes, such as MASTER_PORT=29500",
            )
        return int(text)
    if variables is TORCHRUN:
        return None
    if variables is SLURM:
        job: str | None = f"{environment.get('SLURM_JOB_ID', '')}.{environment.get('SLURM_STEP_ID', '')}"
    elif variables is OPEN_MPI:
        names = ("PMIX_NAMESPACE", "OMPI_MCA_orte_ess_jobid", "OMPI_MCA_ess_base_jobid")
        job = next((environment[name] for name in names if environment.get(name)), None)
    else:
        job = environment.get("SLURM_JOB_ID")
    return DEFAULT_PORT if job is None else _FIRST_PORT + zlib.crc32(job.encode()) % _N_PORTS


# -- host list: the names in a list of nodes as Slurm writes it, such as `gpu[01-03,7],login` --------------------------


_PART = re.compile(r"([^\[\],]*)(?:\[([^\]]*)\])?")


def first_host(hosts: str) -> str:
    """Return the first name of a list; the text itself if it is not a list."""
    return next(host_names(hosts), hosts)


def host_names(hosts: str) -> Iterator[str]:
    """Every name of a list, in its order; numbers keep their leading zeros."""
    for entry in _entries(hosts):
        yield from _expanded(entry)


def _entries(hosts: str) -> Iterator[str]:
    """Yield the parts between commas that are not in brackets."""
    depth, begin = 0, 0
    for at, letter in enumerate(hosts + ","):
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            yield hosts[begin:at].strip()
            begin = at + 1


def _expanded(entry: str) -> Iterator[str]:
    """Yield the names of one part, which may have several brackets: `rack[1-2]node[1-4]`."""
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
