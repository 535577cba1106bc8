"""`anyaccel run`: run a script in several processes, on this machine or by the launcher of a plugin."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from anyaccel.cli.base_command import PlainCommand, check_folder
from anyaccel_distributed.launch_options import TIMEOUT_VARIABLE, LaunchOptions, find_launcher
from anyaccel_distributed.processes import run_replicas

_COUNT = re.compile(r"(?:(\d{1,6}):)?(\d{1,6})")


class _RunCommand(PlainCommand):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does; where `--replicas` comes after the script, say that it is to come before it."""
        written = list(args)  # click empties the list
        try:
            return super().parse_args(ctx, args)
        except click.MissingParameter as error:
            if not any(argument.partition("=")[0] == "--replicas" for argument in written):
                raise
            raise click.UsageError(
                "Missing option '--replicas': options after the script are the script's own. "
                f"Write them before it: {ctx.command_path} --replicas 2 SCRIPT",
                ctx,
            ) from error


@click.command(
    cls=_RunCommand,
    short_help="Train with several processes.",
    context_settings={"allow_interspersed_args": False},
)
@click.option(
    "--replicas",
    required=True,
    metavar="N",
    help="Number of processes that train one model; MIN:MAX if the launcher can continue with fewer.",
)
@click.option("--on", metavar="LAUNCHER", help="Where to run them, such as ray; by default on this machine.")
@click.option(
    "--max-restarts",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Number of restarts of all processes after one has failed.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    help="Seconds to wait for the other processes in a step; by default the framework's timeout.",
)
@click.option("-m", "--module", is_flag=True, help="SCRIPT is the name of a module.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(
    replicas: str,
    on: str | None,
    max_restarts: int,
    timeout: float | None,
    module: bool,
    script: str,
    arguments: Sequence[str],
) -> None:
    """Run a script in several processes, which share every batch of its training phases.

    Sets what torchrun sets. If one process fails, the others are stopped, and its exit status is returned.

    \b
    Examples:
      anyaccel run --replicas 2 train.py
      anyaccel run --replicas 4 --max-restarts 3 train.py --epochs 3
      anyaccel run --on ray --replicas 8 train.py
    """
    check_folder()
    match = _COUNT.fullmatch(replicas)
    fewest, most = (int(match[1] or match[2]), int(match[2])) if match is not None else (0, 0)
    if not 1 <= fewest <= most:
        raise click.UsageError(f"--replicas {replicas!r} is not a number of processes: write 4, or 2:4 for 2 to 4.")
    if fewest < most and on is None:
        raise click.UsageError(
            f"--replicas {replicas} is for launchers that can continue with fewer processes, such as --on ray."
        )
    if not module and not Path(script).is_file():
        raise click.UsageError(f"the file {script!r} does not exist.")
    options = LaunchOptions(
        target=script,
        is_module=module,
        arguments=tuple(arguments),
        replicas=most,
        min_replicas=fewest,
        max_restarts=max_restarts,
        timeout=timeout,
    )
    sys.exit(_on_this_machine(options) if on is None else find_launcher(on)(options))


def _on_this_machine(options: LaunchOptions) -> int:
    command = [sys.executable, *(["-m"] if options.is_module else []), options.target, *options.arguments]
    more = {} if options.timeout is None else {TIMEOUT_VARIABLE: str(options.timeout)}
    return run_replicas(command, options.replicas, max_restarts=options.max_restarts, variables=more)
