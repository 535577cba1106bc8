"""Declares the commands and their options; each imports its implementation when it runs."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TextIO

import click

from anyaccel.cli import completion as shell_completion
from anyaccel.cli.base_command import JSON, PLUGIN_TIMEOUT, Command, PlainCommand, load_plugins_of
from anyaccel.distributions import COMMANDS, entry_points, load
from anyaccel.errors import AnyaccelError, PluginError


def _command(**attributes: Any) -> Callable[[Callable[..., Any]], click.Command]:
    return group.command(cls=Command, **attributes)


try:
    _VERSION = version("anyaccel")
except PackageNotFoundError:  # run from its sources
    _VERSION = "not installed"


_COMMAND_HINTS = {
    **dict.fromkeys(("launch", "torchrun"), "write anyaccel run --replicas 2 SCRIPT"),
    **dict.fromkeys(
        ("train", "fit"), "run your script with python; anyaccel run --replicas 2 SCRIPT starts several processes"
    ),
    **dict.fromkeys(("test", "check"), "anyaccel doctor checks this machine, anyaccel conform NAME a plugin"),
    **dict.fromkeys(("info", "config", "report"), "anyaccel env lists versions and devices"),
    **dict.fromkeys(("list", "device", "gpus"), "write anyaccel devices"),
    "plugin": "write anyaccel plugins",
    "version": "write anyaccel --version",
    "help": "write anyaccel --help, or anyaccel COMMAND --help",
}
"""Hints for commands of other libraries."""


class _Group(click.Group):
    """The commands of core, and those of installed distributions, which are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *(entry.name for entry in entry_points(COMMANDS))})

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        hint = _COMMAND_HINTS.get(args[0]) if args and self.get_command(ctx, args[0]) is None else None
        if hint:
            ctx.fail(f"No such command {args[0]!r}: {hint}.")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Invoke as click does; print an error of anyaccel, which a distribution's own command may raise, too."""
        try:
            return super().invoke(ctx)
        except AnyaccelError as error:
            from anyaccel.cli.console import print_error

            print_error(error, as_json=False)
            sys.exit(2)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            return command
        try:
            return load(COMMANDS, cmd_name)  # type: ignore[no-any-return]
        except PluginError as error:
            return _refusing(cmd_name, error)


def _refusing(name: str, error: PluginError) -> click.Command:
    """Return a command for one that is not installed or broken: it takes all arguments, and reports it."""

    @click.command(
        name,
        cls=PlainCommand,
        short_help="Not usable here.",
        context_settings={"ignore_unknown_options": True, "help_option_names": []},
    )
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    @JSON
    def refuse(arguments: tuple[str, ...], as_json: bool) -> None:
        raise error

    return refuse


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(_VERSION, prog_name="anyaccel")
def group() -> None:
    """One device layer for every machine-learning framework.

    \b
    Examples:
      anyaccel devices          list the devices of this machine
      anyaccel demo             train and test a small graph on the best of them
      anyaccel plugins --json   list the installed plugins, for a script
    """


@_command(short_help="Train and test a small graph.")
@click.option(
    "--framework",
    shell_complete=shell_completion.frameworks,
    help="Framework to use; by default an installed one, or the built-in numpy.",
)
@click.option(
    "--device",
    shell_complete=shell_completion.kinds,
    help="Device, such as cpu, gpu:0 or mps; by default the framework's best device.",
)
@click.option("--epochs", type=click.IntRange(min=1), default=20, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@JSON
def demo(framework: str | None, device: str | None, epochs: int, seed: int, as_json: bool) -> None:
    """Train a two-node graph on 1,797 images of handwritten digits, and test it.

    Shows the plan, the progress, the test accuracy and the steps per second.

    \b
    Examples:
      anyaccel demo
      anyaccel demo --device cpu --epochs 5
      anyaccel demo --framework numpy --json
    """
    from anyaccel.cli.demo import run

    run(framework, device, epochs, seed, as_json)


@group.command(cls=PlainCommand, short_help="List the devices of this machine.")
@click.option("--framework", shell_complete=shell_completion.frameworks, help="Only this framework.")
@click.option("--probe", is_flag=True, help="Ask each framework, in a separate process.")
@PLUGIN_TIMEOUT
@JSON
@click.pass_context
def devices(ctx: click.Context, framework: str | None, probe: bool, timeout: float, as_json: bool) -> None:
    """List the devices of this machine for every installed framework.

    As the builds of the frameworks and the system's drivers tell, without importing a framework whose plugin can do
    without. With --probe every framework itself is imported and asked, which takes seconds.

    \b
    Examples:
      anyaccel devices
      anyaccel devices --probe
      anyaccel devices --framework numpy --json
    """
    from anyaccel.cli.devices import run

    run(framework, timeout, as_json, lambda: load_plugins_of(ctx), ask=probe)


@_command(short_help="List the plugins, and the reasons why plugins are broken.")
@PLUGIN_TIMEOUT
@JSON
@click.pass_obj
def plugins(left_out: Sequence[Any], timeout: float, as_json: bool) -> None:
    """List the plugins: the frameworks and devices of each, and the cause and a hint for a broken one.

    Each plugin is imported and asked for its devices. The exit status is 1 if a plugin is broken.

    \b
    Examples:
      anyaccel plugins
      anyaccel plugins --json
    """
    from anyaccel.cli.plugins import run

    sys.exit(run(timeout, as_json, left_out))


@_command(short_help="Print a shell completion script.")
@click.argument("shell", type=click.Choice(shell_completion.SHELLS))
def completion(shell: str) -> None:
    """Print a script that completes commands, options and names in a shell.

    Add the line for your shell to its start-up file: ~/.bashrc, ~/.zshrc or ~/.config/fish/config.fish.

    \b
    Examples:
      anyaccel completion bash
      anyaccel completion fish

    \b
    The lines:
      eval "$(anyaccel completion bash)"
      eval "$(anyaccel completion zsh)"
      anyaccel completion fish | source
    """
    shell_completion.run(shell, group)


class _Output(io.FileIO):
    """A standard stream that cannot be written: it ends the command with status 2, or drops its input."""

    def __init__(self, descriptor: int, *, ends_command: bool) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._ends_command = ends_command

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            with Path(os.devnull).open(
                "wb"
            ) as nowhere:  # Python writes what is left when it ends, and would fail again
                os.dup2(nowhere.fileno(), self.fileno())
            if not self._ends_command:
                return len(data)
            if not isinstance(error, BrokenPipeError):  # that is `| head`, which wants no more
                hint = "write the output to a disk with free space, or to a pipe"
                sys.stderr.write(f"error: standard output cannot be written: {error.strerror}. Hint: {hint}.\n")
            sys.exit(2)


def _checked(stream: TextIO, *, ends_command: bool) -> TextIO:
    """Return the stream, with failures that cause no traceback; a terminal, and a stream without a file, unchanged."""
    if not isinstance(stream, io.TextIOWrapper) or stream.isatty():
        return stream
    raw = _Output(stream.fileno(), ends_command=ends_command)
    binary: Any = raw if stream.write_through else io.BufferedWriter(raw)
    return io.TextIOWrapper(
        binary,
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def main() -> None:
    """Run the command line; with status 2 if standard output is closed or cannot be written."""
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115  # until the process ends
    if sys.stdout is None:
        hint = "run anyaccel with standard output open"
        sys.stderr.write(f"error: standard output is closed. Hint: {hint}.\n")
        sys.exit(2)
    sys.stdout = _checked(sys.stdout, ends_command=True)
    sys.stderr = _checked(sys.stderr, ends_command=False)
    try:
        group(prog_name="anyaccel")
    finally:
        sys.stdout.flush()  # while a failure still has a status and a message
