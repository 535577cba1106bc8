"""Command: the class of all commands, and the options that several have."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

import click

from anyaccel.errors import AnyaccelError, ConfigError

JSON = click.option("--json", "as_json", is_flag=True, help="Print only JSON on standard output.")
PLUGIN_TIMEOUT = click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=60,
    show_default=True,
    help="Seconds for each plugin; slower ones are reported.",
)


class Command(click.Command):
    """A command that prints errors in one line, or as JSON with `--json`, and exits with status 2."""

    loads_plugins = True

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does; with `--json`, print a wrong option as JSON."""
        try:
            return super().parse_args(ctx, list(args))
        except click.UsageError as error:
            if "--json" not in args:
                raise
            from anyaccel.cli.console import print_json

            message = error.format_message()
            parts = {"problem": message, "available": "", "hint": f"run `{ctx.command_path} --help`"}
            print_json({"error": {"type": type(error).__name__, "message": message, **parts}})
            sys.exit(2)

    def invoke(self, ctx: click.Context) -> Any:
        """Load the plugins, then invoke as click does; print an error of anyaccel, and exit with status 2."""
        try:
            ctx.obj = load_plugins_of(ctx) if self.loads_plugins else ()
            return super().invoke(ctx)
        except AnyaccelError as error:
            from anyaccel.cli.console import print_error

            print_error(error, as_json=bool(ctx.params.get("as_json")))
            sys.exit(2)


class PlainCommand(Command):
    """A command that needs no plugin, and therefore loads none."""

    loads_plugins = False


def check_folder() -> None:
    """Check that the working folder exists: otherwise a command that reads or writes files would end in a traceback."""
    try:
        Path.cwd()
    except OSError as error:
        raise ConfigError(
            f"the working folder cannot be read: {error}", hint="change to a folder that exists"
        ) from None


def load_plugins_of(ctx: click.Context) -> Sequence[Any]:
    """Load the plugins; returns those that are left out. With `--json`, their output is on standard error.

    Each may take as long as an explicit `--timeout`; the default of the command, which may allow more, does not apply.
    """
    from anyaccel.cli.plugin_loading import TIMEOUT, load_plugins

    is_given = ctx.get_parameter_source("timeout") is click.core.ParameterSource.COMMANDLINE
    with redirect_stdout(sys.stderr) if ctx.params.get("as_json") else nullcontext():
        return load_plugins(ctx.params["timeout"] if is_given else TIMEOUT)
