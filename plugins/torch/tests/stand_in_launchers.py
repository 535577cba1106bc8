"""Stand-ins for srun and mpirun: they set the variables that these document for each process, and start it.

    python stand_in_launchers.py NAME SIZE COMMAND...

They start all on this machine, and end all when one fails, as `srun --kill-on-bad-exit` does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

Variables = dict[str, str]


def srun(rank: int, size: int) -> Variables:
    """A step of a job on one node, from "OUTPUT ENVIRONMENT VARIABLES" of srun's manual."""
    return {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_STEP_ID": "0",
        "SLURM_JOB_NODELIST": "localhost",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NNODES": "1",
        "SLURM_NTASKS": str(size),
        "SLURM_STEP_NUM_TASKS": str(size),
        "SLURM_NODEID": "0",
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank),
    }


def open_mpi(rank: int, size: int) -> Variables:
    """Processes of mpirun, from "Environment variables set for MPI applications" of Open MPI's manual."""
    own = {"RANK": rank, "SIZE": size, "LOCAL_RANK": rank, "LOCAL_SIZE": size, "NODE_RANK": rank}
    return {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in own.items()} | {"OMPI_UNIVERSE_SIZE": str(size)}


def mpich(rank: int, size: int) -> Variables:
    """Processes of MPICH's mpiexec, as its process manager Hydra sets them."""
    names = {"PMI_RANK": rank, "PMI_SIZE": size, "MPI_LOCALRANKID": rank, "MPI_LOCALNRANKS": size}
    return {name: str(value) for name, value in names.items()}


def run(name: str, size: int, command: list[str]) -> int:
    """Start all and wait; the exit status of the first that fails."""
    variables = {"srun": srun, "open_mpi": open_mpi, "mpich": mpich}[name]
    processes = [subprocess.Popen(command, env={**os.environ, **variables(rank, size)}) for rank in range(size)]
    while True:
        codes = [process.poll() for process in processes]
        failed = next((code for code in codes if code), None)
        if failed is not None or all(code == 0 for code in codes):
            break
        time.sleep(0.05)
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait()
    return failed or 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
