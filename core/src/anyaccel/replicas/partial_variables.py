"""Partial variables: what launchers say of a process that is not its rank and their number, or not the same."""

from __future__ import annotations

from collections.abc import Sequence

from anyaccel.errors import ConfigError
from anyaccel.replicas.launcher_variables import (
    LAUNCHERS,
    SLURM,
    TORCHRUN,
    Environment,
    Variables,
    is_set,
    number,
)


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
