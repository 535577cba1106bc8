"""The commands and their options; what they do stands in the modules they call."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import click

from anyaccel.errors import AnyaccelError

_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else, on standard output.")


class _Command(click.Command):
    """A command whose errors are told in one paragraph, or as JSON where that is asked for, with exit status 2."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, list(args))
        except click.UsageError as error:
            if "--json" not in args:
                raise
            from anyaccel.cli.output import print_json

            print_json({"error": {"type": type(error).__name__, "message": error.format_message()}})
            sys.exit(2)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except AnyaccelError as error:
            from anyaccel.cli.output import print_error

            print_error(error, as_json=bool(ctx.params.get("as_json")))
            sys.exit(2)


def _command(**attributes: Any) -> Callable[[Callable[..., Any]], click.Command]:
    return group.command(cls=_Command, **attributes)


def _version() -> str:
    try:
        return version("anyaccel")
    except PackageNotFoundError:  # run from its sources
        return "not installed"


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(_version(), prog_name="anyaccel")
def group() -> None:
    """Say where once, wire models of any framework into a graph, run phases.

    \b
    Examples:
      anyaccel devices          what is on this machine
      anyaccel demo             train and test a small graph on the best of it
      anyaccel plugins --json   what is installed, for a script
    """


@_command(short_help="Train and test a small graph.")
@click.option("--framework", help="Who computes; by default an installed framework, else the embedded numpy.")
@click.option("--device", help="Where, such as cpu, gpu:0 or mps; by default the best that the framework has.")
@click.option("--epochs", type=click.IntRange(min=1), default=20, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@_JSON
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


@_command(short_help="List the devices of this machine.")
@click.option("--framework", help="Only this one.")
@_JSON
def devices(framework: str | None, as_json: bool) -> None:
    """List the devices of this machine, for every framework that is served.

    Each framework is asked in a process of its own, so that nothing is initialised here and none can stop the others.

    \b
    Examples:
      anyaccel devices
      anyaccel devices --framework numpy --json
    """
    from anyaccel.cli.devices import run

    run(framework, as_json)


@_command(short_help="List the plugins, and what is wrong with one.")
@_JSON
def plugins(as_json: bool) -> None:
    """List the plugins: what each serves, and for a broken one the cause and the remedy.

    Exit status is 1 if one is broken.

    \b
    Examples:
      anyaccel plugins
      anyaccel plugins --json
    """
    from anyaccel.cli.plugins import run

    sys.exit(run(as_json))


def main() -> None:
    """Run the command line."""
    group(prog_name="anyaccel")
