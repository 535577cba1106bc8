"""`anyaccel run`: run a script in several processes, on this machine or by the launcher of a plugin."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click

from anyaccel.replicas.launch_options import LaunchOptions, find_launcher
from anyaccel.replicas.launcher import TIMEOUT_VARIABLE
from anyaccel.replicas.processes import run_replicas

_COUNT = re.compile(r"(?:(\d{1,6}):)?(\d{1,6})")


def run(
    replicas: str,
    on: str | None,
    max_restarts: int,
    timeout: float | None,
    module: bool,
    script: str,
    arguments: tuple[str, ...],
) -> int:
    """Check the options, run all replicas, and return the exit status."""
    fewest, most = _count(replicas)
    if fewest < most and on is None:
        raise click.UsageError(f"--replicas {replicas} is for launchers that go on with fewer, such as --on ray.")
    if not module and not Path(script).is_file():
        raise click.UsageError(f"there is no file {script!r}.")
    options = LaunchOptions(
        target=script,
        is_module=module,
        arguments=arguments,
        replicas=most,
        min_replicas=fewest,
        max_restarts=max_restarts,
        timeout=timeout,
    )
    return _on_this_machine(options) if on is None else find_launcher(on)(options)


def _count(text: str) -> tuple[int, int]:
    """The least and the most replicas of `4` or `2:4`."""
    match = _COUNT.fullmatch(text)
    fewest, most = (int(match[1] or match[2]), int(match[2])) if match is not None else (0, 0)
    if not 1 <= fewest <= most:
        raise click.UsageError(f"--replicas {text!r} is no number of processes: write 4, or 2:4 for 2 to 4.")
    return fewest, most


def _on_this_machine(options: LaunchOptions) -> int:
    command = [sys.executable, *(["-m"] if options.is_module else []), options.target, *options.arguments]
    more = {} if options.timeout is None else {TIMEOUT_VARIABLE: str(options.timeout)}
    return run_replicas(command, options.replicas, max_restarts=options.max_restarts, variables=more)
