"""Launch options: the request of `anyaccel run` to a launcher, and launchers of plugins. Part of the plugin
contract.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from anyaccel.distributions import entry_points
from anyaccel.errors import ConfigError

TIMEOUT_VARIABLE = "ANYACCEL_REPLICA_TIMEOUT"
LAUNCHERS = "anyaccel.launchers"
"""The group of entry points: the name is that of `--on`, the value a function that takes LaunchOptions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """A script to run in several processes.

    Attributes:
        target: Path of the script, or name of the module.
        is_module: Whether it is a module.
        arguments: Arguments after it on the command line.
        replicas: Number of processes; in an elastic run, the maximum.
        min_replicas: Minimum number of processes to continue with.
        max_restarts: How often all are restarted from scratch when one has failed.
        timeout: Seconds that a replica waits for the others; None leaves it to the framework.
    """

    target: str
    is_module: bool = False
    arguments: tuple[str, ...] = ()
    replicas: int
    min_replicas: int
    max_restarts: int = 0
    timeout: float | None = None


Launch = Callable[[LaunchOptions], int]
"""Runs the target in all processes and waits; returns the exit status."""

_COMMANDS = {
    "slurm srun sbatch": "srun --ntasks 2 python SCRIPT",
    "mpi mpirun mpiexec openmpi mpich": "mpirun -n 2 python SCRIPT",
    "torchrun elastic": "torchrun --nproc-per-node 2 SCRIPT",
}
"""By names of launchers, the command that starts processes which find each other without a plugin."""
_RAY = "install its plugin; in the folder of anyaccel's repository, python -m pip install ./plugins/ray"


def find_launcher(name: str, launchers: Mapping[str, Callable[[], Launch]] | None = None) -> Launch:
    """Return the launcher of an installed plugin.

    Args:
        name: Name, as in `--on`.
        launchers: Functions that load a launcher, by name; by default the installed ones.

    Raises:
        ConfigError: no launcher with this name is installed.
    """
    by_name = {entry.name: entry.load for entry in entry_points(LAUNCHERS)} if launchers is None else launchers
    if name not in by_name:
        command = next((command for names, command in _COMMANDS.items() if name.lower() in names.split()), "")
        if command:
            hint = f"start the script with its command: {command}"
        else:
            hint = _RAY if name.lower() == "ray" else "leave --on out"
        raise ConfigError(
            f"no plugin here starts processes on {name!r}",
            available=", ".join(sorted(by_name)),
            hint=hint,
        )
    return by_name[name]()


def replica_timeout(environment: Mapping[str, str] | None = None) -> float | None:
    """Return how many seconds a replica waits for the others, by ANYACCEL_REPLICA_TIMEOUT; None for the framework's
    default.

    Raises:
        ConfigError: it is not a positive number.
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
            f"{TIMEOUT_VARIABLE}={text!r} is not a number of seconds above 0",
            hint=f"set it to more than the time of the longest step, such as {TIMEOUT_VARIABLE}=600, or unset it",
        )
    return seconds
